#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/smollm2_beams.json: what transformers' generate() finds in float32 by beam search, with the weights
of a SmolLM2-135M-Instruct GGUF file (dequantised by the gguf package).

For each prompt of goldens/smollm2.json and width 4: the four answers, best first, with their scores. Next to them the
margin: by how much the sums of log-probabilities that the search compares differ at least wherever the order decides
what goes on, what ends, or which answer is better. Where our own search, in other arithmetic, may be off by less than
half of it, the answers must be the same. The margin is of a plain search over the same log-probabilities, which must
find what generate() finds.

Needs: torch, transformers, gguf. Run: make_beam_goldens.py MODEL.gguf [OUTPUT]
"""
import json
import pathlib
import sys

import torch
import transformers

WIDTH = 4
NEW_TOKENS = (2, 5, 20)  # A search of each for every prompt.
# (length_penalty, early_stopping) by prompt, in turn.
SETTINGS = [(1.0, False), (0.6, True), (2.0, "never"), (0.0, False), (-0.5, "never")]


def gap(values, place):
    """Between the last of the first `place` values and the next one."""
    ordered = sorted(values, reverse=True)
    return ordered[place - 1] - ordered[place] if 0 < place < len(ordered) else float("inf")


@torch.no_grad()
def plain_search(model, prompt, new_tokens, penalty, early, end):
    running, answers, margin = [(0.0, [])], [], float("inf")
    for length in range(1, new_tokens + 1):
        logits = model(torch.tensor([prompt + tokens for _, tokens in running])).logits[:, -1]
        logprobs = torch.log_softmax(logits, -1)
        values, ids = torch.topk(logprobs, 2 * WIDTH + 1)
        candidates = [(total + v, tokens + [t]) for (total, tokens), row_v, row_i
                      in zip(running, values.tolist(), ids.tolist()) for v, t in zip(row_v, row_i)]
        candidates.sort(key=lambda c: -c[0])
        sums = [c[0] for c in candidates]
        last = length == new_tokens
        ends = [last or c[1][-1] == end for c in candidates]
        if any(ends[:2 * WIDTH]):
            margin = min(margin, gap(sums, WIDTH))
        goes_on = [c for c, e in zip(candidates, ends) if not e]
        if not last:
            margin = min(margin, gap([c[0] for c in goes_on], WIDTH))
        answers += [(s / length ** penalty, tokens) for (s, tokens), e
                    in list(zip(candidates, ends))[:WIDTH] if e]
        answers.sort(key=lambda a: -a[0])
        scores = [a[0] for a in answers]
        margin = min([margin] + [a - b for a, b in zip(scores, scores[1:])])
        answers = answers[:WIDTH]
        running = goes_on[:WIDTH]
        if len(answers) == WIDTH and running:
            reach = new_tokens if early == "never" and penalty > 0 else length
            best = running[0][0] / reach ** penalty
            margin = min(margin, abs(best - answers[-1][0]))
            if early is True or best <= answers[-1][0]:
                break
        if not running:
            break
    return answers, margin


def main():
    torch.set_num_threads(1)
    path = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).parent / "goldens"
    output = sys.argv[2] if len(sys.argv) > 2 else here / "smollm2_beams.json"
    prompts = json.loads((here / "smollm2.json").read_text())["prompts"]
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name,
                                                              dtype=torch.float32).eval()
    end = model.config.eos_token_id
    found = []
    for index, (prompt, new_tokens) in enumerate((p, n) for p in prompts for n in NEW_TOKENS):
        tokens = prompt["tokens"]
        penalty, early = SETTINGS[index % len(SETTINGS)]
        result = model.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                                num_beams=WIDTH, num_return_sequences=WIDTH, max_new_tokens=new_tokens,
                                length_penalty=penalty, early_stopping=early, do_sample=False, eos_token_id=end,
                                pad_token_id=end, repetition_penalty=1.0, return_dict_in_generate=True,
                                output_scores=True)
        answers = []
        for sequence, score in zip(result.sequences.tolist(), result.sequences_scores.tolist()):
            made = sequence[len(tokens):]
            if end in made:
                made = made[:made.index(end) + 1]
            answers.append({"tokens": made, "score": round(score, 5)})
        plain, margin = plain_search(model, tokens, new_tokens, penalty, early, end)
        if [a["tokens"] for a in answers] != [a[1] for a in plain] and margin > 1e-3:
            sys.exit(f"{prompt['text']!r}: the plain search finds {plain}, generate() {answers}")
        found.append({"tokens": tokens, "new_tokens": new_tokens, "length_penalty": penalty, "early_stopping": early,
                      "answers": answers, "margin": round(margin, 5)})
        print(f"{index + 1}/{len(prompts) * len(NEW_TOKENS)} margin {margin:.5f}", flush=True)
    with open(output, "w", encoding="utf-8") as file:
        json.dump({"width": WIDTH, "end": end, "searches": found}, file,
                  separators=(",", ":"))
        file.write("\n")


main()

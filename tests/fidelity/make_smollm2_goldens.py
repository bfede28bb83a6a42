#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/smollm2.json: what transformers computes in float32 with the weights of a SmolLM2-135M-
Instruct GGUF file (dequantised by the gguf package).

For each of 20 prompts: token ids; the logits of the last position (the 50 largest and 64 fixed columns); for
every position the largest logit's id and its margin over the second; 32 greedily chosen tokens with their
margins. For a text of 4,000 tokens, as one sequence: the negative log-likelihood of each token given those
before it, and the perplexity. The text is from works in the public domain (see text_passages.py).

Needs: numpy, torch, transformers, gguf. Run: make_smollm2_goldens.py MODEL.gguf [OUTPUT]
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

import text_passages

GREEDY_TOKENS = 32
TOP = 50
COLUMNS = 64
TEXT_TOKENS = 4000

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "Water boils at a temperature of",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "#include <stdio.h>\n\nint main(void) {\n  for (int i = 0; i < 10; ++i) {\n",
    "SELECT name, COUNT(*) FROM orders WHERE",
    '{"name": "Ada", "age": 36, "languages": ["English", ',
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "Q: What is 12 times 7?\nA:",
    "La capitale de l'Espagne est",
    "Der schnelle braune Fuchs springt",
    "Москва является столицей",
    "日本の首都は",
    "مرحبا، كيف",
    "Two emojis 👩‍🚀🎉 and then",
    "    \n\n\t  indented   text   with    runs\n\n\n",
    "a",
]
CHATS = [
    [("user", "Name three primary colours.")],
    [("system", "You answer in one short sentence."), ("user", "Why is the sky blue?")],
    [("user", "Hello!"), ("assistant", "Hello! How can I help?"), ("user", "Write a haiku about rain.")],
]


def chat_text(messages):
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + "<|im_start|>assistant\n"


def margins(rows):
    values, ids = torch.topk(rows, 2, dim=-1)
    return ids[:, 0].tolist(), [round(float(m), 4) for m in values[:, 0] - values[:, 1]]


@torch.no_grad()
def run_prompt(model, tokens, columns):
    result = model(torch.tensor([tokens]), use_cache=True)
    logits = result.logits[0]
    last = logits[-1]
    values, ids = torch.topk(last, TOP)
    best, margin = margins(logits)
    greedy, greedy_margin = [best[-1]], [margin[-1]]
    while len(greedy) < GREEDY_TOKENS:
        result = model(torch.tensor([greedy[-1:]]), past_key_values=result.past_key_values, use_cache=True)
        best_id, best_margin = margins(result.logits[0, -1:])
        greedy += best_id
        greedy_margin += best_margin
    return {"tokens": tokens,
            "top": [[int(i), round(float(v), 4)] for i, v in zip(ids, values)],
            "columns": [round(float(last[c]), 4) for c in columns],
            "best": best, "margin": margin, "greedy": greedy, "greedy_margin": greedy_margin}


@torch.no_grad()
def run_text(model, tokens):
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    nll = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none").double()
    return {"tokens": tokens, "nll": [round(float(x), 4) for x in nll],
            "perplexity": round(float(torch.exp(nll.mean())), 5)}


def main():
    torch.set_num_threads(1)
    path = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).parent
    output = sys.argv[2] if len(sys.argv) > 2 else here / "goldens" / "smollm2.json"
    names = dict(gguf_file=path.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **names)
    text_tokens = tokenizer(text_passages.TEXT, add_special_tokens=False)["input_ids"]
    if len(text_tokens) < TEXT_TOKENS:
        sys.exit(f"the text has {len(text_tokens)} tokens; {TEXT_TOKENS} are needed")
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **names, dtype=torch.float32).eval()
    columns = sorted(np.random.default_rng(7).choice(model.config.vocab_size, COLUMNS, replace=False).tolist())
    texts = PROMPTS + [chat_text(chat) for chat in CHATS]
    prompts = []
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        prompts.append(dict(text=text, **run_prompt(model, tokens, columns)))
    goldens = {"columns": columns, "prompts": prompts, "text": run_text(model, text_tokens[:TEXT_TOKENS])}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(goldens, file, separators=(",", ":"), ensure_ascii=True)
        file.write("\n")


main()

# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of each turn of a chat, with K and V of the turns before kept and without.

The same conversation goes through two clusters that differ in `prefix_cache` alone, turn by turn in turns. A turn's prompt is
all that was said before and some new words. Next to both stands what the new tokens alone cost where everything is computed:
the time of this turn's prompt without the cache less that of the one before, at the same context.
"""

import argparse
import json
import subprocess

import cluster
import processor
import remote
from programs import program

WORD = "Item {} of the list."


def turn(running, prompt, tokens):
    result = subprocess.run([program("lamina"), "generate", "--server", running.address, "--prompt", prompt, "--max-tokens",
                             str(tokens), "--ignore-eos", "--temperature", "0", "--json"],
                            check=True, capture_output=True, text=True)
    return json.loads(result.stdout)


def words_of(number, arguments):
    return " ".join(WORD.format(100 * number + i) for i in range(arguments.new_tokens // 9))


def on_one(arguments):
    """The conversation on a cluster that serves: what it keeps is its own setting."""
    rows, said = [], ""
    with cluster.Remote(arguments.server) as running:
        what = cluster.described(running)
        print(what)
        for number in range(arguments.turns):
            said += " " + words_of(number, arguments)
            answer = turn(running, said, arguments.answer_tokens)
            said += answer["text"]
            rows.append({key: answer[key] for key in ("prompt_tokens", "cached_tokens", "ttft_ms")})
            print(f"turn {number:>2}: {answer['prompt_tokens']:>5} tokens, {answer['cached_tokens']:>5} kept: {answer['ttft_ms']:7.1f} ms",
                  flush=True)
    remote.write(arguments.json, what, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=180, help="of each turn, about")
    parser.add_argument("--answer-tokens", type=int, default=32)
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        on_one(arguments)
        return
    print(f"machine {processor.machine()}; compute node on core 0, memory node on core 1, nothing else runs")
    rows = []
    said = {"kept": "", "off": ""}
    before = 0.0
    with cluster.Cluster("auto", memory_nodes=1, prefix_cache="auto") as kept, cluster.Cluster("auto", memory_nodes=1) as off:
        for number in range(arguments.turns):
            words = words_of(number, arguments)
            answers = {}
            for name, running in (("off", off), ("kept", kept)):
                said[name] += " " + words
                answers[name] = turn(running, said[name], arguments.answer_tokens)
                said[name] += answers[name]["text"]
            if answers["kept"]["token_ids"] != answers["off"]["token_ids"]:
                raise RuntimeError(f"turn {number}: another answer with the cache")
            usage, plain = answers["kept"], answers["off"]
            row = {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": usage["cached_tokens"],
                   "kept_ms": usage["ttft_ms"], "off_ms": plain["ttft_ms"], "new_alone_ms": plain["ttft_ms"] - before}
            before = plain["ttft_ms"]
            rows.append(row)
            print(f"turn {number:>2}: {row['prompt_tokens']:>5} tokens, {row['cached_tokens']:>5} kept: {row['kept_ms']:7.1f} ms; "
                  f"all computed {row['off_ms']:7.1f} ({row['kept_ms'] / row['off_ms']:.2f}); the new ones alone "
                  f"{row['new_alone_ms']:6.1f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()

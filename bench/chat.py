# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of each turn of a chat, with K and V of the turns before kept and without.

The same conversation goes through two clusters that differ in `prefix_cache` alone, turn by turn in turns. A turn's prompt is
all that was said before and some new words. Next to both stands what as many new tokens cost as one chunk at that context: a third
cluster has prefill.chunk_tokens of the tokens that the turn computes, and gets the end of the turn's prompt that is whole chunks;
its time to the first token less what lies between the starts of its first and last step, by the node's timeline, is that chunk's.
"""

import argparse
import json
import pathlib
import signal
import statistics
import subprocess
import tempfile
import time

import cluster
import processor
import remote
from programs import program

WORD = "Item {} of the list."
RECORDING_BEGINS_SECONDS = 0.3


def turn(running, prompt, tokens, form="--prompt"):
    result = subprocess.run([program("lamina"), "generate", "--server", running.address, form, "-", "--max-tokens",
                             str(tokens), "--ignore-eos", "--temperature", "0", "--json"],
                            check=True, capture_output=True, text=True, input=prompt)
    return json.loads(result.stdout)


def one_chunk(running, ids, computed, folder):
    """Milliseconds to the first token of which the last chunk of `computed` tokens is the cause."""
    ids = ids[len(ids) % computed:]
    trace = pathlib.Path(folder) / "trace.json"
    with subprocess.Popen([program("lamina"), "trace", "--server", running.address, "--seconds", "60", "--output", trace],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
        time.sleep(RECORDING_BEGINS_SECONDS)
        ttft = turn(running, ",".join(map(str, ids)), 1, "--tokens")["ttft_ms"]
        recording.send_signal(signal.SIGINT)
        recording.wait()
    starts = [event["ts"] / 1000 for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
              if event.get("ph") == "X" and event["name"].startswith("step ") and event.get("args", {}).get("chunk_tokens") == computed]
    if len(starts) != len(ids) // computed:
        raise RuntimeError(f"the timeline has {len(starts)} steps of {computed} tokens, and the prompt {len(ids)} tokens")
    return ttft - (max(starts) - min(starts))


def ids_of(running, prompt):
    result = subprocess.run([program("lamina"), "tokenize", "--server", running.address, "--prompt", "-", "--json"], check=True,
                            capture_output=True, text=True, input=prompt)
    return json.loads(result.stdout)["tokens"]


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


def add_chunks(rows):
    """One cluster for each number of tokens that turns computed; the median of three."""
    with tempfile.TemporaryDirectory(prefix="lamina-chat-") as folder:
        for computed in sorted({row["prompt_tokens"] - row["cached_tokens"] for row in rows if row["cached_tokens"]}):
            with cluster.Cluster("auto", memory_nodes=1, chunk_tokens=computed) as running:
                for row in rows:
                    if row["cached_tokens"] and row["prompt_tokens"] - row["cached_tokens"] == computed:
                        row["chunk_ms"] = statistics.median(one_chunk(running, row["ids"], computed, folder) for _ in range(3))
    for number, row in enumerate(rows):
        del row["ids"]
        if "chunk_ms" in row:
            print(f"turn {number:>2}: {row['prompt_tokens'] - row['cached_tokens']:>4} tokens behind {row['cached_tokens']:>5}: "
                  f"{row['kept_ms']:7.1f} ms, as one chunk {row['chunk_ms']:7.1f} ({row['kept_ms'] / row['chunk_ms']:.2f})", flush=True)
    ratios = [row["kept_ms"] / row["chunk_ms"] for row in rows if "chunk_ms" in row]
    if ratios:
        print(f"median {statistics.median(ratios):.2f}, most {max(ratios):.2f} of one chunk's time (asked: 1.2 in each turn)")


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
    with cluster.Cluster("auto", memory_nodes=1, prefix_cache="auto") as kept, cluster.Cluster("auto", memory_nodes=1) as off:
        for number in range(arguments.turns):
            words = words_of(number, arguments)
            answers, prompts = {}, {}
            for name, running in (("off", off), ("kept", kept)):
                prompts[name] = said[name] + " " + words
                answers[name] = turn(running, prompts[name], arguments.answer_tokens)
                said[name] = prompts[name] + answers[name]["text"]
            if answers["kept"]["token_ids"] != answers["off"]["token_ids"]:
                raise RuntimeError(f"turn {number}: another answer with the cache")
            usage, plain = answers["kept"], answers["off"]
            row = {"prompt_tokens": usage["prompt_tokens"], "cached_tokens": usage["cached_tokens"], "kept_ms": usage["ttft_ms"],
                   "off_ms": plain["ttft_ms"], "ids": ids_of(off, prompts["off"])}
            rows.append(row)
            print(f"turn {number:>2}: {row['prompt_tokens']:>5} tokens, {row['cached_tokens']:>5} kept: {row['kept_ms']:7.1f} ms; "
                  f"all computed {row['off_ms']:7.1f} ({row['kept_ms'] / row['off_ms']:.2f})", flush=True)
    add_chunks(rows)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()

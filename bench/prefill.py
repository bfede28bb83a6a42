# SPDX-License-Identifier: Apache-2.0
"""What running requests notice of a long prompt, with prompts in steps with decode rows and on a node of their own.

Some requests decode; then a prompt of `--prompt-tokens` arrives. From its arrival to its first token the times between
the running requests' tokens are taken, as their clients see them, and before it, undisturbed. The clusters differ in
where prompts run and on which cores:
  inline     the compute node on core 0, the memory node on core 1; prompts in chunks of --chunks tokens
  dedicated  the same, and the prefill node on --prefill-cores
"""

import argparse
import json
import statistics
import subprocess
import time

import cluster
import processor
import remote
from programs import program
from readers import Readers, prompt_of

QUIET_SECONDS = 6.0  # Undisturbed, before the prompt.
PROMPT_SECONDS_MAX = 300


def summary(gaps):
    at = lambda share: gaps[min(len(gaps) - 1, int(share * len(gaps)))]
    return {"p50_ms": statistics.median(gaps), "p99_ms": at(0.99), "max_ms": gaps[-1], "tokens": len(gaps)}


def measure(arguments, name, chunk, prefill_cores):
    on = cluster.Remote(arguments.server) if arguments.server else cluster.Cluster(
        arguments.lanes, memory_nodes=1, chunk_tokens=chunk, prefill_cores=prefill_cores)
    with on as running:
        readers = Readers(running.address, [f"Once upon a time, {i}" for i in range(arguments.rows)], arguments.tokens)
        try:
            readers.read_until(lambda: all(len(times) > 16 for times in readers.pieces))
            quiet_begin = time.monotonic()
            readers.read_until(lambda: time.monotonic() - quiet_begin > QUIET_SECONDS)
            begin = time.monotonic()
            long = subprocess.Popen(
                [program("lamina"), "generate", "--server", running.address, "--prompt",
                 prompt_of(arguments.prompt_tokens), "--max-tokens", "1", "--ignore-eos", "--json"],
                stdout=subprocess.PIPE, text=True)
            readers.read_until(lambda: long.poll() is not None or time.monotonic() - begin > PROMPT_SECONDS_MAX)
            end = time.monotonic()
            answer = json.loads(long.communicate()[0])
        finally:
            readers.end()
        row = {"mode": name, "chunk_tokens": chunk, "prefill_cores": prefill_cores, "prompt_tokens": answer["prompt_tokens"],
               "first_token_seconds": end - begin, "quiet": summary(readers.gaps(quiet_begin, begin)),
               "during": summary(readers.gaps(begin, end))}
    quiet, during = row["quiet"], row["during"]
    rate = during["tokens"] / row["first_token_seconds"]
    chunks = f"chunks of {chunk:>3}: " if chunk else ""
    print(f"{name:<22} {chunks}undisturbed p50 {quiet['p50_ms']:6.1f} ms, p99 {quiet['p99_ms']:6.1f}; during "
          f"the prompt p50 {during['p50_ms']:6.1f}, p99 {during['p99_ms']:6.1f}, most {during['max_ms']:6.1f}; its "
          f"first token after {row['first_token_seconds']:.2f} s, {rate:.0f} tokens/s of the others meanwhile", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, default=8, help="requests that decode")
    parser.add_argument("--tokens", type=int, default=7000, help="of each of them: enough to outlast the prompt")
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="about")
    parser.add_argument("--lanes", default="auto")
    parser.add_argument("--chunks", default="512,64")
    parser.add_argument("--prefill-cores", default="1,0", help="of the prefill node, one after the other")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        remote.write(arguments.json, arguments.server, [measure(arguments, "as it is", None, None)])
        return
    print(f"machine {processor.machine()}; compute node on core 0, memory node on core 1, {arguments.rows} requests decode")
    rows = []
    for chunk in map(int, arguments.chunks.split(",")):
        rows.append(measure(arguments, "inline", chunk, None))
        for core in arguments.prefill_cores.split(","):
            rows.append(measure(arguments, f"dedicated on core {core}", chunk, core))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), "rows": rows}, out, indent=1)


if __name__ == "__main__":
    main()

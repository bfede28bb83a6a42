# SPDX-License-Identifier: Apache-2.0
"""How long running requests pause when a memory node is lost, and how many tokens are computed again.

Requests decode on three memory nodes; one is killed. A pause is the time between two pieces of text, as the client sees it, of which
the second is the first one after the next epoch began. It stands next to the time in which the next epoch was formed,
as the coordinator's log tells, and to two of the steps before.
With partition `request` a sequence lives on one node: those on others keep all of K and V. With `token_range` each one has spans on all.
"""

import argparse
import datetime
import json
import pathlib
import re
import statistics
import time

import cluster
import processor
from readers import Readers, prompt_of

LOST = "m2"
PIECES_BEFORE = 16
PIECES_AFTER = 8
QUIET_SECONDS = 5.0
SECONDS_MAX = 900


def logged(text, words):
    """When a line with these words was last written, in seconds."""
    stamps = re.findall(r"^(\S+) . coordinator " + words, text, re.M)
    if not stamps:
        raise RuntimeError(f"the coordinator has not logged '{words}'")
    return datetime.datetime.fromisoformat(stamps[-1]).timestamp()


def measure(arguments, partition):
    with cluster.Cluster(arguments.lanes, memory_nodes=3, prefix_cache="auto", partition=partition, kv_form=arguments.kv) as running:
        # Prompts that differ from their first token on: nobody finds another one's.
        prompts = [f"{i}. {prompt_of(arguments.context)}" for i in range(arguments.rows)]
        readers = Readers(running.address, prompts, arguments.tokens)
        begin = time.monotonic()
        try:
            readers.read_until(lambda: min(map(len, readers.pieces)) >= PIECES_BEFORE or time.monotonic() - begin > SECONDS_MAX)
            quiet = time.monotonic()
            readers.read_until(lambda: time.monotonic() - quiet > QUIET_SECONDS)
            before = running.status()
            killed = time.monotonic()
            undisturbed = readers.gaps(quiet, killed)
            running.kill(LOST)

            def after(times):
                return sum(1 for at in times if at > killed)

            readers.read_until(lambda: min(map(after, readers.pieces)) >= PIECES_AFTER or time.monotonic() - killed > SECONDS_MAX)
            status = running.status()
        finally:
            readers.end()
        log = (pathlib.Path(running.folder.name) / "coordinator.log").read_text()
    step = statistics.median(undisturbed) / 1e3
    served = logged(log, f"serving epoch {status['epoch']}")
    resumed = served - (time.time() - time.monotonic())
    pauses = sorted(next(b - a for a, b in zip(times, times[1:]) if b > resumed) for times in readers.pieces)
    slots = {node["name"]: node["slots_used"] for node in before["nodes"] if node["role"] == "memory"}
    return {"partition": partition, "rows": arguments.rows, "context": sum(slots.values()) / arguments.rows,
            "step_seconds": step,
            "forming_seconds": served - logged(log, f"lost {LOST}"),
            "epochs": status["epoch"] - before["epoch"], "pauses_seconds": pauses, "tokens_lost": slots[LOST],
            "tokens_computed": status["tokens_prefilled"] - before["tokens_prefilled"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, default=16, help="requests that decode")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each prompt, about")
    parser.add_argument("--tokens", type=int, default=3000, help="of each answer: enough to outlast the measurement")
    parser.add_argument("--lanes", default="2")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16", help="the form of K and V; int8 with --partitions request")
    parser.add_argument("--partitions", default="request,token_range")
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}; compute node on core 0, memory nodes on core 1\n")
    print("| partition | requests, tokens each | step, ms | epoch formed in, ms | forming and two steps, ms | shortest, median, longest pause, ms | "
          "tokens lost | computed again |\n" + "|---" * 8 + "|")
    results = []
    for partition in arguments.partitions.split(","):
        result = measure(arguments, partition)
        results.append(result)
        pauses = [1e3 * pause for pause in result["pauses_seconds"]]
        step, forming = 1e3 * result["step_seconds"], 1e3 * result["forming_seconds"]
        print(f"| {partition} | {result['rows']}, {result['context']:.0f} | {step:.0f} | {forming:.0f} | {forming + 2 * step:.0f} | "
              f"{pauses[0]:.0f}, {statistics.median(pauses):.0f}, {pauses[-1]:.0f} | {result['tokens_lost']} | {result['tokens_computed']} |", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": processor.machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()

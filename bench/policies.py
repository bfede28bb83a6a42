# SPDX-License-Identifier: Apache-2.0
"""How well policy auto chooses: decode steps of what it takes against those of each exact policy that the cluster can have.

A compute node on core 0 and a memory node on core 1, at the points of policy_points.json: SmolLM2, or a multi-head LLaMA of random weights;
rows and tokens of context; a bus that slows down what is fetched; memory nodes that are stores, or have little room; a compute node with room for
K and V, or little, or none; lanes, `auto` where a point names none. Each policy is measured by itself, in --turns turns, every second one backwards, and so is auto with
the point as `policy_load`, which has no prompts. fetch_hybrid by itself has settled on its share behind a load of its own before it is measured. Contexts grow while
answers are measured: a step is that at the point's context, by a line through three stretches. A choice holds if its policy's steps, auto's own or
by itself, are within 10% of the shortest. A cluster that fails is said, and the others go on; behind each point --json is written anew. Leave
the machine alone meanwhile: a turn takes some 15 minutes.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile

import cluster
import paper_shared
import processor
import random_llama
from results import write

HERE = pathlib.Path(__file__).resolve().parent
SHAPE = random_llama.Shape(layers=4, width=512, hidden=1024, heads=8, kv_heads=8)
POLICIES = ("attend_remote", "local", "fetch_heads", "fetch_recompute", "fetch_hybrid")
WINDOW = "512MiB"
NEAR = 0.10
START_IDLE_SECONDS = 1.0  # For auto to choose anew by the links that its first epoch has measured.


def tokens_in_memory(point, bytes_per_token):
    """So many has the memory node room for, of the multi-head model, with so many bytes in a layer."""
    number, unit = point["memory"][:-3], point["memory"][-3:]
    return int(number) * {"MiB": 1 << 20, "GiB": 1 << 30}[unit] // (SHAPE.layers * bytes_per_token)


def transport(point, number):
    """Of a bus of its own for each cluster: one that another has used is busy until a time of that."""
    return f"throttle(bandwidth={point['bus_mb'] * 1000 * 1000}B,bus=policies-{os.getpid()}-{number})+shm" if "bus_mb" in point else "shm"


class Sweep:
    def __init__(self, folder):
        self.models = {"smollm2": cluster.MODEL, "multi_head": folder}
        self.clusters = 0
        self.notes = []  # For a step that nobody expects: how many rows ran, and what each node did meanwhile.

    def cluster(self, point, policy):
        self.clusters += 1
        keys = {"memory_nodes": 1, "transport": transport(point, self.clusters), "model": self.models[point["model"]]}
        if "memory" in point:
            keys["capacity"] = point["memory"]
        lanes = point.get("lanes", "auto")
        if policy == "local":
            return cluster.Cluster(1, local=True, compute_capacity=point["compute"], **keys)
        if policy == "auto":
            return cluster.Cluster(lanes, auto_load=(point["rows"], point["context"], 0), compute_capacity=point.get("compute"),
                                   attend=point.get("attend", True), fetch=(None, {"window": WINDOW}), **keys)
        fetch = None if policy == "attend_remote" else (policy, {"window": WINDOW})
        return cluster.Cluster(lanes, attend=point.get("attend", True), fetch=fetch, **keys)

    def seconds(self, point, policy):
        """Seconds in which each of the point's rows gets a token, and the cluster's status before."""
        rows, context = point["rows"], point["context"]
        with self.cluster(point, policy) as running:
            if policy == "fetch_hybrid":
                paper_shared.settle_share(running, lambda: running.row_seconds(rows, context))
            status = running.settled(START_IDLE_SECONDS) if policy == "auto" else running.status()
            step = running.row_seconds(rows, context)
            self.note(point, policy, running)
            return step, status

    def note(self, point, policy, running):
        stretches = [{"tokens_per_second": one.tokens_per_second, "rows": one.rows, "context_tokens": one.context_tokens,
                      "shares": {f"{node} {part}": round(share, 3) for (node, part), share in one.shares.items() if share >= 0.01}}
                     for one in running.last_stretches]
        self.notes.append({"point": words(point), "policy": policy, "stretches": stretches})


def can_have(point, policy):
    if policy == "local":
        return "compute" in point
    if policy == "attend_remote":
        return point.get("attend", True)
    if policy == "fetch_heads" or point["model"] != "multi_head":
        return policy == "fetch_heads"
    # The memory node has to have room for a longest request, of which it keeps activations in addition to K and V.
    return (policy != "fetch_recompute" or "memory" not in point
            or tokens_in_memory(point, SHAPE.kv_bytes() + SHAPE.activation_bytes()) >= cluster.SEQUENCE_TOKENS_MAX)


def words(point):
    parts = [f"{point['model']}, {point['rows']} x {point['context']}"]
    parts += [f"bus {point['bus_mb']} MB/s"] if "bus_mb" in point else []
    parts += ["stores"] if not point.get("attend", True) else []
    parts += [f"room for {point['memory']} on the memory node"] if "memory" in point else []
    parts += [f"room for {point['compute']} on the compute node"] if "compute" in point else []
    parts += [f"{point['lanes']} lanes"] if "lanes" in point else []
    return ", ".join(parts)


def measure(sweep, point, turns):
    times = {policy: [] for policy in POLICIES if can_have(point, policy)}
    took, predicted, failed = [], {}, []
    asked = [*times, "auto"]
    for turn in range(turns):
        # Forth and back: a machine that becomes slower or faster favours none.
        for policy in asked if turn % 2 == 0 else reversed(asked):
            try:
                seconds, status = sweep.seconds(point, policy)
                if policy == "auto" and "policy" not in status:
                    raise RuntimeError("its status did not say what it took")
            except (RuntimeError, OSError) as error:
                print(f"{words(point)}: {policy} gave up: {error}", file=sys.stderr, flush=True)
                failed.append(policy)
                continue
            if policy != "auto":
                times[policy].append(seconds)
                continue
            took.append((status["policy"], seconds))
            predicted = {figure["policy"]: figure["seconds"] for figure in status["policy_figures"] if figure["seconds"] > 0}
    steps = {policy: statistics.median(values) for policy, values in times.items() if values}
    return {"point": point, "steps": steps, "took": took, "predicted": predicted, "failed": failed}


def report(result):
    """Prints the row of a table. Returns the fastest policy, and whether every choice holds; None for both where auto has failed."""
    alone, predicted = result["steps"], result["predicted"]
    figures = [f"{1e3 * alone[p]:.1f}, {1e3 * predicted.get(p, 0):.1f}" if p in alone else "failed" if p in result["failed"] else "" for p in POLICIES]
    if not result["took"]:
        print(f"| {words(result['point'])} | " + " | ".join(figures) + " | failed |  |  |", flush=True)
        return None, None
    chosen = sorted({policy for policy, _ in result["took"]})
    own = statistics.median(seconds for _, seconds in result["took"])
    # What auto took is one more measurement of that policy, with the share of activations that auto has settled.
    steps = dict(alone)
    for policy in chosen:
        steps[policy] = min(steps.get(policy, own), own)
    best = min(steps, key=steps.get)
    loss = max(steps[policy] / steps[best] - 1 for policy in chosen)
    holds = loss <= NEAR
    print(f"| {words(result['point'])} | " + " | ".join(figures) +
          f" | {' and '.join(chosen)}, {1e3 * own:.1f} | {best} | {100 * loss:+.0f}%{'' if holds else ' fails'} |", flush=True)
    return best, holds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here, anew after each point")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--points", default="", help="numbers from 1 on, like 3,4; all by default")
    arguments = parser.parse_args()
    points = json.loads((HERE / "policy_points.json").read_text())["points"]
    numbers = [int(text) for text in arguments.points.split(",") if text] or range(1, len(points) + 1)
    print(f"machine {processor.machine()}\n\nms a step: measured, predicted\n")
    print("| point | " + " | ".join(POLICIES) + " | auto took, ms | fastest | loss |\n|" + "---|" * (len(POLICIES) + 4))
    results, fastest, held = [], [], []
    with tempfile.TemporaryDirectory(prefix="lamina-policies-") as folder:
        random_llama.write(pathlib.Path(folder), SHAPE)
        sweep = Sweep(folder)
        for number in numbers:
            results.append(measure(sweep, points[number - 1], arguments.turns))
            write(arguments.json, {"machine": processor.machine(), "results": results, "notes": sweep.notes})
            best, holds = report(results[-1])
            if best is not None:
                fastest.append(best)
                held.append(holds)
    print(f"\n{sum(held)} of {len(held)} choices are within {100 * NEAR:.0f}% of the fastest policy; fastest: " +
          ", ".join(f"{policy} {fastest.count(policy)}" for policy in POLICIES))
    failed = sum(len(result["failed"]) for result in results)
    if failed:
        sys.exit(f"{failed} clusters failed, as said above; what they lack is left out")


if __name__ == "__main__":
    main()

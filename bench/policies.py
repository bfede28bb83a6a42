# SPDX-License-Identifier: Apache-2.0
"""How well policy auto chooses: decode steps of what it takes against those of each exact policy that the cluster can have.

A compute node on core 0 and a memory node on core 1, at the points of policy_points.json: SmolLM2, or a multi-head LLaMA of random weights;
rows and tokens of context; a bus that slows down what is fetched; memory nodes that are stores, or have little room; a compute node with room for
K and V, or little, or none; lanes, `auto` where a point names none. In each of --turns turns each policy is measured by itself, and so is auto with the
point as `policy_load`, which has no prompts; a turn begins with another one than the turn before. fetch_hybrid by itself has settled on its share behind a
load of its own before it is measured. Contexts grow while answers are measured: a step is that at the point's context, by a line through three stretches.

Policies are compared within turns: the median of the ratios counts. The fastest one is that of each policy by itself. A choice holds if its policy's
steps, the shorter of auto's own and those by itself, are within 10% of each other policy's. A cluster that fails is said, and the others go on. --json is
written anew behind each turn of a point; with --resume a run goes on where an earlier one ended, with turns that lack something measured anew, and
points that it is not asked for (--points) stay as they are. Leave the machine alone meanwhile: a turn of all points takes some 15 minutes.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

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
POINTS_LEAST = 2  # At so many each policy is to be the fastest.
MEASUREMENT_SECONDS = 21  # A cluster's start, prompts and stretches took so long on Zen 4, in the mean of all points.
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


def asked_at(point):
    return [*(policy for policy in POLICIES if can_have(point, policy)), "auto"]


def order(asked, turn, turns):
    """What is measured in a turn, in order: each begins elsewhere, so that a machine that becomes slower or faster favours none."""
    first = turn * len(asked) // turns
    return [*asked[first:], *asked[:first]]


def measure_turn(sweep, point, asked, say):
    """Seconds of a step of each, one after another."""
    turn = {"order": asked, "steps": {}, "auto": None, "predicted": {}, "failed": []}
    for policy in asked:
        say(f"{words(point)}: {policy}")
        try:
            seconds, status = sweep.seconds(point, policy)
            if policy == "auto" and "policy" not in status:
                raise RuntimeError("its status did not say what it took")
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f"{words(point)}: {policy} gave up: {error}", file=sys.stderr, flush=True)
            turn["failed"].append(policy)
            continue
        if policy != "auto":
            turn["steps"][policy] = seconds
            continue
        turn["auto"] = {"policy": status["policy"], "seconds": seconds}
        turn["predicted"] = {figure["policy"]: figure["seconds"] for figure in status["policy_figures"] if figure["seconds"] > 0}
    return turn


def result_of(point, turns):
    """The figures of a point: its turns, and medians of each policy by itself."""
    own = {policy: [turn["steps"][policy] for turn in turns if policy in turn["steps"]] for policy in POLICIES}
    return {"point": point, "turns": turns, "steps": {policy: statistics.median(values) for policy, values in own.items() if values},
            "took": [[turn["auto"]["policy"], turn["auto"]["seconds"]] for turn in turns if turn["auto"]],
            "predicted": next((turn["predicted"] for turn in reversed(turns) if turn["auto"]), {}),
            "failed": [policy for turn in turns for policy in turn["failed"]]}


def measure(sweep, point, turns, done=(), keep=lambda _: None, say=lambda _: None):
    """The figures of a point of which so many turns are `done`; keep(figures) behind each other turn, say(words) before each measurement."""
    found = list(done)
    while len(found) < turns:
        found.append(measure_turn(sweep, point, order(asked_at(point), len(found), turns), say))
        keep(result_of(point, found))
    return result_of(point, found)


def own_of_auto(turn, policy):
    """auto's own steps where it took the policy; None: it did not."""
    took = turn["auto"]
    return took["seconds"] if took and took["policy"] == policy else None


def alone(turn, policy):
    """Steps of a policy by itself, or auto's own where there are none."""
    return turn["steps"].get(policy, own_of_auto(turn, policy))


def shorter(turn, policy):
    """What auto took is one more measurement of that policy, with the share of activations that auto has settled."""
    return min((seconds for seconds in (turn["steps"].get(policy), own_of_auto(turn, policy)) if seconds is not None), default=None)


def over(turns, one, other):
    """Median of one(turn) over other(turn), of the turns that have both; None: there is no such turn."""
    pairs = [(one(turn), other(turn)) for turn in turns]
    ratios = [a / b for a, b in pairs if a is not None and b is not None]
    return statistics.median(ratios) if ratios else None


def measured_in(turns):
    return [policy for policy in POLICIES if any(alone(turn, policy) is not None for turn in turns)]


def ranking(turns):
    """[(policy, its steps over those of the fastest)], the fastest first. It is the one that is least behind any other."""
    seen = measured_in(turns)

    def behind(policy, others):
        ratios = (over(turns, functools.partial(alone, policy=policy), functools.partial(alone, policy=other)) for other in others)
        return max((ratio for ratio in ratios if ratio is not None), default=1.0)

    best = min(seen, key=lambda policy: behind(policy, seen))
    return sorted(((policy, behind(policy, [best])) for policy in seen), key=lambda one: (one[0] != best, one[1]))


def loss_of(turns, chosen):
    """By how much the steps of a policy that auto took are above those of any other."""
    ratios = [over(turns, functools.partial(shorter, policy=chosen), functools.partial(alone, policy=other)) for other in measured_in(turns) if other != chosen]
    return max([0.0, *(ratio - 1 for ratio in ratios if ratio is not None)])


def report(result):
    """Prints the row of a table. Returns the fastest policy, and whether every choice holds; None for both where auto has failed."""
    alone_ms, predicted = result["steps"], result["predicted"]
    figures = [f"{1e3 * alone_ms[p]:.1f}, {1e3 * predicted.get(p, 0):.1f}" if p in alone_ms else "failed" if p in result["failed"] else "" for p in POLICIES]
    if not result["took"]:
        print(f"| {words(result['point'])} | " + " | ".join(figures) + " | failed |  |  |", flush=True)
        return None, None
    chosen = sorted({policy for policy, _ in result["took"]})
    own = statistics.median(seconds for _, seconds in result["took"])
    (best, _), *others = ranking(result["turns"])
    next_one = f" ({others[0][0]} {others[0][1]:.2f})" if others else ""
    loss = max(loss_of(result["turns"], policy) for policy in chosen)
    holds = loss <= NEAR
    print(f"| {words(result['point'])} | " + " | ".join(figures) +
          f" | {' and '.join(chosen)}, {1e3 * own:.1f} | {best}{next_one} | {100 * loss:+.0f}%{'' if holds else ' fails'} |", flush=True)
    return best, holds


class Record:
    """The figures of each point so far, in a file that is written anew whenever there are others. `path` None: in none."""

    def __init__(self, path, notes):
        self.path, self.notes, self.results = path, notes, {}

    def resume(self, points, numbers):
        """Takes what an earlier run has written, but of the points with these numbers no turn in which a cluster has failed. Errors: ValueError of a file that
        is of another machine."""
        if self.path is None or not pathlib.Path(self.path).exists():
            return
        earlier = json.loads(pathlib.Path(self.path).read_text())
        if earlier.get("machine") != processor.machine():
            raise ValueError(f"{self.path} is of another machine: {earlier.get('machine')}")
        self.notes += earlier.get("notes", [])
        for result in earlier["results"]:
            point = result["point"]
            number = points.index(point) + 1 if point in points else None
            turns = [turn for turn in result.get("turns", []) if number not in numbers or not turn["failed"]]
            if number is not None and turns:
                self.results[number] = result_of(point, turns)
            else:
                print(f"{words(point)}: {'no point of this sweep' if number is None else 'no whole turn'}, left out", file=sys.stderr, flush=True)

    def turns(self, number):
        return self.results[number]["turns"] if number in self.results else []

    def keep(self, number, result):
        self.results[number] = result
        write(self.path, {"machine": processor.machine(), "results": [self.results[one] for one in sorted(self.results)], "notes": self.notes})


class Progress:
    """Says which measurement begins, and how long it and those behind it will take by those before."""

    def __init__(self, count):
        self.count, self.begun, self.begin = count, 0, time.monotonic()

    def minutes(self):
        each = (time.monotonic() - self.begin) / self.begun if self.begun else MEASUREMENT_SECONDS
        return (self.count - self.begun) * each / 60

    def say(self, text):
        left = self.minutes()
        self.begun += 1
        paper_shared.progress(self.begun, self.count, f"{text}; {left:.0f} min to go", sys.stderr)


def print_end(fastest, held, count):
    """`fastest`, `held`: of each point at which auto has been measured, of so many points."""
    print(f"\n{sum(held)} of {len(held)} choices are within {100 * NEAR:.0f}% of the fastest policy; fastest: " +
          ", ".join(f"{policy} {fastest.count(policy)}" for policy in POLICIES))
    few = [policy for policy in POLICIES if fastest.count(policy) < POINTS_LEAST]
    print(f"Each policy is to be the fastest at {POINTS_LEAST} points at least; " + (f"at fewer: {', '.join(few)}" if few else "it is") +
          (f"; {count - len(held)} of {count} points are not measured" if len(held) < count else ""))


def parse(points):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here, anew behind each turn of a point")
    parser.add_argument("--turns", type=int, default=1, help="in each turn all policies of a point are measured, and auto (default: 1)")
    parser.add_argument("--points", default="", help="numbers from 1 on, like 3,4; all by default")
    parser.add_argument("--resume", action="store_true", help="go on where --json ends; points that are not asked for stay as they are")
    arguments = parser.parse_args()
    if arguments.resume and not arguments.json:
        parser.error("--resume goes on with the file of --json")
    numbers = sorted({int(text) for text in arguments.points.split(",") if text}) or list(range(1, len(points) + 1))
    if arguments.turns < 1 or numbers[0] < 1 or numbers[-1] > len(points):
        parser.error(f"--turns: at least 1; --points: 1 to {len(points)}")
    return arguments, numbers


def main():
    points = json.loads((HERE / "policy_points.json").read_text())["points"]
    arguments, numbers = parse(points)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lamina-policies-") as folder:
        sweep = Sweep(folder)
        record = Record(arguments.json, sweep.notes)
        if arguments.resume:
            try:
                record.resume(points, numbers)
            except ValueError as error:
                sys.exit(f"policies: --resume: {error}")
        progress = Progress(sum(len(asked_at(points[number - 1])) * max(0, arguments.turns - len(record.turns(number))) for number in numbers))
        print(f"machine {processor.machine()}\n{len(numbers)} points, turns: {arguments.turns}, {progress.count} measurements to go, some {progress.minutes():.0f} minutes\n")
        random_llama.write(pathlib.Path(folder), SHAPE)
        print("ms a step: measured, predicted; behind the fastest policy the next one, and its steps over those of the fastest\n")
        print("| point | " + " | ".join(POLICIES) + " | auto took, ms | fastest | loss |\n|" + "---|" * (len(POLICIES) + 4), flush=True)
        fastest, held = [], []
        for number in sorted({*numbers, *record.results}):
            result = record.results.get(number)
            if number in numbers:
                result = measure(sweep, points[number - 1], arguments.turns, record.turns(number), functools.partial(record.keep, number), progress.say)
            best, holds = report(result)
            if best is not None:
                fastest.append(best)
                held.append(holds)
    print_end(fastest, held, len(points))
    print(f"It took {(time.monotonic() - began) / 60:.0f} minutes.")
    failed = sum(len(result["failed"]) for result in record.results.values())
    if failed:
        sys.exit(f"{failed} clusters failed, as said above; what they lack is left out")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Clusters that are compared in turns of one run.

All are started and given the same load: closed, so many rows of so much context. Then they decode in turns of some seconds each;
in the others' turns a cluster's processes are stopped (SIGSTOP), so that it takes nothing from the cores, and what disturbs
the machine disturbs all. A turn's step is its time by its steps, from one step's end to another's. Of the ratios of
neighbouring turns the median counts; the range shows the noise. From the second turn on a faster cluster has a shorter one, so that the
rows of all get as many tokens and attend to as many. What a cluster that was stopped has measured of itself, times of
slices or links, is wrong: what it would decide by them has to be given.
"""

import signal
import statistics
import time

import cluster
from floor import forms_of

SILENCE_SECONDS = 6.0  # Of a cluster whose turn it is not, at most: a node that is silent for 10 s is dropped.
ALIVE_SECONDS = 0.4  # For the nodes of one that waits to report.
SETTLE_SECONDS = 0.3


def point(text):
    rows, context = text.split("x")
    return int(rows), int(context)


def points(text):
    return [point(part) for part in text.split(",")]


def add_weights(parser):
    parser.add_argument("--weights", choices=("bf16", "packed", "auto"), default="bf16",
                        help="form of all sides' weights; auto: as each chooses when it starts, which may differ (default bf16)")


def form_of(arguments):
    """--weights as a key of clusters."""
    return None if arguments.weights == "auto" else arguments.weights


class Side:
    """A cluster that runs in its turns alone."""

    def __init__(self, name, row_share=1.0, draws=(), **keys):
        """`row_share`: of a comparison's rows, how many its load has. `draws`: flags of `lamina bench` that say how it draws tokens."""
        self.name = name
        self.row_share = row_share
        self.draws = draws
        self.chooses_weights = keys.get("weights") is None
        self.weights = ""  # The forms in which its compute node held them in its last turn.
        self.running = cluster.Cluster(**keys)

    def __enter__(self):
        self.running.__enter__()
        return self

    def __exit__(self, *exception):
        self.running.kill_load()
        self.resume()
        self.running.__exit__(*exception)

    def pause(self):
        for process in self.running.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self):
        for process in self.running.processes:
            process.send_signal(signal.SIGCONT)

    def turn(self, seconds):
        self.resume()
        time.sleep(SETTLE_SECONDS)
        stretch = self.running.stretch(seconds)
        self.weights = next((forms_of(node) for node in self.running.status().get("nodes", []) if node["role"] == "compute"), "")
        self.pause()
        return stretch


def begin(sides, rows, context):
    """All rows decode on all sides, and these are stopped."""
    ready = set()
    slice_seconds = SILENCE_SECONDS / max(1, len(sides) - 1)  # Of a cluster whose prompts are worked on.
    for side in sides:
        side.pause()
    while len(ready) < len(sides):
        for side in sides:
            side.resume()
            if side.running.load is None:
                side.running.begin_load(max(1, round(rows * side.row_share)), context, draws=side.draws)
            end = time.monotonic() + (ALIVE_SECONDS if side in ready else slice_seconds)
            while time.monotonic() < end:
                time.sleep(0.1)
                side.running.check_load()
                if side not in ready and side.running.all_decode():
                    ready.add(side)
                    break
            side.pause()


def end(sides):
    """No row is left on any; all run."""
    for side in sides:
        side.running.kill_load()
        side.resume()
    for side in sides:
        side.running.end_load()


def milliseconds(stretches, step):
    """{node: {part: ms of a step}} of a side's turns, without what is below a hundredth of the step; waits last."""
    mean = {}
    for stretch in stretches:
        whole = {}
        for (node, _), share in stretch.shares.items():
            whole[node] = whole.get(node, 0.0) + share
        for (node, part), share in stretch.shares.items():
            if whole[node] > 0:
                mean.setdefault(node, {}).setdefault(part, []).append(share / whole[node])
    return {node: {part: statistics.mean(values) * step * 1e3
                   for part, values in sorted(parts.items(), key=lambda p: (p[0].startswith("wait"), -sum(p[1])))
                   if statistics.mean(values) >= 0.01}
            for node, parts in mean.items()}


def seconds_of_turns(sides, stretches, seconds):
    """{side: seconds of its next turn} in which a row of each gets as many tokens. The slowest has so many seconds."""
    steps = {side.name: statistics.median(side.running.load_rows / one.tokens_per_second for one in stretches[side.name]) for side in sides}
    return {name: seconds * step / max(steps.values()) for name, step in steps.items()}


def warn_of_forms(sides):
    """Where sides that choose the forms of their weights have not chosen alike: each does so by what it measures when it starts."""
    if all(side.chooses_weights for side in sides) and len({side.weights for side in sides}) > 1:
        print("    weights differ, and ratios are of that too: " + "; ".join(f"{side.name} {side.weights}" for side in sides), flush=True)


def compare(sides, rows, context, turns, seconds):
    """Of each side the step, its parts, and the ratios of its step to the last side's in neighbouring turns."""
    begin(sides, rows, context)
    stretches = {side.name: [] for side in sides}
    spans = {side.name: seconds for side in sides}
    for i in range(turns):
        # Of three, turning the order round would leave the outer ones silent for four turns.
        for side in sides[::-1] if i % 2 == 1 and len(sides) == 2 else sides:
            stretches[side.name].append(side.turn(spans[side.name]))
        spans = seconds_of_turns(sides, stretches, seconds)
    warn_of_forms(sides)
    steps = {side.name: [side.running.load_rows / one.tokens_per_second for one in stretches[side.name]]
             for side in sides}
    found = {"rows": rows, "context": context}
    for side in sides:
        own = steps[side.name]
        step = statistics.median(own)
        ratios = [a / b for a, b in zip(own, steps[sides[-1].name])]
        found[side.name] = {
            "step_ms": step * 1e3, "tokens_per_second": side.running.load_rows / step, "ratio": statistics.median(ratios),
            "ratios": ratios, "parts_ms": milliseconds(stretches[side.name], step),
            "context_tokens": statistics.median(one.context_tokens for one in stretches[side.name]), "weights": side.weights}
    end(sides)
    return found


def words(parts):
    return "; ".join(f"{node}: " + ", ".join(f"{part} {ms:.2f}" for part, ms in of_node.items())
                     for node, of_node in parts.items())


def print_parts(found, names):
    for name in names:
        print(f"    {name}: {words(found[name]['parts_ms'])}", flush=True)



# SPDX-License-Identifier: Apache-2.0
"""Two lanes against one, on one compute and one memory core, next to the bound that an event simulation gives.

For every (rows, context), in turns (turns.py): the step of one lane with all rows, of two lanes with half of them each, and of
one lane with half of the rows, whose units run alone on the machine and give the simulation its times: a slice and the LM
head from the compute node's own counters, an attention from the memory node's. How much slower dense layers and attention are
side by side, since both cores share a memory, lamina-bench-contention measures at each point, with the same kernels and no
pipeline; the simulation (pipeline_model.py) slows its units so while both devices run. Columns:
  t_m, t_a, head   a slice, an attention, the LM head of half of the rows, in ms, and in brackets how much slower with the other
  gain      two lanes' tokens/s over one lane's, measured, median of neighbouring turns
  bound     the same, both simulated
  of bound  gain / bound. More than 1 where one lane loses more to waiting and waking than the simulation knows, or where a
            lane finds weights in a cache that the other has just read
  (sim)     the simulated step, in ms
Below each point: where the steps of one lane and of two went, by the nodes' own counters; waiting is what the bound leaves out.
With --vocabulary N the model is not the quick start's but one of its shape with N tokens and random weights
(small_vocabulary.py): the LM head, during which a single lane's memory node has nothing to do, is nearly gone.
All sides hold weights in the form of --weights; lamina-bench-contention multiplies bf16.
"""

import argparse
import json
import subprocess
import tempfile

import cluster
import processor
import pipeline_model
import remote
import small_vocabulary
from turns import Side, add_weights, compare, form_of, points, words
from programs import program

LAYERS = 30
SLICE_PARTS = ("dense", "beside", "send", "take")
ATTENTION_PARTS = ("store", "attend", "reply")


def contention(rows, context, vocabulary):
    """How much slower (dense layers, attention) of so many rows are side by side."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([program("lamina-bench-contention"), "--rows", str(rows), "--context", str(context),
                        "--vocabulary", str(vocabulary), "--json", out.name], check=True, stdout=subprocess.DEVNULL)
        found = json.load(open(out.name))
        return found["dense_slower"], found["attention_slower"]


def times_of(side, slower):
    """Of the units of a lane that was alone on the machine."""
    parts = {}
    for of_node in side["parts_ms"].values():
        for part, value in of_node.items():
            parts[part] = parts.get(part, 0.0) + value * 1e-3

    def spent(names):
        return sum(parts.get(name, 0.0) for name in names)

    return pipeline_model.Times(
        slice_seconds=spent(SLICE_PARTS) / LAYERS, attention_seconds=spent(ATTENTION_PARTS) / LAYERS,
        head_seconds=parts.get("head", 0.0), compute_slower=slower[0], memory_slower=slower[1])


def measure(sides, rows, context, arguments):
    before = contention(max(1, rows // 2), context, arguments.vocabulary)
    found = compare(sides, rows, context, arguments.turns, arguments.seconds)
    after = contention(max(1, rows // 2), context, arguments.vocabulary)
    slower = [(a + b) / 2 for a, b in zip(before, after)]
    half, one, two = (found[side.name] for side in sides)
    half_times = times_of(half, slower)
    # In one lane nothing overlaps with anything else.
    simulated = [pipeline_model.step_seconds(times_of(one, (1.0, 1.0)), 1, LAYERS),
                 pipeline_model.step_seconds(half_times, 2, LAYERS)]
    gain, bound = one["ratio"], simulated[0] / simulated[1]
    return {"rows": rows, "context": context, "one_lane_ms": one["step_ms"], "two_lanes_ms": two["step_ms"],
            "simulated_one_lane_ms": simulated[0] * 1e3, "simulated_two_lanes_ms": simulated[1] * 1e3,
            "gain": gain, "gains": one["ratios"], "bound": bound, "of_bound": gain / bound,
            "slice_ms": half_times.slice_seconds * 1e3, "attention_ms": half_times.attention_seconds * 1e3,
            "head_ms": half_times.head_seconds * 1e3, "dense_slower": slower[0], "attention_slower": slower[1],
            "dense_slower_before_after": [before[0], after[0]], "attention_slower_before_after": [before[1], after[1]],
            "one_lane_tokens_per_second": one["tokens_per_second"],
            "two_lanes_tokens_per_second": two["tokens_per_second"],
            "parts_ms": {side.name: found[side.name]["parts_ms"] for side in sides}}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the points here")
    parser.add_argument("--points", type=points, help="rows x context, ...",
                        default=points("4x128,16x128,64x128,4x512,16x512,64x512,4x1024,16x1024,32x1024,4x2048,16x2048"))
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--capacity", default="2GiB", help="for KV, of each cluster")
    add_weights(parser)
    parser.add_argument("--vocabulary", type=int, default=small_vocabulary.QUICK_START, help="of a random model")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        remote.steps(arguments.server, arguments.points, arguments.json)
        return
    print(f"machine   {processor.machine()}")
    print(f"{'rows':>5} {'context':>8} {'t_m':>14} {'t_a':>14} {'head':>6} {'one lane':>9} {'(sim)':>6} {'two lanes':>10} {'(sim)':>6}"
          f" {'gain':>6} {'bound':>6} {'of bound':>9}")
    measured = []
    with small_vocabulary.model(arguments.vocabulary) as model:
        keys = {"memory_nodes": 1, "chunks": 1, "capacity": arguments.capacity, "model": model, "weights": form_of(arguments)}
        with Side("one lane", lanes=1, **keys) as one, Side("half", row_share=0.5, lanes=1, **keys) as half, \
                Side("two lanes", lanes=2, **keys) as two:
            for rows, context in arguments.points:
                point = measure([half, one, two], rows, context, arguments)
                measured.append(point)
                print(f"{rows:5} {context:8} {point['slice_ms']:7.2f} ({point['dense_slower']:4.2f}) "
                      f"{point['attention_ms']:7.2f} ({point['attention_slower']:4.2f}) {point['head_ms']:6.2f} "
                      f"{point['one_lane_ms']:9.1f} {point['simulated_one_lane_ms']:6.1f} {point['two_lanes_ms']:10.1f} "
                      f"{point['simulated_two_lanes_ms']:6.1f} {point['gain']:6.2f} {point['bound']:6.2f} "
                      f"{point['of_bound']:9.2f}", flush=True)
                for side in (one, two):
                    print(f"    {side.name}: {words(point['parts_ms'][side.name])}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "weights": arguments.weights, "points": measured}, out, indent=1)


if __name__ == "__main__":
    main()

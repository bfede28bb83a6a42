# SPDX-License-Identifier: Apache-2.0
"""Two lanes against one, on one compute and one memory core, beside the bound that an event simulation gives.

For every (rows, context): the step of one lane with all rows, of two lanes with half of them each, and of one lane with half
of the rows, whose units run alone on the machine and give the simulation its times: a slice and the LM head from the
compute node's own counters, an attention from the memory node's. The simulation (pipeline_model.py) knows the bandwidth
of the memory that both cores share. Columns:
  gain      two lanes' tokens/s over one lane's, measured
  bound     the same, both simulated
  of bound  gain / bound. More than 1 where one lane loses more to waiting and waking than the simulation knows
  (sim)     the simulated step, in ms
"""

import argparse
import json

import cluster
import pipeline_model
from decode import KV_BYTES, bounds, integers

LAYERS = 30
LAYER_BYTES = 2 * 3.54e6  # SmolLM2-135M in bf16.
HEAD_BYTES = 2 * 28.3e6
SLICE_PARTS = ("dense", "beside", "send", "take")
ATTENTION_PARTS = ("store", "attend", "reply")


def measure(lanes, rows, context, tokens):
    """Seconds of a step, and {part: seconds of a step} summed over nodes."""
    with cluster.Cluster(lanes, memory_nodes=1, chunks=1) as running:
        stretch, report = running.decode_rate(rows, context, tokens)
    step = rows / stretch.tokens_per_second
    parts = {}
    for (_, part), share in stretch.shares.items():
        parts[part] = parts.get(part, 0.0) + share * step
    return step, parts, report


def times_of(parts, rows, context):
    """Of the units of a lane that was alone on the machine."""
    def spent(names):
        return sum(parts.get(name, 0.0) for name in names)

    return pipeline_model.Times(
        slice_seconds=spent(SLICE_PARTS) / LAYERS, attention_seconds=spent(ATTENTION_PARTS) / LAYERS,
        head_seconds=parts.get("head", 0.0), slice_bytes=LAYER_BYTES, head_bytes=HEAD_BYTES,
        attention_bytes=rows * context * KV_BYTES / LAYERS)


def point(rows, context, tokens, bandwidth):
    whole_step, whole_parts, whole_report = measure(1, rows, context, tokens)
    _, half_parts, _ = measure(1, rows // 2, context, tokens)
    lanes_step, _, lanes_report = measure(2, rows, context, tokens)
    middle = context + tokens / 2
    whole = times_of(whole_parts, rows, middle)
    half = times_of(half_parts, rows // 2, middle)
    simulated = [pipeline_model.step_seconds(whole, 1, LAYERS, bandwidth),
                 pipeline_model.step_seconds(half, 2, LAYERS, bandwidth)]
    gain, bound = whole_step / lanes_step, simulated[0] / simulated[1]
    return {"rows": rows, "context": context, "one_lane_ms": whole_step * 1e3, "two_lanes_ms": lanes_step * 1e3,
            "simulated_one_lane_ms": simulated[0] * 1e3, "simulated_two_lanes_ms": simulated[1] * 1e3,
            "gain": gain, "bound": bound, "of_bound": gain / bound,
            "slice_ms": half.slice_seconds * 1e3, "attention_ms": half.attention_seconds * 1e3,
            "head_ms": half.head_seconds * 1e3,
            "one_lane_tokens_per_second": rows / whole_step, "two_lanes_tokens_per_second": rows / lanes_step,
            "one_lane_itl_p50_ms": whole_report["itl_ms"]["p50"], "two_lanes_itl_p50_ms": lanes_report["itl_ms"]["p50"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the points here")
    parser.add_argument("--rows", type=integers, default=[4, 8, 16, 32])
    parser.add_argument("--context", type=integers, default=[128, 512, 1024])
    parser.add_argument("--tokens", type=int, default=160, help="of each answer")
    arguments = parser.parse_args()
    bandwidth = bounds()["read_bytes_per_second"]
    print(f"machine   {cluster.machine()}")
    print(f"bandwidth {bandwidth / 1e9:.1f} GB/s on all cores")
    print(f"{'rows':>5} {'context':>8} {'t_m ms':>7} {'t_a ms':>7} {'head ms':>8} {'one lane':>9} {'(sim)':>6} {'two lanes':>10} {'(sim)':>6}"
          f" {'gain':>6} {'bound':>6} {'of bound':>9}")
    points = []
    for context in arguments.context:
        for rows in arguments.rows:
            one = point(rows, context, arguments.tokens, bandwidth)
            points.append(one)
            print(f"{rows:5} {context:8} {one['slice_ms']:7.2f} {one['attention_ms']:7.2f} {one['head_ms']:8.2f} "
                  f"{one['one_lane_ms']:9.1f} {one['simulated_one_lane_ms']:6.1f} {one['two_lanes_ms']:10.1f} "
                  f"{one['simulated_two_lanes_ms']:6.1f} {one['gain']:6.2f} {one['bound']:6.2f} "
                  f"{one['of_bound']:9.2f}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": cluster.machine(), "read_bytes_per_second": bandwidth, "points": points}, out, indent=1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Steps of a running cluster against their floor, for rows x context.

The step time is rows / rate, the rate being that of the best of some stretches in which all rows decode. The floor is the larger of
  bytes: (weights, read once by each lane + K and V of all rows) / read bandwidth of all cores
  flops: 2 * parameters * rows / bf16 GEMM peak of the compute cores
both measured in the same run. Parts: what each node spent its time on within the same stretch, in ms of a step, from the
nodes' own counters; what a node takes for itself comes first, waiting last.
"""

import argparse
import json
import subprocess
import tempfile

import cluster

WEIGHT_BYTES = 269e6  # SmolLM2-135M in bf16.
PARAMETERS = 134.5e6
KV_BYTES = 23040  # A token, in all layers.


def integers(text):
    return [int(part) for part in text.split(",")]


def bounds():
    """Read bandwidth of all cores (bytes/s) and the GEMM peak of one core (flop/s)."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([cluster.BIN / "lamina-bench-bounds", "--json", out.name], check=True,
                       stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def parts_of(stretch, step_ms):
    """{node: {part: ms of a step}}, without what is below a hundredth of the step."""
    parts = {}
    for (node, part), share in sorted(stretch.shares.items(),
                                      key=lambda item: (item[0][1].startswith("wait"), -item[1])):
        if share >= 0.01:
            parts.setdefault(node, {})[part] = share * step_ms
    return parts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--rows", type=integers, default=[1, 16, 64])
    parser.add_argument("--context", type=integers, default=[128, 1024, 4096])
    parser.add_argument("--lanes", type=int, default=2)
    arguments = parser.parse_args()
    limits = bounds()
    print(f"machine   {cluster.machine()}")
    print(f"bandwidth {limits['read_bytes_per_second'] / 1e9:.1f} GB/s on all cores, "
          f"GEMM {limits['gemm_flops_per_second'] / 1e12:.2f} TFLOP/s on one core")
    print(f"{'rows':>5} {'context':>8} {'step ms':>8} {'floor ms':>9} {'floor/step':>10} {'tok/s':>8}"
          "  parts of a step, ms")
    rows_out = []
    with cluster.Cluster(arguments.lanes) as running:
        for rows in arguments.rows:
            for context in arguments.context:
                stretch = running.decode_rate(rows, context)
                rate = stretch.tokens_per_second
                step = rows / rate * 1e3
                lanes = min(arguments.lanes, rows)
                moved = WEIGHT_BYTES * lanes + stretch.context_tokens * KV_BYTES
                floor = 1e3 * max(moved / limits["read_bytes_per_second"],
                                  2 * PARAMETERS * rows / limits["gemm_flops_per_second"])
                parts = parts_of(stretch, step)
                row = {"rows": rows, "context": context, "context_tokens": stretch.context_tokens, "step_ms": step, "floor_ms": floor,
                       "ratio": floor / step, "tokens_per_second": rate,
                       "parts_ms": parts}
                rows_out.append(row)
                text = "; ".join(
                    f"{node}: " + ", ".join(f"{part} {ms:.1f}" for part, ms in of_node.items())
                    for node, of_node in parts.items())
                print(f"{rows:5} {context:8} {step:8.2f} {floor:9.2f} {floor / step:10.2f} "
                      f"{rate:8.0f}  {text}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": cluster.machine(), "bounds": limits, "rows": rows_out}, out, indent=1)


if __name__ == "__main__":
    main()

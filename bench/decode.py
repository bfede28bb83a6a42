# SPDX-License-Identifier: Apache-2.0
"""Steps of a running cluster against their floor (floor.py), for rows x context.

The step time is rows / rate, the rate being that of the best of some stretches in which all rows decode. Parts: what each
node spent its time on within the same stretch, in ms of a step, from the nodes' own counters; what a node takes for itself
comes first, waiting last.
"""

import argparse
import json

import cluster
import processor
import remote
from floor import bounds, bounds_text, floor_ms, parts_of, parts_text


def integers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--rows", type=integers, default=[1, 16, 64])
    parser.add_argument("--context", type=integers, default=[128, 1024, 4096])
    parser.add_argument("--lanes", type=int, default=2)
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        remote.steps(arguments.server, [(rows, context) for rows in arguments.rows for context in arguments.context], arguments.json)
        return
    limits = bounds()
    print(f"machine   {processor.machine()}")
    print(bounds_text(limits))
    print(f"{'rows':>5} {'context':>8} {'step ms':>8} {'floor ms':>9} {'floor/step':>10} {'tok/s':>8}"
          "  parts of a step, ms")
    rows_out = []
    with cluster.Cluster(arguments.lanes) as running:
        for rows in arguments.rows:
            for context in arguments.context:
                stretch = running.decode_rate(rows, context)
                rate = stretch.tokens_per_second
                step = rows / rate * 1e3
                floor = floor_ms(limits, rows, stretch.context_tokens, arguments.lanes)
                parts = parts_of(stretch, step)
                row = {"rows": rows, "context": context, "context_tokens": stretch.context_tokens, "step_ms": step, "floor_ms": floor,
                       "ratio": floor / step, "tokens_per_second": rate,
                       "parts_ms": parts}
                rows_out.append(row)
                print(f"{rows:5} {context:8} {step:8.2f} {floor:9.2f} {floor / step:10.2f} "
                      f"{rate:8.0f}  {parts_text(parts)}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "bounds": limits, "rows": rows_out}, out, indent=1)


if __name__ == "__main__":
    main()

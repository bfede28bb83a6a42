# SPDX-License-Identifier: Apache-2.0
"""Steps of a running cluster against their floor (floor.py), for rows x context, with two pools and on one node.

The step time is rows / rate, the rate being that of the best of some stretches in which all rows decode; reads are measured before each
point and behind it. From 16 rows on floor / step is to be 0.75 or more, below 0.55. Parts: what each node spent its time on within the
same stretch, in ms of a step, from the nodes' own counters; what a node takes for itself comes first, waiting last.
"""

import argparse
import datetime
import sys

import cluster
import processor
import remote
from floor import arrangement_of, bar_of, better_reads, bounds, bounds_text, floor_ms, parts_of, parts_text, reads_now
from results import write

POINTS = "1:1024,16:1024,64:512,64:1024,32:2048,16:4096"
POLICIES = {"pools": {"capacity": "2GiB"}, "local": {"local": True, "compute_cores": "0-1", "capacity": "4GiB"}}


def integers(text):
    return [int(part) for part in text.split(",")]


def points(text):
    return [tuple(int(part) for part in point.split(":")) for point in text.split(",")]


def policies(text):
    names = text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown policy {', '.join(unknown)}; known: {', '.join(POLICIES)}")
    return names


def measure(running, policy, point, limits):
    """What is written of a point, and the reads behind it."""
    rows, context = point
    before = reads_now(limits)
    stretch = running.decode_rate(rows, context)
    limits = better_reads(before, reads_now(limits))
    step = rows / stretch.tokens_per_second * 1e3
    arrangement = arrangement_of(running)
    floor = floor_ms(limits, rows, stretch.context_tokens, arrangement)
    return {"policy": policy, "rows": rows, "context": context, "context_tokens": stretch.context_tokens, "lanes": arrangement.lanes,
            "weight_bytes": arrangement.weight_bytes, "bounds": limits, "step_ms": step, "floor_ms": floor, "ratio": floor / step,
            "bar": bar_of(rows), "tokens_per_second": stretch.tokens_per_second, "parts_ms": parts_of(stretch, step)}


def words(row):
    verdict = "reached" if row["ratio"] >= row["bar"] else "missed"
    return (f"{row['policy']:>6} {row['rows']:5} {row['context']:8} {row['lanes']:5} {row['step_ms']:8.2f} {row['floor_ms']:9.2f} "
            f"{row['ratio']:10.2f} {row['bar']:5.2f} {verdict:>7} {row['bounds']['read_bytes_per_second'] / 1e9:6.1f} "
            f"{row['tokens_per_second']:8.0f}  {parts_text(row['parts_ms'])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here, anew after each point")
    parser.add_argument("--points", type=points, default=points(POINTS), help=f"rows:context,rows:context (default {POINTS})")
    parser.add_argument("--rows", type=integers, help="with --context, instead of --points: each with each")
    parser.add_argument("--context", type=integers)
    parser.add_argument("--policies", type=policies, default=list(POLICIES), help=f"of {','.join(POLICIES)} (default both)")
    parser.add_argument("--lanes", default="auto", help="of two pools: a number or auto (default auto)")
    parser.add_argument("--weights", help="packed, bf16 or int8 (default: as the cluster chooses)")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if (arguments.rows is None) != (arguments.context is None):
        parser.error("--rows and --context go together")
    where = arguments.points if arguments.rows is None else [(rows, context) for rows in arguments.rows for context in arguments.context]
    if arguments.server:
        remote.steps(arguments.server, where, arguments.json)
        return
    limits = bounds()
    print(f"machine   {processor.machine()}")
    print(bounds_text(limits))
    print(f"{'policy':>6} {'rows':>5} {'context':>8} {'lanes':>5} {'step ms':>8} {'floor ms':>9} {'floor/step':>10} {'bar':>5} {'':>7} "
          f"{'GB/s':>6} {'tok/s':>8}  parts of a step, ms")
    found = {"machine": processor.machine(), "date": str(datetime.date.today()), "bounds": limits, "rows": []}
    for policy in arguments.policies:
        lanes = arguments.lanes if policy == "pools" else "auto"
        try:
            with cluster.Cluster(lanes, weights=arguments.weights, **POLICIES[policy]) as running:
                for point in where:
                    found["rows"].append(measure(running, policy, point, limits))
                    print(words(found["rows"][-1]), flush=True)
                    write(arguments.json, found)
        except RuntimeError as error:
            sys.exit(f"{policy} gave up: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory nodes against policy local, on the same cores, in turns of one run.

How turns are taken: turns.py. All sides hold weights in the form of --weights, bf16 by default: left to themselves, one node may keep the file's
blocks and two pools bf16.

  tax    compute and memory node on the same cores, one lane, over shm, against policy local on these cores: what it costs
         that attention is another process. tax = step over shm / step of policy local - 1
  pools  a compute node on core 0 and a memory node on core 1, with one lane and with two, against policy local on both
         cores. gain = tokens/s of two pools / tokens/s of policy local. The number of lanes is given, since `auto` goes by
         measured times, and those of a cluster that was stopped are wrong
"""

import argparse
import json

import cluster
import processor
import remote
from turns import Side, add_weights, compare, form_of, points, print_parts


def keys_of(arguments):
    """What all sides have alike."""
    return {"capacity": arguments.capacity, "weights": form_of(arguments)}


def tax(arguments):
    cores = arguments.cores
    print(f"tax: cores {cores} for all, one lane")
    rows_out = []
    keys = keys_of(arguments)
    with Side("shm", lanes=1, compute_cores=cores, memory_cores=cores, memory_nodes=1, **keys) as shm, \
            Side("local", lanes="auto", compute_cores=cores, local=True, **keys) as local:
        for rows, context in arguments.tax_points:
            found = compare([shm, local], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            ratios = [100 * (ratio - 1) for ratio in found["shm"]["ratios"]]
            print(f"{rows:3} rows of {context:4}: shm {found['shm']['step_ms']:7.2f} ms, local "
                  f"{found['local']['step_ms']:7.2f} ms, tax {100 * (found['shm']['ratio'] - 1):+.1f}% "
                  f"({min(ratios):+.1f} to {max(ratios):+.1f})")
            print_parts(found, ("shm", "local"))
    return rows_out


def pools(arguments):
    print("pools: compute on core 0, memory on core 1, one lane and two, against local on both cores")
    rows_out = []
    keys = keys_of(arguments)
    with Side("one lane", lanes=1, memory_nodes=1, **keys) as one, \
            Side("two lanes", lanes=2, memory_nodes=1, **keys) as two, \
            Side("local", lanes="auto", compute_cores="0-1", local=True, **keys) as local:
        for rows, context in arguments.pool_points:
            found = compare([one, two, local], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            local_rate = found["local"]["tokens_per_second"]
            print(f"{rows:3} rows of {context:4}: local {local_rate:7.1f} tok/s")
            for name in (one.name, two.name):
                gains = [1 / ratio for ratio in found[name]["ratios"]]
                print(f"    {name} {found[name]['tokens_per_second']:7.1f} tok/s, gain {1 / found[name]['ratio']:.2f} "
                      f"({min(gains):.2f} to {max(gains):.2f})")
            print_parts(found, (one.name, two.name, local.name))
    return rows_out


PARTS = {"tax": tax, "pools": pools}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--parts", default="tax,pools", type=lambda text: text.split(","))
    parser.add_argument("--tax-points", type=points, default=points("16x1024,64x512"), help="rows x context, ...")
    parser.add_argument("--pool-points", type=points, help="the same, of pools",
                        default=points("1x1024,4x1024,16x128,16x1024,16x4096,64x128,64x512,64x1024"))
    parser.add_argument("--cores", default="0", help="of tax")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--capacity", default="3GiB", help="for KV, of each cluster")
    add_weights(parser)
    cluster.add_server(parser)
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"--parts: '{part}' is not one of {', '.join(PARTS)}")
    if arguments.server:
        wanted = {"tax": arguments.tax_points, "pools": arguments.pool_points}
        remote.steps(arguments.server, [point for part in arguments.parts for point in wanted[part]], arguments.json)
        return
    print(f"machine   {processor.machine()}")
    found = {part: PARTS[part](arguments) for part in arguments.parts}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "weights": arguments.weights, "turn_seconds": arguments.seconds, **found}, out, indent=1)


if __name__ == "__main__":
    main()

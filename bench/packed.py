#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights in the blocks of their GGUF file against bf16: layers, and decoding of the quick start's model on the same cores.

Layers come first (lamina-bench-packed). Then two clusters decode in turns of one run (turns.py), policy local on --cores, or a compute
node on core 0 with a memory node on core 1 with --pools. gain = tokens/s with packed weights / tokens/s with bf16.
"""

import argparse
import json
import subprocess

import processor
from programs import BIN, need
from turns import Side, compare, points, print_parts


def layers(arguments):
    need("lamina-bench-packed")
    subprocess.run([BIN / "lamina-bench-packed", "--threads", "1", "--only", arguments.layers], check=True)


def sides(arguments):
    keys = ({"lanes": 1, "memory_nodes": 1} if arguments.pools
            else {"lanes": "auto", "compute_cores": arguments.cores, "local": True})
    return [Side(weights, weights=weights, capacity=arguments.capacity, **keys) for weights in ("packed", "bf16")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--layers", default="smollm2", help="part of the layers' names; `none` for no layers")
    parser.add_argument("--points", type=points, default=points("1x1024,4x1024,16x1024"), help="rows x context")
    parser.add_argument("--pools", action="store_true", help="a compute node with a memory node")
    parser.add_argument("--cores", default="0-1", help="of the compute node, without --pools")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--capacity", default="1GiB", help="for KV")
    arguments = parser.parse_args()
    print(f"machine   {processor.machine()}", flush=True)
    if arguments.layers != "none":
        layers(arguments)
    rows_out = []
    packed, bf16 = sides(arguments)
    with packed, bf16:
        for side in (packed, bf16):
            nodes = side.running.status().get("nodes", [])
            print(f"{side.name}: " + next((node["kernels"] for node in nodes if node.get("role") == "compute"), ""))
        for rows, context in arguments.points:
            found = compare([packed, bf16], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            gains = [1 / ratio for ratio in found["packed"]["ratios"]]
            print(f"{rows:3} rows of {context:4}: packed {found['packed']['tokens_per_second']:7.1f} tokens/s, bf16 "
                  f"{found['bf16']['tokens_per_second']:7.1f}, gain {1 / found['packed']['ratio']:.2f} "
                  f"({min(gains):.2f} to {max(gains):.2f})", flush=True)
            print_parts(found, ("packed", "bf16"))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "rows": rows_out}, out, indent=1)


if __name__ == "__main__":
    main()

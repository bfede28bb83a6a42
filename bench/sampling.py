# SPDX-License-Identifier: Apache-2.0
"""Decoding that draws its tokens against greedy decoding, in turns on the same cores (turns.py), of the quick start's model.

Policy local on --cores, or a compute node on core 0 with a memory node on core 1 with --pools. Slower = step with draws / greedy step - 1;
3% at most are asked for. `bench/run.sh dense -- --only sample` measures the draw of a row alone.
"""

import argparse

import processor
from results import write
from turns import Side, compare, points, print_parts

SLOWER_MAX = 0.03


def verdict(found):
    """How much slower draws are, by the median of turns, and in words."""
    ratios = found["drawn"]["ratios"]
    slower = found["drawn"]["ratio"] - 1
    within = "within" if slower <= SLOWER_MAX else "more than"
    return slower, (f"{found['rows']:3} rows of {found['context']:4}: drawn {found['drawn']['tokens_per_second']:7.1f} tokens/s, greedy "
                    f"{found['greedy']['tokens_per_second']:7.1f}, slower by {100 * slower:.1f}% ({100 * (min(ratios) - 1):.1f} to "
                    f"{100 * (max(ratios) - 1):.1f}), {within} {100 * SLOWER_MAX:.0f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--points", type=points, default=points("16x1024"), help="rows x context (default 16x1024)")
    parser.add_argument("--temperature", default="1")
    parser.add_argument("--top-p", default="0.9")
    parser.add_argument("--pools", action="store_true", help="a compute node with a memory node")
    parser.add_argument("--cores", default="0-1", help="of the compute node, without --pools")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--capacity", default="1GiB", help="for KV")
    arguments = parser.parse_args()
    print(f"machine   {processor.machine()}", flush=True)
    keys = {"capacity": arguments.capacity, **({"lanes": 1, "memory_nodes": 1} if arguments.pools
                                               else {"lanes": "auto", "compute_cores": arguments.cores, "local": True})}
    draws = ("--temperature", arguments.temperature, "--top-p", arguments.top_p)
    rows = []
    with Side("drawn", draws=draws, **keys) as drawn, Side("greedy", **keys) as greedy:
        for count, context in arguments.points:
            found = compare([drawn, greedy], count, context, arguments.turns, arguments.seconds)
            found["slower"], words = verdict(found)
            print(words, flush=True)
            print_parts(found, ("drawn", "greedy"))
            rows.append(found)
            write(arguments.json, {"machine": processor.machine(), "draws": draws, "rows": rows})


if __name__ == "__main__":
    main()

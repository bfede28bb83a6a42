# SPDX-License-Identifier: Apache-2.0
"""Many threads on few cores: a node of 16 threads on two cores against one of two, in turns (turns.py), of the quick start's model.

Policy local. Lost = 1 - tokens/s with 16 threads / tokens/s with two. At most 10% are asked for at 64 rows of 1,024 tokens, where work is
enough for all, and 40% at one row.
"""

import argparse

import processor
from results import write
from turns import Side, compare, points, print_parts

LOST_MAX_OF_MANY, LOST_MAX_OF_ONE = 0.1, 0.4


def verdict(found):
    """What is lost, by the median of turns, and in words."""
    many, few = found["many"], found["few"]
    lost = 1 - 1 / many["ratio"]
    most = LOST_MAX_OF_ONE if found["rows"] == 1 else LOST_MAX_OF_MANY
    losses = [1 - 1 / ratio for ratio in many["ratios"]]
    return lost, (f"{found['rows']:3} rows of {found['context']:4}: many threads {many['tokens_per_second']:7.1f} tokens/s, few "
                  f"{few['tokens_per_second']:7.1f}, lost {100 * lost:.1f}% ({100 * min(losses):.1f} to {100 * max(losses):.1f}), "
                  f"{'within' if lost <= most else 'more than'} {100 * most:.0f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--points", type=points, default=points("1x1024,64x1024"), help="rows x context (default 1x1024,64x1024)")
    parser.add_argument("--many", type=int, default=16, help="threads of the one (default 16)")
    parser.add_argument("--few", type=int, default=2, help="threads of the other (default 2)")
    parser.add_argument("--cores", default="0-1", help="of both")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    parser.add_argument("--capacity", default="3GiB", help="for KV, of each")
    arguments = parser.parse_args()
    print(f"machine   {processor.machine()}", flush=True)
    keys = {"lanes": "auto", "compute_cores": arguments.cores, "local": True, "capacity": arguments.capacity}
    rows = []
    with Side("many", threads=arguments.many, **keys) as many, Side("few", threads=arguments.few, **keys) as few:
        for count, context in arguments.points:
            found = compare([many, few], count, context, arguments.turns, arguments.seconds)
            found["lost"], words = verdict(found)
            print(words, flush=True)
            print_parts(found, ("many", "few"))
            rows.append(found)
            write(arguments.json, {"machine": processor.machine(), "threads": [arguments.many, arguments.few], "rows": rows})


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How much of the network's time is hidden, on a link that is throttled so that it takes a share of the step.

Each of these is a cluster of one compute and one memory node, a core each; the step time is rows / rate, the rate being that
of the best stretch in which all rows decode:
  free       shm as it is, rows in one chunk: what the step takes without a network
  serial     throttled, one lane, rows in one chunk: nothing overlaps; serial - free is the network's time
  overlapped throttled, rows in chunks; 1 - (overlapped - free) / (serial - free) is hidden
With more lanes `free` is taken with as many, since lanes overlap slices and attentions too.
"""

import argparse
import json

import cluster

LAYERS = 30
ROW_BYTES = (2 * 960, 2 * 576)  # q, k, v out and the output back: SmolLM2-135M, each layer.


def step_seconds(arguments, lanes, transport, chunks):
    """Seconds of a step, and what the cluster says of its chunks while all rows decode."""
    with cluster.Cluster(lanes, memory_nodes=1, transport=transport, chunks=chunks) as running:
        stretch, _ = running.decode_rate(arguments.rows, arguments.context, arguments.tokens)
        return arguments.rows / stretch.tokens_per_second, running.chunk_choice


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--share", type=float, default=1 / 3, help="of the serial step that the link takes")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--chunks", default="auto")
    parser.add_argument("--bandwidth", type=float, help="bytes/s, instead of one by --share")
    arguments = parser.parse_args()
    print(f"machine {cluster.machine()}")
    free, _ = step_seconds(arguments, 1, "shm", 1)
    network_bytes = arguments.rows * LAYERS * sum(ROW_BYTES)
    # Each direction has a link of its own, and nothing else runs while one is used.
    bandwidth = arguments.bandwidth or network_bytes / (free * arguments.share / (1 - arguments.share))
    link = f"throttle(bandwidth={int(bandwidth)}B)+shm"
    serial, _ = step_seconds(arguments, 1, link, 1)
    network = serial - free
    print(f"{arguments.rows} rows of {arguments.context}: free {free * 1e3:.1f} ms a step; at {bandwidth / 1e6:.1f} MB/s serial "
          f"{serial * 1e3:.1f} ms: the network takes {network * 1e3:.1f} ms, {network / serial:.2f} of the step")
    base = free if arguments.lanes == 1 else step_seconds(arguments, arguments.lanes, "shm", 1)[0]
    overlapped, choice = step_seconds(arguments, arguments.lanes, link, arguments.chunks)
    hidden = 1 - (overlapped - base) / network
    print(f"{arguments.lanes} lane(s), chunks {arguments.chunks}: free {base * 1e3:.1f} ms, overlapped {overlapped * 1e3:.1f} ms: "
          f"{hidden:.2f} of the network's time is hidden")
    print(f"rows leave in {choice}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": cluster.machine(), "arguments": vars(arguments), "free_ms": free * 1e3,
                       "bandwidth": bandwidth, "serial_ms": serial * 1e3, "base_ms": base * 1e3,
                       "overlapped_ms": overlapped * 1e3, "hidden": hidden, "choice": choice}, out, indent=1)


if __name__ == "__main__":
    main()

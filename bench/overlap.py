# SPDX-License-Identifier: Apache-2.0
"""How much of the network's time is hidden, on a link that is throttled so that it takes a share of the step.

Each of these is a cluster of one compute and one memory node with one lane, a core each:
  free       shm as it is, rows in one chunk: what the step takes without a network
  serial     throttled, rows in one chunk: nothing overlaps
  overlapped throttled, rows in chunks
Exposed is, of a step, the time that the compute node waits for attention less the time that the memory node works: what
neither of them does anything in. It is taken from the nodes' own counters, in the stretch with the best rate, so that it does
not depend on how fast slices and attentions happened to be. The network's time is exposed(serial) - exposed(free), and
1 - (exposed(overlapped) - exposed(free)) / that is hidden.
"""

import argparse
import json

import cluster
import processor
import remote

LAYERS = 30
ROW_BYTES = (2 * 960, 2 * 576)  # q, k, v out and the output back: SmolLM2-135M, each layer.


WORK_PARTS = ("store", "attend", "reply")


def measure(arguments, transport, chunks, query_first="auto"):
    """Milliseconds of a step and of what is exposed in it, and the cluster's own words on its chunks."""
    with cluster.Cluster(1, memory_nodes=1, transport=transport, chunks=chunks,
                         query_first=query_first) as running:
        stretch = running.decode_rate(arguments.rows, arguments.context)
        step = arguments.rows / stretch.tokens_per_second * 1e3
        waited = stretch.shares.get(("c0", "wait_attention"), 0.0) * step
        worked = sum(stretch.shares.get(("m0", part), 0.0) for part in WORK_PARTS) * step
        print(f"{transport}, chunks {chunks}: step {step:.1f} ms, waits {waited:.1f}, attention {worked:.1f}, exposed "
              f"{waited - worked:.1f}; {running.chunk_choice}", flush=True)
        return step, waited - worked, running.chunk_choice


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--share", type=float, default=1 / 3, help="of the serial step that the link takes")
    parser.add_argument("--chunks", default=["auto"], type=lambda text: text.split(","))
    parser.add_argument("--bandwidth", type=float, help="bytes/s, instead of one by --share")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        remote.steps(arguments.server, [(arguments.rows, arguments.context)], arguments.json)
        return
    print(f"machine {processor.machine()}")
    free_step, free, _ = measure(arguments, "shm", 1, "never")
    network_bytes = arguments.rows * LAYERS * sum(ROW_BYTES)
    # Each direction has a link of its own, and nothing else runs while one is used.
    bandwidth = arguments.bandwidth or network_bytes / (free_step * 1e-3 * arguments.share / (1 - arguments.share))
    link = f"throttle(bandwidth={int(bandwidth)}B)+shm"
    serial_step, serial, _ = measure(arguments, link, 1, "never")
    network = serial - free
    print(f"{arguments.rows} rows of {arguments.context}: the network takes {network:.1f} ms, {network / serial_step:.2f} of the "
          "serial step")
    rows = []
    for chunks in arguments.chunks:
        step, exposed, choice = measure(arguments, link, chunks)
        hidden = 1 - (exposed - free) / network
        print(f"chunks {chunks}: {hidden:.2f} of the network's time is hidden")
        rows.append({"chunks": chunks, "step_ms": step, "exposed_ms": exposed, "hidden": hidden, "choice": choice})
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), "free_ms": free_step,
                       "free_exposed_ms": free, "bandwidth": bandwidth, "serial_ms": serial_step,
                       "serial_exposed_ms": serial, "overlapped": rows}, out, indent=1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""What a timeline costs: tokens/s of a steady load while it is recorded, and while it is not, in turns.

Collecting and writing the file come after each window and are not in the figures.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time

import cluster
import processor
from programs import program

EDGE_SECONDS = 0.3  # Of each window: until recording has begun, and before it ends.


def tokens_per_second(running, seconds):
    """From the end of one step to that of another."""
    start, before = running.step_end()
    time.sleep(seconds)
    end, after = running.step_end()
    return (after - before) / (end - start)


def begin(running, arguments):
    """All rows decode when it returns, and do so for all turns."""
    longest = None if arguments.server else cluster.SEQUENCE_TOKENS_MAX - arguments.context
    running.begin_load(arguments.rows, arguments.context, answer_tokens=longest)
    while not running.all_decode():
        time.sleep(0.1)
    time.sleep(cluster.SETTLE_SECONDS)


def traced(running, seconds, path):
    recording = subprocess.Popen(
        [program("lamina"), "trace", "--json", "--server", running.address, "--seconds",
         str(seconds + 2 * EDGE_SECONDS), "--output", path], stdout=subprocess.PIPE, text=True)
    time.sleep(EDGE_SECONDS)
    rate = tokens_per_second(running, seconds)
    return rate, json.loads(recording.communicate()[0])["nodes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    parser.add_argument("--turns", type=int, default=10)
    cluster.add_server(parser)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    subprocess.run([program("lamina-bench-interval")], check=True)
    with cluster.Remote(arguments.server) if arguments.server else cluster.Cluster(lanes=2) as running, \
            tempfile.TemporaryDirectory(prefix="lamina-trace-") as folder:
        begin(running, arguments)
        try:
            path = f"{folder}/trace.json"
            ratios, rates, events = [], {"off": [], "on": []}, []
            errors, shifts = [], []
            for _ in range(arguments.turns):
                off = tokens_per_second(running, arguments.seconds)
                on, nodes = traced(running, arguments.seconds, path)
                later = tokens_per_second(running, arguments.seconds)
                # Contexts grow, so a window is compared with those on both sides of it.
                ratios.append(2 * on / (off + later))
                rates["off"] += [off, later]
                rates["on"].append(on)
                events.append(sum(node["events"] + node["dropped"] for node in nodes))
                errors.append(max(node["clock_error_us"] for node in nodes))
                shifts.append(max(abs(node["clock_shift_us"]) for node in nodes))
        finally:
            running.kill_load()
    figures = {"machine": processor.machine(), "rows": arguments.rows, "context": arguments.context,
               "off": statistics.median(rates["off"]), "on": statistics.median(rates["on"]),
               "ratio": statistics.median(ratios), "ratios": sorted(ratios),
               "events": statistics.median(events), "clock_error_us": statistics.median(errors),
               "clock_shift_us": statistics.median(shifts)}
    print(f"{arguments.rows} rows: {figures['off']:.1f} tokens/s off, {figures['on']:.1f} on; on / off "
          f"{figures['ratio']:.4f} (median of {arguments.turns}, {min(ratios):.4f} to {max(ratios):.4f}); "
          f"{figures['events']:.0f} events a window")
    print(f"clocks of this one host: pings say to within {figures['clock_error_us']:.1f} us, the data moves "
          f"them by {figures['clock_shift_us']:.1f} us (medians of the worst node)")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(figures, out)


if __name__ == "__main__":
    main()

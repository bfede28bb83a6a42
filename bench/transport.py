#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put and signal between two processes, each transport against the least that the machine, or UCX, needs.

Latency: lamina-bench-transport, which takes the bare version in turns with ours. Bandwidth over ucx: against
Debian's ucx_perftest, run in turns with ours.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import processor
from programs import program

URIS = ["shm://", "ucx://sm", "ucx://tcp"]
MIB = 1 << 20  # ucx_perftest's MB.


def ours(uri, arguments, *more):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program("lamina-bench-transport"), "--transport", uri, "--rounds", str(arguments.rounds), "--json", file.name, *more],
                       check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name, encoding="utf-8"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def perftest(transports, size):
    """Bytes a second that ucx_perftest reaches by puts of `size`; server on core 1, client on core 0."""
    environment = {**os.environ, "UCX_TLS": transports, "UCX_WARN_UNUSED_ENV_VARS": "n"}
    port = free_port()
    count = str(max(200, (64 << 20) // size))
    with subprocess.Popen(["taskset", "-c", "1", "ucx_perftest", "-p", port], env=environment,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                client = subprocess.run(["taskset", "-c", "0", "ucx_perftest", "127.0.0.1", "-p", port, "-t",
                                         "ucp_put_bw", "-s", str(size), "-n", count, "-w", "50"],
                                        env=environment, capture_output=True, text=True, timeout=60)
                final = [line.split() for line in client.stdout.splitlines() if line.startswith("Final:")]
                if final:
                    # Final: count, latency typical, average, overall, MB/s average, overall, ...
                    return float(final[0][6]) * MIB
                time.sleep(0.05)  # The server does not listen yet.
            sys.exit(f"ucx_perftest: {client.stdout[-500:]}{client.stderr[-500:]}")
        finally:
            server.kill()


def latency_rows(uri, rows):
    return [{"transport": uri, **row} for row in rows if "bytes" in row]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of each figure; the best counts")
    parser.add_argument("--transport", action="append", help=f"URI; default: {' '.join(URIS)}")
    parser.add_argument("--perftest-rounds", type=int, default=3)
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}", flush=True)
    rows = []
    for uri in arguments.transport or URIS:
        measured = ours(uri, arguments, "--cores", "two")
        rows += latency_rows(uri, measured)
        streams = {row["stream_bytes"]: row["stream_bytes_per_second"] for row in measured if "stream_bytes" in row}
        for size, bandwidth in streams.items():
            row = {"transport": uri, "stream_bytes": size, "ours": bandwidth}
            if uri.startswith("ucx://") and subprocess.run(["which", "ucx_perftest"], capture_output=True).returncode == 0:
                row["ucx_perftest"] = max(perftest(uri.removeprefix("ucx://"), size)
                                          for _ in range(arguments.perftest_rounds))
                row["ratio"] = bandwidth / row["ucx_perftest"]
            rows.append(row)
        if uri == "shm://":
            rows += latency_rows(uri, ours(uri, arguments, "--cores", "one"))
            rows += [row for row in measured if "idle_poll_ns_per_peer" in row or "bare_poll_ns_packed" in row]
    print(f"{'transport':12} {'cores':5} {'bytes':>8} {'ours':>12} {'bare or peer':>12} {'ratio':>6} {'allocations':>11}")
    for row in rows:
        if "put_signal_ns" in row:
            print(f"{row['transport']:12} {row['cores']:5} {row['bytes']:8} {row['put_signal_ns']:9.0f} ns "
                  f"{row['bare_ns']:9.0f} ns {row['ratio']:6.2f} {row['allocations']:11}")
    for row in rows:
        if "stream_bytes" in row:
            peer = f"{row['ucx_perftest'] / 1e9:7.2f} GB/s {row['ratio']:6.2f}" if "ratio" in row else ""
            print(f"{row['transport']:12} {'two':5} {row['stream_bytes']:8} {row['ours'] / 1e9:7.2f} GB/s {peer}")
        elif "put_signal_ns" not in row:
            print(json.dumps(row))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

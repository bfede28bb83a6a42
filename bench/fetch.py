# SPDX-License-Identifier: Apache-2.0
"""How fast K and V come to the compute node under policy fetch_heads, against a plain copy of as many bytes.

One compute and one memory node, a core each, over shared memory. The rate of the stream is what the memory node has sent over the time in
which its thread gathered and put it (part `reply`); a copy is memmove() between two buffers of --copy MiB, in this process, before and after
the cluster has run. A step's time stands next to what the stream alone would take.

--kv measures with K and V in these forms, one after the other. --link puts the nodes on a link, `throttle(bandwidth=500MB)+shm`, where the
time of a step is that of its bytes. --resident keeps K and V of recent tokens on the compute node, in so many bytes, one after the other:
--resident 0,32MiB.
"""

import argparse
import ctypes
import json
import time

import cluster
import processor

WINDOW = "64MiB"
COPIES = 5


def copy_rate(mebibytes):
    """Bytes a second of the best copy."""
    size = mebibytes << 20
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memmove(target, source, size)  # Pages are there.
    best = float("inf")
    for _ in range(COPIES):
        begin = time.perf_counter()
        ctypes.memmove(target, source, size)
        best = min(best, time.perf_counter() - begin)
    return size / best


class Fetching:
    """Counts what the memory node `m0` sends in each stretch. For a cluster that runs."""

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        self.rates = []

    def stretch(self, seconds):
        sent = self.sent_bytes("m0")
        begin = time.monotonic()
        found = super().stretch(seconds)
        sent_per_second = (self.sent_bytes("m0") - sent) / (time.monotonic() - begin)
        self.rates.append(sent_per_second / found.shares[("m0", "reply")])
        return found


class FetchingCluster(Fetching, cluster.Cluster):
    pass


class FetchingRemote(Fetching, cluster.Remote):
    def __enter__(self):
        super().__enter__()
        status = self.status()
        if not status["policy"].startswith("fetch_") or "m0" not in [node["name"] for node in status["nodes"]]:
            raise SystemExit(f"--server: {self.address} has policy {status['policy']}; its policy has to be fetch_heads, with a memory node m0")
        return self


def measure(arguments, form, resident, rows, context):
    server = arguments.server
    fetch = {"window": WINDOW} if resident == "0" else {"window": WINDOW, "resident": resident}
    keys = {"memory_nodes": 1, "fetch": ("fetch_heads", fetch), "transport": arguments.link, "kv_form": form}
    with FetchingRemote(server) if server else FetchingCluster(1, **keys) as running:
        best = running.decode_rate(rows, context)
        return {"kv": form, "resident": resident, "rows": rows, "context": context,
                "tokens_per_second": best.tokens_per_second, "step_s": rows / best.tokens_per_second, "streaming": best.shares[("m0", "reply")], "bytes_per_second": max(running.rates)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--points", default="1x4096,4x1024,16x1024", help="ROWSxCONTEXT, ...")
    parser.add_argument("--kv", default="bf16", help="bf16, int8 or both: bf16,int8")
    parser.add_argument("--resident", default="0", help="fetch.resident, one size after the other; 0: nothing stays")
    parser.add_argument("--link", default="shm", help="transport of the data")
    parser.add_argument("--copy", type=int, default=384, help="MiB of the buffers that are copied")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    before = copy_rate(arguments.copy)
    points = [
        measure(arguments, form, resident, *map(int, point.split("x")))
        for point in arguments.points.split(",")
        for form in arguments.kv.split(",")
        for resident in arguments.resident.split(",")
    ]
    copy = max(before, copy_rate(arguments.copy))
    print(f"plain copy {copy / 1e9:.1f} GB/s\n\n| kv | resident | rows | context | tokens/s | ms a step | of it streaming | stream, GB/s | of a copy |\n" +
          "|---" * 9 + "|")
    for point in points:
        point["of_copy"] = point["bytes_per_second"] / copy
        print(f"| {point['kv']} | {point['resident']} | {point['rows']} | {point['context']} | {point['tokens_per_second']:.1f} | {1e3 * point['step_s']:.1f} | {point['streaming']:.2f} | "
              f"{point['bytes_per_second'] / 1e9:.1f} | {point['of_copy']:.2f} |")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "copy_bytes_per_second": copy, "points": points}, out, indent=1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""How fast K and V come to the compute node under policy fetch_heads, against a plain copy of as many bytes.

One compute and one memory node, a core each, over shared memory. The rate of the stream is what the memory node has sent over the time in
which its thread gathered and put it (part `reply`); a copy is memmove() between two buffers of --copy MiB, in this process, before and after
the cluster has run. A step's time stands next to what the stream alone would take.

--kv measures with K and V in these forms, one after the other. --link puts the nodes on a link, `throttle(bandwidth=500MB)+shm`, where the
time of a step is that of its bytes; with `ucx` and `verbs` the stream is compared with puts over the same link too, of the size for which
lamina-bench-transport has most, before and after each point: with puts of bytes that come from memory, out of --copy MiB, as the stream's do,
with such puts while the peer's core reads memory, as the compute node's does with its weights, and with puts of bytes that stay in the last
cache. --window takes windows of so many MiB, one after the other: small ones stay in the last cache.

Next to a point stands what a stream's rate may depend on: how much of the best stretch the memory node's data thread waited for its core
(more than a few percent: the machine was not left alone), and how much of the memory of both nodes is in huge pages.

--attending 8x1024 measures something else: how fast the attention of so
many rows in another lane reads while the stream runs, against a copy of the same rate in its place (fetch_attention.py). --resident keeps K and V of recent tokens on the compute node, in so many bytes, one after the other:
--resident 0,32MiB. A cluster that serves already (--server) has its own form, link and bytes that stay, and no bound, which is another machine's.
"""

import argparse
import ctypes
import itertools
import json
import pathlib
import subprocess
import tempfile
import time

import cluster
import fetch_attention
import processor
from programs import program

WINDOW_MIB = 64
COPIES = 5
PUT_ROUNDS = 3
SHARE = 0.85  # Of the copy, and of puts from memory over ucx and verbs.
AS_IT_IS = "as its file says"  # What is not known of a cluster that serves already.


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


def put_rates(link, mebibytes, messages, window_mib=WINDOW_MIB):
    """Bytes a second of so many puts after each other (0: as fill the window at least), out of so much memory into a window, the same while the
    peer's core reads memory, and of bytes that stay in the last cache; None: the link is none of a network."""
    if link not in ("ucx", "verbs"):
        return None
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([program("lamina-bench-transport"), "--transport", f"{link}://", "--cores", "two", "--rounds", str(PUT_ROUNDS),
                        "--source-mib", str(mebibytes), "--window-mib", str(min(mebibytes, window_mib)),
                        "--messages", str(messages), "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        with open(file.name, encoding="utf-8") as text:
            rows = json.load(text)
    walks = [row for row in rows if "walk_bytes" in row]
    return {"memory": max(row["walk_bytes_per_second"] for row in walks),
            "next_to_reads": max(row["walk_next_to_reads_bytes_per_second"] for row in walks),
            "cache": max(row["stream_bytes_per_second"] for row in rows if "stream_bytes" in row)}


def thread_seconds(pid):
    """{thread: (seconds it ran, seconds it waited for a core)} of a process, by the kernel's count."""
    threads = {}
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            ran, waited, _ = path.read_text(encoding="ascii").split()
        except OSError:  # The thread has ended.
            continue
        threads[path.parent.name] = (int(ran) / 1e9, int(waited) / 1e9)
    return threads


def busiest_waited(before, after):
    """Seconds for which the thread that ran longest in between waited for a core; of thread_seconds()."""
    spent = [tuple(new - old for new, old in zip(times, before.get(thread, (0.0, 0.0)))) for thread, times in after.items()]
    return max(spent, default=(0.0, 0.0))[1]


def huge_mebibytes(pid):
    """How much of a process's memory is in huge pages."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("AnonHugePages:", "ShmemPmdMapped:"))) // 1024


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
    """Counts too which share of each stretch the memory node's data thread waited for its core."""

    def __init__(self, *arguments, **keys):
        super().__init__(*arguments, **keys)
        self.waits = []

    def stretch(self, seconds):
        before, begin = thread_seconds(self.pid("m0")), time.monotonic()
        found = super().stretch(seconds)
        self.waits.append(busiest_waited(before, thread_seconds(self.pid("m0"))) / (time.monotonic() - begin))
        return found

    def conditions(self):
        """What the rate of the best stretch may depend on."""
        return {"waited_for_core": self.waits[self.rates.index(max(self.rates))],
                "huge_mib": {name: huge_mebibytes(self.pid(name)) for name in ("c0", "m0")}}


class FetchingRemote(Fetching, cluster.Remote):
    def __enter__(self):
        super().__enter__()
        status = self.status()
        if not status["policy"].startswith("fetch_") or "m0" not in [node["name"] for node in status["nodes"]]:
            raise SystemExit(f"--server: {self.address} has policy {status['policy']}; its policy has to be fetch_heads, with a memory node m0")
        return self

    def conditions(self):
        return {}  # Of other machines.


def measure(arguments, form, resident, window, rows, context):
    server = arguments.server
    fetch = {"window": f"{window}MiB"} if resident == "0" else {"window": f"{window}MiB", "resident": resident}
    keys = {"memory_nodes": 1, "fetch": ("fetch_heads", fetch), "transport": arguments.link, "kv_form": form,
            "model": arguments.model, "capacity": arguments.capacity}
    with FetchingRemote(server) if server else FetchingCluster(1, **keys) as running:
        best = running.decode_rate(rows, context)
        return {"kv": form, "resident": resident, "window_mib": window, "rows": rows, "context": context, **running.conditions(),
                "tokens_per_second": best.tokens_per_second, "step_s": rows / best.tokens_per_second, "streaming": best.shares[("m0", "reply")], "bytes_per_second": max(running.rates),
                "slowest_bytes_per_second": min(running.rates)}


def report(points, copy):
    """Of points that have been measured; adds their shares of the bounds: of the copy, if there is one, and of those puts that were measured
    next to the point."""
    of_puts = any("puts" in point for point in points)
    conditions = any("huge_mib" in point for point in points)
    if copy:
        print(f"plain copy {copy / 1e9:.1f} GB/s\n")
    columns = ["kv", "resident", "window, MiB", "rows", "context", "tokens/s", "ms a step", "of it streaming", "stream, GB/s", "slowest stretch"]
    columns += (["of a copy"] if copy else [])
    columns += ["puts from memory before and after, GB/s", "of puts", "of puts next to reads", "of puts from the cache"] if of_puts else []
    columns += ["waited for a core", "huge pages of c0 and m0, MiB"] if conditions else []
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for point in points:
        row = [point["kv"], point["resident"], point["window_mib"], point["rows"], point["context"], f"{point['tokens_per_second']:.1f}",
               f"{1e3 * point['step_s']:.1f}", f"{point['streaming']:.2f}", f"{point['bytes_per_second'] / 1e9:.1f}",
               f"{point['slowest_bytes_per_second'] / 1e9:.1f}"]
        if copy:
            point["of_copy"] = point["bytes_per_second"] / copy
            row.append(f"{point['of_copy']:.2f}")
        if of_puts:
            row.append(", ".join(f"{puts['memory'] / 1e9:.1f}" for puts in point["puts"]))
            for source, share in (("memory", "of_puts"), ("next_to_reads", "of_puts_next_to_reads"), ("cache", "of_cached_puts")):
                point[share] = point["bytes_per_second"] / max(puts[source] for puts in point["puts"])
                row.append(f"{point[share]:.2f}")
        if conditions:
            row += [f"{point['waited_for_core']:.1%}", f"{point['huge_mib']['c0']}, {point['huge_mib']['m0']}"]
        print(f"| {' | '.join(map(str, row))} |")
    if copy:
        print(f"\nAsked: {SHARE} of {'puts from memory' if of_puts else 'a copy'}.")


def write(path, figures):
    if path:
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), **figures}, out, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--points", default="1x4096,4x1024,16x1024", help="ROWSxCONTEXT, ...")
    parser.add_argument("--kv", default="bf16", help="bf16, int8 or both: bf16,int8")
    parser.add_argument("--resident", default="0", help="fetch.resident, one size after the other; 0: nothing stays")
    parser.add_argument("--link", default="shm", help="transport of the data")
    parser.add_argument("--window", default=str(WINDOW_MIB), help="MiB of fetch.window, one after the other")
    parser.add_argument("--put-messages", type=int, default=0, help="puts of each size in a round, with --link ucx or verbs; 0: as fill the window")
    parser.add_argument("--model", default=cluster.MODEL, help="a GGUF file, or a folder")
    parser.add_argument("--capacity", default="2GiB", help="of the memory node")
    parser.add_argument("--copy", type=int, default=384, help="MiB of the buffers that are copied, and that puts come from")
    parser.add_argument("--attending", metavar="ROWSxCONTEXT", help="of rows that memory nodes attend while the points' streams run")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    rows_and_contexts = [tuple(map(int, point.split("x"))) for point in arguments.points.split(",")]
    if arguments.attending:
        if arguments.server or (arguments.kv, arguments.resident, arguments.link) != ("bf16", "0", "shm"):
            parser.error("--attending is of a cluster of its own, with bf16 over shm")
        attending = tuple(map(int, arguments.attending.split("x")))
        points = [fetch_attention.measure(attending, point, f"{WINDOW_MIB}MiB") for point in rows_and_contexts]
        fetch_attention.report(points)
        write(arguments.json, {"points": points})
        return
    if arguments.server:
        points = [measure(arguments, AS_IT_IS, AS_IT_IS, AS_IT_IS, *point) for point in rows_and_contexts]
        report(points, None)
        write(arguments.json, {"server": arguments.server, "points": points})
        return
    copy = copy_rate(arguments.copy)
    points = []
    before = {}  # Puts before the next point, by the window.
    choices = itertools.product(rows_and_contexts, arguments.kv.split(","), arguments.resident.split(","), map(int, arguments.window.split(",")))
    for (rows, context), form, resident, window in choices:
        puts = [before.get(window) or put_rates(arguments.link, arguments.copy, arguments.put_messages, window)]
        points.append(measure(arguments, form, resident, window, rows, context))
        if puts[0]:
            puts.append(put_rates(arguments.link, arguments.copy, arguments.put_messages, window))
            points[-1]["puts"] = puts
            before = {window: puts[-1]}
    copy = max(copy, copy_rate(arguments.copy))
    report(points, copy)
    write(arguments.json, {"copy_bytes_per_second": copy, "points": points})


if __name__ == "__main__":
    main()

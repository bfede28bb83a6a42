# SPDX-License-Identifier: Apache-2.0
"""What a stream of K and V takes from the attention of another lane, more than a plain copy of the same rate takes.

One compute and one memory node, a core each, over shared memory, which serve attend_remote and fetch_heads at once, each in a lane of its own.
The rows of attend_remote decode all the time; how fast their attention reads is what the memory node has read in the time that it attended.
Taken in turns: with a load of fetch_heads, with a process on the compute node's core that copies as many bytes a second as that load had sent,
and without either. There is a row of fetch_heads in the latter two as well, a short one, so that lanes are what they are with its load.
"""

import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import statistics
import time

import cluster

LONGER = 1.10  # A stream makes attention take so many times what it takes next to a copy, at most.
PIECE = 256 << 10  # What a stream puts before attention has a turn.
BUFFER = 384 << 20
STRETCH_SECONDS = 4.0
TURNS = 3
COMPUTE_CORE, MEMORY_CORE = 0, 1
SHORT = (1, 16)


@dataclasses.dataclass
class Stretch:
    attention: float  # Bytes a second, while it attends.
    sent: float  # Bytes a second, by the clock.
    copied: float = 0.0


def copy_at(rate, core, copied):
    """Copies pieces from one buffer to another until it is ended, no faster than `rate` bytes a second."""
    os.sched_setaffinity(0, {core})
    source, target = ctypes.create_string_buffer(BUFFER), ctypes.create_string_buffer(BUFFER)
    ctypes.memset(source, 1, BUFFER)
    ctypes.memset(target, 1, BUFFER)  # Pages are there.
    begin, done = time.perf_counter(), 0
    while True:
        at = done % BUFFER
        ctypes.memmove(ctypes.byref(target, at), ctypes.byref(source, at), PIECE)
        done += PIECE
        copied.value = done
        ahead = done / rate - (time.perf_counter() - begin)
        if ahead > 0:
            time.sleep(ahead)


@contextlib.contextmanager
def copying(rate):
    """Gives what says how many bytes have been copied so far."""
    copied = multiprocessing.Value(ctypes.c_uint64, 0, lock=False)
    if rate == 0:
        yield copied
        return
    process = multiprocessing.Process(target=copy_at, args=(rate, COMPUTE_CORE, copied), daemon=True)
    process.start()
    try:
        while copied.value == 0:
            time.sleep(0.05)
        yield copied
    finally:
        process.kill()
        process.join()


def begin(running, rows, context, policy):
    """All rows of a load decode when it returns; it is running.load."""
    running.begin_load(rows, context, policy)
    while not running.all_decode():
        time.sleep(0.1)


def end(running, rows_left):
    running.kill_load()
    while running.status().get("running", 0) > rows_left:
        time.sleep(0.1)


def counters(running):
    node = next(node for node in running.status()["nodes"] if node["name"] == "m0")
    return time.monotonic(), node["kv_bytes_read"], node["part_seconds"]["attend"], node["bytes_sent"]


def stretch(running, copied):
    time.sleep(cluster.SETTLE_SECONDS)
    copied_before, before = copied.value, counters(running)
    time.sleep(STRETCH_SECONDS)
    copied_after, after = copied.value, counters(running)
    seconds, read, attending, sent = (new - old for new, old in zip(after, before))
    return Stretch(read / attending, sent / seconds, (copied_after - copied_before) / seconds)


def turn(running, attending, streaming):
    """A stretch of each kind."""
    def one(load, rate=0.0):
        begin(running, *load, "fetch_heads")
        try:
            with copying(rate) as copied:
                found = stretch(running, copied)
            running.check_load()
        finally:
            end(running, attending[0])
        return found

    stream = one(streaming)
    return {"stream": stream, "copy": one(SHORT, stream.sent), "alone": one(SHORT)}


def measure(attending, streaming, window):
    """Figures of rows that memory nodes attend, (rows, context), next to the stream of others."""
    with cluster.Cluster(2, compute_cores=str(COMPUTE_CORE), memory_cores=str(MEMORY_CORE), memory_nodes=1,
                         policies=["attend_remote", "fetch_heads"], fetch=("fetch_heads", {"window": window})) as running:
        begin(running, *attending, "attend_remote")
        others, running.load = running.load, None
        try:
            turns = [turn(running, attending, streaming) for _ in range(TURNS)]
            if others.poll() is not None:
                raise RuntimeError("the load of attend_remote ended before it was measured")
        finally:
            others.kill()
            others.wait()
    longer = statistics.median(one["copy"].attention / one["stream"].attention for one in turns)
    return {"attending": attending, "streaming": streaming, "longer": longer,
            "turns": [{kind: dataclasses.asdict(figures) for kind, figures in one.items()} for one in turns]}


def report(points):
    print("| attend | streams | attention reads alone, GB/s | next to a copy | next to the stream | stream, GB/s | copy, GB/s | time over that next to a copy |\n" +
          "|---" * 8 + "|")
    for point in points:
        def median(kind, key, turns=point["turns"]):
            return statistics.median(one[kind][key] for one in turns) / 1e9

        print(f"| {'x'.join(map(str, point['attending']))} | {'x'.join(map(str, point['streaming']))} | {median('alone', 'attention'):.2f} | "
              f"{median('copy', 'attention'):.2f} | {median('stream', 'attention'):.2f} | {median('stream', 'sent'):.2f} | "
              f"{median('copy', 'copied'):.2f} | {point['longer']:.2f} |")
    print(f"\nAsked: at most {LONGER}, in the median of {TURNS} turns.")

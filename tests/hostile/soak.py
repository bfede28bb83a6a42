#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A soak, run by hand: minutes of mixed load, during which no process may grow.

Sends completions and chats over HTTP and requests over gRPC, some cancelled half way, some refused, and reads the resident
memory of every daemon each second. Ends with status 1 if a daemon's resident memory, as the median of a minute, grows by
more than 2% or 4 MB, whichever is more, between the end of the warm-up and the end of the run, or if a request failed.

  PYTHONPATH=tests/integration tests/hostile/soak.py --minutes 10 --warm-up 2
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import threading
import time

import clients
import harness

GROWTH_SHARE = 0.02
GROWTH_BYTES = 4 << 20
WORKERS = 4
PROMPTS = ["Once upon a time", "The capital of France is", "List the planets:", "A recipe for bread. " * 40]


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no VmRSS: it has ended")


class Load:
    """Clients in threads; each does one thing after the other, chosen at random."""

    def __init__(self, cluster, seed):
        self._cluster = cluster
        self._end = threading.Event()
        self._lock = threading.Lock()
        self.counts = {}
        self.failures = []
        self._threads = [threading.Thread(target=self._run, args=(random.Random(f"{seed} {n}"),)) for n in range(WORKERS)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, chance):
        kinds = [self.completion, self.chat, self.cancelled, self.refused, self.grpc]
        while not self._end.is_set():
            kind = chance.choice(kinds)
            try:
                kind(chance)
                with self._lock:
                    self.counts[kind.__name__] = self.counts.get(kind.__name__, 0) + 1
            except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
                with self._lock:
                    self.failures.append(f"{kind.__name__}: {error!r}")

    def completion(self, chance):
        clients.post(self._cluster, "/v1/completions", {
            "model": harness.MODEL.stem, "prompt": chance.choice(PROMPTS), "max_tokens": chance.randint(1, 60)})

    def chat(self, chance):
        clients.post(self._cluster, "/v1/chat/completions", {
            "model": harness.MODEL.stem, "messages": [{"role": "user", "content": chance.choice(PROMPTS)}],
            "max_tokens": chance.randint(1, 40)})

    def cancelled(self, chance):
        """A stream whose client leaves after a while."""
        connection = http.client.HTTPConnection(self._cluster.gateway, timeout=clients.ANSWER_SECONDS)
        connection.request("POST", "/v1/completions", json.dumps({
            "model": harness.MODEL.stem, "prompt": chance.choice(PROMPTS), "max_tokens": 200, "stream": True}),
            {"Content-Type": "application/json"})
        connection.getresponse().read(chance.randint(1, 2000))
        connection.close()

    def refused(self, chance):
        connection = http.client.HTTPConnection(self._cluster.gateway, timeout=clients.ANSWER_SECONDS)
        body = chance.choice(["{", "[]", '{"model": "none"}', '{"prompt": 7}', "x" * 100_000])
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        status = connection.getresponse().status
        connection.close()
        if not 400 <= status < 500:
            raise ValueError(f"{body[:20]!r} was answered with {status}")

    def grpc(self, chance):
        result = self._cluster.lamina("generate", "--prompt", chance.choice(PROMPTS), "--max-tokens",
                                      str(chance.randint(1, 60)), "--ignore-eos", "--json")
        if result.returncode != 0:
            raise ValueError(result.stderr)


def growths(samples, warm_up, seconds):
    """By daemon: median bytes of the minute after the warm-up, and of the last minute."""
    return {name: [statistics.median(size for at, size in values if start <= at < start + 60)
                   for start in (warm_up, seconds - 60)] for name, values in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="after the warm-up (default: 10; at least 2)")
    parser.add_argument("--warm-up", type=float, default=2, help="minutes before (default: 2)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.minutes < 2:
        parser.error("--minutes is at least 2: the first and the last are compared")
    warm_up, seconds = options.warm_up * 60, (options.warm_up + options.minutes) * 60
    with harness.Cluster(compute=[{"name": "c0"}, {"name": "c1"}], gateway={"listen": "127.0.0.1:0"}) as cluster:
        samples = {name: [] for name in cluster.processes}
        start = time.monotonic()
        with Load(cluster, options.seed) as load:
            while (at := time.monotonic() - start) < seconds:
                for name, process in cluster.processes.items():
                    samples[name].append((at, resident_bytes(process.pid)))
                time.sleep(1)
        print(f"{sum(load.counts.values())} requests: {json.dumps(load.counts)}; {len(load.failures)} failed")
        for failure in load.failures[:10]:
            print(f"  {failure}")
        grown = False
        for name, (first, last) in growths(samples, warm_up, seconds).items():
            allowed = max(GROWTH_SHARE * first, GROWTH_BYTES)
            grown |= last - first > allowed
            print(f"{name:>12}: {first / 1e6:8.1f} MB after the warm-up, {last / 1e6:8.1f} MB at the end, "
                  f"{(last - first) / 1e6:+.1f} MB ({allowed / 1e6:.1f} allowed)")
        if grown or load.failures:
            sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except subprocess.TimeoutExpired as error:
        sys.exit(f"a request hangs: {error}")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway against the gRPC API behind it: the same load over both, by turns, on one cluster.

Prompts are random token ids, answers are greedy and of one length. Over gRPC the client is
`lamina bench`; over HTTP it is this script: one thread that reads streams of events and looks only for
their ends, so that it takes little from two cores. Times per token are from the first event of an
answer to the last.

The bound is gRPC's figure of the same round; the table has medians over rounds, of which the first
begins with gRPC, the second with HTTP, and so on.
"""

import argparse
import asyncio
import json
import pathlib
import random
import resource
import statistics
import subprocess
import time

from cluster import BIN, Cluster

VOCABULARY = 40000  # Of SmolLM2's 49152 tokens; above are special ones.


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


async def answer(address, body, times):
    """One streamed request on a connection of its own; appends milliseconds per token."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    first = last = None
    events = 0
    tail = b""
    while data := await reader.read(65536):
        last = time.perf_counter()
        found = data.count(b"data: {")
        events += found
        if found and first is None:
            first = last
        tail = (tail + data)[-64:]
    writer.close()
    if b"data: [DONE]" not in tail:
        raise RuntimeError(f"a stream did not end well: {tail!r}")
    times.append((last - first) * 1e3 / max(1, events - 2))


async def load_http(address, model, settings, concurrency):
    generator = random.Random(settings.seed)
    left = settings.requests(concurrency)
    times = []

    async def client():
        nonlocal left
        while left > 0:
            left -= 1
            prompt = [generator.randrange(VOCABULARY) for _ in range(settings.input_tokens)]
            body = json.dumps({"model": model, "prompt": prompt, "stream": True, "temperature": 0,
                               "max_tokens": settings.output_tokens, "ignore_eos": True}).encode()
            await answer(address, body, times)

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    seconds = time.perf_counter() - begin
    return {"tokens_per_second": len(times) * settings.output_tokens / seconds,
            "tpot_p50_ms": quantile(times, 0.5), "tpot_p99_ms": quantile(times, 0.99)}


def load_grpc(address, settings, concurrency):
    output = subprocess.run(
        [BIN / "lamina", "bench", "--server", address, "--json", "--concurrency", str(concurrency),
         "--requests", str(settings.requests(concurrency)), "--input-tokens",
         str(settings.input_tokens), "--output-tokens", str(settings.output_tokens), "--seed",
         str(settings.seed)], check=True, capture_output=True, text=True).stdout
    report = json.loads(output)
    return {"tokens_per_second": report["output_tokens_per_second"],
            "tpot_p50_ms": report["tpot_ms"]["p50"], "tpot_p99_ms": report["tpot_ms"]["p99"]}


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--concurrency", default="1,64,512")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--input-tokens", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--requests-each", type=float, default=1, help="requests per concurrent client")
    parser.add_argument("--requests-least", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    settings = parser.parse_args()
    settings.requests = lambda c: max(settings.requests_least, int(c * settings.requests_each))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows = []
    with Cluster(lanes=2, gateway=True) as cluster:
        for concurrency in map(int, settings.concurrency.split(",")):
            results = {"grpc": [], "http": []}
            load_grpc(cluster.address, settings, min(concurrency, 8))  # Warm.
            for turn in range(settings.rounds):
                for kind in ("grpc", "http") if turn % 2 == 0 else ("http", "grpc"):
                    if kind == "grpc":
                        results[kind].append(load_grpc(cluster.address, settings, concurrency))
                    else:
                        results[kind].append(asyncio.run(load_http(
                            cluster.gateway, "smollm2-135m-instruct", settings, concurrency)))
            row = {"concurrency": concurrency}
            for kind, runs in results.items():
                row.update({f"{kind}_{key}": median(runs, key) for key in runs[0]})
            row["throughput_share"] = (row["http_tokens_per_second"] /
                                       row["grpc_tokens_per_second"])
            rows.append(row)
    print("concurrency   gRPC tokens/s   HTTP tokens/s   share   gRPC tpot p50/p99 ms   HTTP tpot p50/p99 ms")
    for row in rows:
        print(f"{row['concurrency']:11d}   {row['grpc_tokens_per_second']:13.1f}   "
              f"{row['http_tokens_per_second']:13.1f}   {row['throughput_share']:5.3f}   "
              f"{row['grpc_tpot_p50_ms']:10.2f} {row['grpc_tpot_p99_ms']:11.2f}   "
              f"{row['http_tpot_p50_ms']:9.2f} {row['http_tpot_p99_ms']:11.2f}")
    if settings.json:
        settings.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

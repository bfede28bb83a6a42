# SPDX-License-Identifier: Apache-2.0
"""A cluster of one compute node, if asked for another for prompts, and two memory nodes for benchmarks, on ports of its own."""

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
MODEL = ROOT / "models/smollm2-135m-instruct.gguf"
START_SECONDS_MAX = 180
STRETCH_SECONDS = 2.0
SAMPLE_SECONDS = 0.2
ANY_PORT = "127.0.0.1:0"
PART = re.compile(r'lamina_part_seconds_total\{node="([^"]+)",role="[^"]+",part="([^"]+)"\}')


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclasses.dataclass
class Stretch:
    tokens_per_second: float
    shares: dict  # (node, part) -> seconds a second


class Cluster:
    """Starts the daemons; ends them, and only them, on exit."""

    def __init__(self, lanes, compute_cores="0", memory_cores="1", memory_nodes=2, capacity="2GiB",
                 running_max=256, chunk_tokens=512, coordinator_cores="", transport="shm", chunks="auto",
                 query_first="auto", prefill_cores=None, local=False):
        """`prefill_cores`: prompts run on a node of their own there, "p0". `local`: policy local, without memory nodes."""
        self.address = f"127.0.0.1:{free_port()}"
        self.folder = tempfile.TemporaryDirectory(prefix="lamina-bench-")
        self.processes = []
        self.pages = {}
        names = [] if local else [f"m{i}" for i in range(memory_nodes)]
        self.config = pathlib.Path(self.folder.name) / "cluster.yaml"
        memory = "memory:\n" + "\n".join(
            f'  - {{name: {name}, cores: "{memory_cores}", capacity: {capacity}, http: {ANY_PORT}}}'
            for name in names)
        kv = f", capacity: {capacity}" if local else ""
        prefill = "" if prefill_cores is None else (
            f'  - {{name: p0, role: prefill, cores: "{prefill_cores}", http: {ANY_PORT}}}\n')
        self.config.write_text(
            f'model: {MODEL}\ncoordinator: {{listen: {self.address}, http: {ANY_PORT}, cores: "{coordinator_cores}"}}\n'
            f'compute:\n  - {{name: c0, cores: "{compute_cores}", http: {ANY_PORT}{kv}}}\n{prefill}'
            f"{'policy: local' if local else memory}\n"
            f"pipeline: {{mode: rotational, lanes: {lanes}, chunks: {chunks}, query_first: {query_first}}}\n"
            f'transport: "{transport}"\n'
            f"prefill: {{mode: {'dedicated' if prefill else 'inline'}, chunk_tokens: {chunk_tokens}}}\n"
            f"limits: {{sequence_tokens_max: 8192, running_max: {running_max}}}\n")
        compute = ["c0", "p0"] if prefill else ["c0"]
        self.nodes = compute + names
        self.names = [("lamina-coordinator", "coordinator")] + [("lamina-compute", name) for name in compute]
        self.names += [("lamina-memory", name) for name in names]

    def __enter__(self):
        for program, name in self.names:
            log = open(pathlib.Path(self.folder.name) / f"{name}.log", "wb")
            self.processes.append(subprocess.Popen(
                [BIN / program, "--cluster", self.config, "--name", name], stdout=log, stderr=log))
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.status().get("state") == "serving":
                return self
            if any(process.poll() is not None for process in self.processes):
                break  # Its log says why.
            time.sleep(0.2)
        logs = "".join((pathlib.Path(self.folder.name) / f"{n}.log").read_text()[-500:]
                       for _, n in self.names)
        self.__exit__()
        raise RuntimeError(f"the cluster did not start (it has {START_SECONDS_MAX} s for it):\n{logs}")

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()

    def status(self):
        done = subprocess.run([BIN / "lamina", "status", "--json", "--server", self.address],
                              capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def metrics(self, daemon="coordinator"):
        """{sample: value} of a daemon's /metrics. Far cheaper than status(), which starts a program: that
        takes tens of milliseconds from the cores that are being measured."""
        if daemon not in self.pages:
            log = (pathlib.Path(self.folder.name) / f"{daemon}.log").read_text()
            self.pages[daemon] = re.findall(r"metrics at (http://\S+)", log)[-1]
        with urllib.request.urlopen(self.pages[daemon], timeout=START_SECONDS_MAX) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def tokens_generated(self):
        return sum(value for name, value in self.metrics().items()
                   if name.startswith("vllm:generation_tokens_total"))

    def part_seconds(self):
        """{(node, part): seconds} that each node has spent on each part of its work so far."""
        parts = {}
        for daemon in self.nodes:
            for name, value in self.metrics(daemon).items():
                found = PART.match(name)
                if found:
                    parts[found.groups()] = value
        return parts

    def decode_rate(self, rows, context, tokens):
        """The best Stretch of a closed load, in which all rows decode, and the load's own report.

        While prompts are worked on the rate is lower, and before the last prompt and after the first answer
        there are fewer rows; so the best stretch is the one with all of them. `tokens` must be enough
        for such a stretch: answers have to outlast the prompts of the others.
        """
        load = subprocess.Popen(
            [BIN / "lamina", "bench", "--json", "--server", self.address, "--concurrency", str(rows),
             "--requests", str(rows), "--input-tokens", str(context), "--output-tokens",
             str(tokens)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        samples = []
        best = Stretch(0.0, {})
        late = self.tokens_generated() + 0.7 * rows * tokens
        self.chunk_choice = ""  # Of a step late in the load, when all rows decode.
        while load.poll() is None:
            samples.append((time.monotonic(), self.tokens_generated(), self.part_seconds()))
            while len(samples) > 1 and samples[-1][0] - samples[1][0] >= STRETCH_SECONDS:
                samples.pop(0)
            (begin, tokens_before, before), (end, tokens_after, after) = samples[0], samples[-1]
            if end - begin >= STRETCH_SECONDS:
                rate = (tokens_after - tokens_before) / (end - begin)
                if rate > best.tokens_per_second:
                    best = Stretch(rate, {part: (seconds - before[part]) / (end - begin)
                                          for part, seconds in after.items()})
            if not self.chunk_choice and samples[-1][1] >= late:
                self.chunk_choice = self.status().get("chunk_choice", "")
            time.sleep(SAMPLE_SECONDS)
        out, error = load.communicate()
        if load.returncode != 0 or best.tokens_per_second == 0.0:
            raise RuntimeError(f"no rate for {rows} rows of {context}: {error}")
        return best, json.loads(out)


def machine():
    """The processor's name, its cores and its vector extensions, for the record."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    name = next((l.split(":")[1].strip() for l in text.splitlines() if l.startswith("model name")),
                "unknown")
    flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f" {f}" in text]
    return f"{name}, {os.cpu_count()} cores, {' '.join(flags)}"

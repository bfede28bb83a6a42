#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Serves a model on the GPU of this machine, end to end, for deploy/gpu_check.sh.

Starts a cluster on loopback, asks one question, then measures decode tokens a second of a few loads.
Four parts: "pool" is one compute node on the device that has K and V too (policy local), "device" has a
compute node and a memory node there (two processes, so the waiting is the processor's), "mixed" has the
memory node on the CPU, "both" has one memory node on each.

usage: gpu_serve.py --out FILE [--model PATH] [--device D] [--part P]... [--points LIST]
                    [--limit SECONDS] [--stretch SECONDS] [--capacity SIZE] [--bin DIR]
  --model PATH       default: models/smollm2-135m-instruct.gguf
  --device D         default: cuda:0; with cpu everything runs without a GPU
  --part P           pool, device, mixed or both; repeat for more (default: all four, each with its share of
                     the time)
  --points LIST      ROWSxCONTEXT, separated by commas (default: 1x128,16x1024,64x1024)
  --limit SECONDS    for everything (default: 70)
  --stretch SECONDS  how long each point is measured (default: 2)
  --capacity SIZE    of K and V in each pool (default: 4GiB)
  --bin DIR          where the programs are (default: the bundle's bin, else build/cuda/bin, and for
                     lamina and lamina-coordinator also build/release/bin)
JSON in FILE, written again after each result: {"model", "device", "parts": [{"part", "compute", "memory",
"start_s", "answer", "points": [{"rows", "context", "tokens_per_s"}], "left": [points], "error"}]}
Exit status: 0 all is there, 1 some part failed, 124 the time was up.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

REPO = pathlib.Path(__file__).resolve().parent.parent
MODEL = REPO / "models/smollm2-135m-instruct.gguf"
ANY_PORT = "127.0.0.1:0"
QUESTION = "The capital of France is"
ANSWER_TOKENS = 16
SEQUENCE_TOKENS_MAX = 8192
RUNNING_MAX = 64
STOP_SECONDS = 5
CALL_SECONDS = 10
LOG_LINES = 12
POLL_SECONDS = 0.002
TIME_UP = "time up"
CUDA_FREE = ("lamina", "lamina-coordinator")
PARTS = ("pool", "device", "mixed", "both")
# Loopback needs no web proxy of the environment (http_proxy).
PAGES = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Failure(Exception):
    """A part cannot go on; the words say why, with the ends of logs."""


class TimeUp(Exception):
    """Its time is over; the words say in what."""


class Deadline:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        """Seconds, more than 0. Errors: TimeUp."""
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            raise TimeUp()
        return seconds


def programs(folder):
    """{name: path} of the programs. Errors: Failure, if one is not there."""
    places = [REPO / "bin"] if (REPO / "BUNDLE").exists() else [REPO / "build/cuda/bin"]
    others = [] if (REPO / "BUNDLE").exists() else [REPO / "build/release/bin"]
    if folder is not None:
        places, others = [pathlib.Path(folder)], []
    found = {}
    for name in (*CUDA_FREE, "lamina-compute", "lamina-memory"):
        looked = places + (others if name in CUDA_FREE else [])
        found[name] = next((place / name for place in looked if (place / name).exists()), None)
        if found[name] is None:
            raise Failure(f"{name} is not in {' or '.join(map(str, looked))}")
    return found


def parse_points(text):
    """[(rows, context)] of "1x128,16x1024". Errors: argparse.ArgumentTypeError."""
    points = []
    for point in text.split(","):
        found = re.fullmatch(r"(\d+)x(\d+)", point)
        if not found or not 1 <= int(found[1]) <= RUNNING_MAX or not 1 <= int(found[2]) < SEQUENCE_TOKENS_MAX:
            raise argparse.ArgumentTypeError(f"'{point}' is not ROWSxCONTEXT with 1 to {RUNNING_MAX} rows and 1 to "
                                             f"{SEQUENCE_TOKENS_MAX - 1} tokens")
        points.append((int(found[1]), int(found[2])))
    return points


class Cluster:
    """Starts the daemons; ends them, and only them, on exit. Calls raise Failure or TimeUp."""

    def __init__(self, found, model, part, capacity, deadline, decode="canonical"):
        self.found = found
        self.deadline = deadline
        self.temporary = tempfile.TemporaryDirectory(prefix="lamina-gpu-")
        self.folder = pathlib.Path(self.temporary.name)
        self.config = self.folder / "cluster.yaml"
        self.processes = {}
        self.load = None
        self.server = None
        self.page = None
        compute, memory = part["compute"], part["memory"]
        shared = compute in memory and compute != "cpu"
        threads = max(1, min(8, (os.cpu_count() or 1) // 2))
        config = {
            "model": str(model),
            "coordinator": {"listen": ANY_PORT, "http": ANY_PORT},
            "compute": [{"name": "c0", "device": compute}],
            "memory": [{"name": f"m{i}", "device": device, "capacity": capacity} for i, device in enumerate(memory)],
            # Two processes on one device take turns: one that polls there uses up its own.
            "pipeline": {"device_waits": "off" if shared else "auto"},
            "limits": {"sequence_tokens_max": SEQUENCE_TOKENS_MAX, "running_max": RUNNING_MAX},
        }
        if not memory:
            config["policy"] = "local"
            config["compute"][0]["capacity"] = capacity
        if decode != "canonical":
            config["attention"] = {"decode": decode, "prefill": decode}
        for node in (*config["compute"], *config["memory"]):
            if node["device"] == "cpu":
                node["threads"] = threads
        self.config.write_text(json.dumps(config, indent=1))  # JSON is YAML.
        self.memory = [node["name"] for node in config["memory"]]

    def __enter__(self):
        try:
            self.start("lamina-coordinator", "coordinator")
            self.start("lamina-compute", "c0")
            for node in self.memory:
                self.start("lamina-memory", node)
            self.wait(lambda: self.status().get("state") == "serving", "the cluster to serve", 0.2)
            self.page = re.findall(r"metrics at (http://\S+)", self.log("coordinator"))[-1]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.kill_load()
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.temporary.cleanup()

    def start(self, program, name):
        ready = self.folder / f"{name}.ready"
        command = [self.found[program], "--cluster", self.config, "--name", name, "--ready-file", ready]
        if self.server is not None:
            command += ["--coordinator", self.server]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if self.server is None:
            self.wait(lambda: ready.exists() and ready.read_text().strip(), "the coordinator to listen", 0.05)
            self.server = ready.read_text().split()[0]

    def log(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self):
        """The last lines of each daemon's log."""
        return "\n".join(f"--- {name}\n" + "\n".join(self.log(name).splitlines()[-LOG_LINES:])
                         for name in self.processes)

    def check_daemons(self, doing):
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Failure(f"{name} ended with status {process.returncode} while {doing}\n{self.logs()}")

    def wait(self, condition, what, pause):
        while not condition():
            self.check_daemons(f"waiting for {what}")
            try:
                self.deadline.left()
            except TimeUp:
                raise TimeUp(f", waiting for {what}\n{self.logs()}") from None
            time.sleep(pause)

    def lamina(self, *arguments, seconds=CALL_SECONDS):
        """The client's CompletedProcess; after `seconds` its exit status is 124."""
        command = [self.found["lamina"], *map(str, arguments), "--server", self.server]
        try:
            return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                                  errors="replace", timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no end after {seconds:.0f} s")

    def status(self):
        done = self.lamina("status", "--json")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def ask(self, question):
        done = self.lamina("generate", "--prompt", question, "--max-tokens", ANSWER_TOKENS, "--temperature", 0,
                           seconds=self.deadline.left())
        if done.returncode != 0:
            raise Failure(f"generate: exit status {done.returncode}: {done.stderr.strip()}\n{self.logs()}")
        return done.stdout.strip("\n")

    def metric(self, name):
        """The sum of the coordinator's samples whose names begin with this."""
        try:
            with PAGES.open(self.page, timeout=CALL_SECONDS) as page:
                lines = page.read().decode().splitlines()
        except OSError as error:
            raise Failure(f"the coordinator's metrics: {error}\n{self.logs()}") from None
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def check_load(self):
        self.check_daemons("a load ran")
        if self.load.poll() is not None:
            raise Failure(f"the load ended before it was measured, exit status {self.load.returncode}\n{self.logs()}")
        self.deadline.left()

    def kill_load(self):
        if self.load is not None:
            self.load.kill()
            self.load.wait()
            self.load = None

    def step_end(self):
        """The time of the next step's end, and the tokens so far."""
        before = tokens = self.metric("vllm:generation_tokens_total")
        while tokens == before:
            self.check_load()
            time.sleep(POLL_SECONDS)
            tokens = self.metric("vllm:generation_tokens_total")
        return time.monotonic(), tokens

    def decode_rate(self, rows, context, seconds):
        """Tokens a second once all rows decode, from one step's end to that of another."""
        first = "vllm:time_to_first_token_seconds_count"
        before = self.metric(first)
        command = [self.found["lamina"], "bench", "--json", "--server", self.server, "--concurrency", rows,
                   "--requests", rows, "--input-tokens", context, "--output-tokens",
                   SEQUENCE_TOKENS_MAX - context, "--seed", rows * SEQUENCE_TOKENS_MAX + context]
        self.load = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while self.metric(first) - before < rows:
                self.check_load()
                time.sleep(0.05)
            self.step_end()
            begin, tokens_before = self.step_end()
            time.sleep(min(seconds, self.deadline.left()))
            end, tokens_after = self.step_end()
        finally:
            self.kill_load()
        self.wait(lambda: self.status().get("running", 1) == 0, "the load to end", 0.1)
        return (tokens_after - tokens_before) / (end - begin)


def measure(cluster, stretch, part, save):
    """Points into `part`; those that were not reached stay in part["left"]."""
    while part["left"]:
        rows, context = part["left"][0]
        rate = cluster.decode_rate(rows, context, stretch)
        part["points"].append({"rows": rows, "context": context, "tokens_per_s": round(rate, 2)})
        part["left"].pop(0)
        save()


def run_part(part, options, found, points, deadline, save, decode="canonical"):
    """Errors: none; part["error"] says what went wrong."""
    part.update({"start_s": None, "answer": None, "points": [], "left": list(points), "error": None})
    started = time.monotonic()
    try:
        with Cluster(found, options.model, part, options.capacity, deadline, decode) as cluster:
            part["start_s"] = round(time.monotonic() - started, 2)
            save()
            part["answer"] = cluster.ask(QUESTION)
            save()
            measure(cluster, options.stretch, part, save)
    except Failure as failure:
        part["error"] = str(failure)
    except TimeUp as words:
        part["error"] = f"{TIME_UP}{words}"
    save()


def save_as(path, results):
    """Writes all of it again, so that a reader never sees half."""
    part = path.with_name(path.name + ".new")
    part.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(part, path)


def new_part(name, device):
    """Where its nodes are; `memory` is a list of devices, one of each memory node."""
    memory = {"pool": [], "device": [device], "mixed": ["cpu"], "both": [device, "cpu"]}[name]
    return {"part": name, "compute": device, "memory": memory}


def places(part):
    """For people."""
    return f"compute on {part['compute']}, " + (f"memory on {' and '.join(part['memory'])}" if part["memory"]
                                                else "K and V there too")


def exit_status(parts):
    errors = [part["error"] for part in parts if part["error"] is not None]
    if not errors:
        return 0
    return 124 if all(error.startswith(TIME_UP) for error in errors) else 1


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--model", type=pathlib.Path, default=MODEL)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--points", type=parse_points, default="1x128,16x1024,64x1024")
    parser.add_argument("--limit", type=float, default=70)
    parser.add_argument("--stretch", type=float, default=2)
    parser.add_argument("--capacity", default="4GiB")
    parser.add_argument("--bin")
    return parser.parse_args()


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = Deadline(options.limit - STOP_SECONDS)
    options.model = options.model.resolve()
    results = {"model": options.model.name, "device": options.device, "parts": []}
    wanted = options.part or PARTS
    try:
        found = programs(options.bin)
        if not options.model.exists():
            raise Failure(f"{options.model} is not there; name a model with --model")
    except Failure as failure:
        sys.exit(f"gpu_serve.py: {failure}")
    for i, name in enumerate(wanted):
        part = new_part(name, options.device)
        results["parts"].append(part)
        seconds = 0
        with contextlib.suppress(TimeUp):
            seconds = end.left() / (len(wanted) - i)
        run_part(part, options, found, options.points, Deadline(seconds), lambda: save_as(options.out, results))
        print(f"{name}: {places(part)}, serves after {part['start_s']} s")
        print(f"{name}: {QUESTION}{part['answer'] or ' (no answer)'}")
        for point in part["points"]:
            print(f"{name}: {point['rows']} rows at {point['context']}: {point['tokens_per_s']} tokens/s")
        if part["error"] is not None:
            print(f"{name}: failed: {part['error']}", flush=True)
    return exit_status(results["parts"])


if __name__ == "__main__":
    sys.exit(main())

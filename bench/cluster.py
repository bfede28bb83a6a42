# SPDX-License-Identifier: Apache-2.0
"""A cluster of one compute node, if asked for another for prompts, and two memory nodes for benchmarks, on ports of its own;
or one that serves already (--server)."""

import dataclasses
import itertools
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from programs import BIN, ROOT, end_on_signals, need

MODEL = ROOT / "models/smollm2-135m-instruct.gguf"
GET_MODEL = "deploy/get_model.sh"
START_SECONDS_MAX = 180
STRETCH_SECONDS = 2.0
STRETCHES = 3
SETTLE_SECONDS = 1.0
NOBODY_BEGINS_SECONDS = 4.0
POLL_SECONDS = 0.003
LOOK_SECONDS = 0.05  # While prompts are measured: a look takes a millisecond and more of the cores that compute them.
SEQUENCE_TOKENS_MAX = 8192
ANSWER_TOKENS_MAX = 6000  # More than is needed: a load is ended when it has been measured.
LANES_MOST = 16
REMOTE_ANSWER_TOKENS = 2000  # The limit of a cluster that was started elsewhere is not known here.
ANY_PORT = "127.0.0.1:0"
PART = re.compile(r'lamina_part_seconds_total\{node="([^"]+)",role="[^"]+",part="([^"]+)"\}')


end_on_signals()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def need_model(path):
    """Returns where it is there, or ends the benchmark with the command that gets the quick start's."""
    if not pathlib.Path(path).exists():
        sys.exit(f"{path} is missing" + (f": {GET_MODEL}" if path == MODEL else ""))


@dataclasses.dataclass
class Stretch:
    tokens_per_second: float
    shares: dict  # (node, part) -> seconds a second
    context_tokens: float  # Of all rows, in the middle.
    rows: float = 0.0  # How many these are.


def step_at(points, context):
    """Seconds of a step at a context, by the median line through [(context, seconds)], in which contexts grew. No less than nothing and no more
    than all of a step grows with them."""
    slopes = [(after[1] - before[1]) / (after[0] - before[0]) for before, after in itertools.combinations(points, 2) if before[0] != after[0]]
    most = statistics.median(seconds for _, seconds in points) / statistics.median(tokens for tokens, _ in points)
    slope = min(max(statistics.median(slopes or [0.0]), 0.0), most)
    return statistics.median(seconds + slope * (context - tokens) for tokens, seconds in points)


class Running:
    """Puts loads on a cluster that serves, and measures how it does. Where the counters come from is the subclass's."""

    def __init__(self, address):
        self.address = address
        self.load = None
        self.load_rows = 0
        self.chunk_choice = ""  # When a rate was measured.
        self.lane_choice = ""
        self.first_tokens_before = 0.0
        self.last_stretches = []  # Of row_seconds().

    def status(self):
        done = subprocess.run([BIN / "lamina", "status", "--json", "--server", self.address],
                              capture_output=True, text=True, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def begin_load(self, rows, context, policy=None, draws=(), answer_tokens=None):
        """A closed load of `rows` requests, whose answers outlast all prompts and the measurement, or have so many tokens. `policy`: of a cluster with
        several. `draws`: flags of `lamina bench` that say how tokens are drawn."""
        self.load_rows = rows
        self.first_tokens_before = self.first_tokens()
        self.load = subprocess.Popen(
            [BIN / "lamina", "bench", "--json", "--server", self.address, "--concurrency", str(rows), "--requests",
             str(rows), "--input-tokens", str(context), "--output-tokens", str(answer_tokens or self.answer_tokens(context)),
             *(["--policy", policy] if policy else []), *draws],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def check_load(self):
        if self.load.poll() is not None:
            raise RuntimeError(f"the load of {self.load_rows} requests ended before it was measured")

    def all_decode(self):
        self.check_load()
        return self.first_tokens() - self.first_tokens_before >= self.load_rows

    def kill_load(self):
        if self.load is not None:
            self.load.kill()
            self.load.wait()
            self.load = None

    def settled(self, seconds):
        """Its status, when no epoch has begun for so long."""
        status, since = self.status(), time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(0.1)
            now = self.status()
            if now.get("epoch") != status.get("epoch") or now.get("state") != "serving":
                since = time.monotonic()
            status = now
        return status

    def row_seconds(self, rows, context):
        """Seconds in which each of so many rows gets a token at the context asked for, rows that take turns included. Answers grow while they are
        measured, those of fast steps grow more, and one that finds no slot any more waits again: contexts are those of a row that is in a lane."""
        self.last_stretches = self.decode_stretches(rows, context, wait_for_all=False)
        return step_at([(one.context_tokens / one.rows, rows / one.tokens_per_second) for one in self.last_stretches], context)

    def context_tokens(self):
        """Of all rows in lanes."""
        return self.in_lanes()[1]

    def end_load(self):
        """No request is left when it returns."""
        self.kill_load()
        while True:
            status = self.status()
            if status.get("state") == "serving" and status.get("running", 1) == 0:
                return
            time.sleep(0.1)

    def step_end(self):
        """The time of the next step's end, and the tokens so far."""
        before = tokens = self.tokens_generated()
        while tokens == before:
            self.check_load()
            time.sleep(POLL_SECONDS)
            tokens = self.tokens_generated()
        return time.monotonic(), tokens

    def whole_steps_end(self, tokens_before, rows):
        """step_end(), with as many steps of each of so many rows since `tokens_before`. Lanes end a step one after the other: between the end of one
        lane and that of another there is a step more of some rows, of two long steps half as much again. Rows that take turns have no such end."""
        first = end, tokens = self.step_end()
        for _ in range(LANES_MOST):
            if rows == 0 or (tokens - tokens_before) % rows == 0:
                return end, tokens
            end, tokens = self.step_end()
        return first

    def stretch(self, seconds):
        """From the end of one step to that of another."""
        begin, tokens_before = self.step_end()
        before, parts_begin = self.part_seconds(), time.monotonic()
        time.sleep(seconds / 2)
        rows, context = self.in_lanes()
        time.sleep(seconds / 2)
        after, parts_end = self.part_seconds(), time.monotonic()
        end, tokens_after = self.whole_steps_end(tokens_before, rows)
        return Stretch((tokens_after - tokens_before) / (end - begin),
                       {part: (spent - before.get(part, 0.0)) / (parts_end - parts_begin)
                        for part, spent in after.items()}, context, rows)

    def decode_rate(self, rows, context):
        """The best of some stretches in which all rows decode. The prompts before them take the longest."""
        return max(self.decode_stretches(rows, context), key=lambda one: one.tokens_per_second)

    def prompt_and_decode_rates(self, rows, context):
        """Tokens of prompts a second, from the first request's coming to the last one's first token, and decode_rate()."""
        waited = self.first_token_seconds()
        self.begin_load(rows, context)
        while self.requests_inside() == 0:
            self.check_load()
            time.sleep(POLL_SECONDS)
        begin = time.monotonic()
        while not self.all_decode():
            time.sleep(LOOK_SECONDS)
        # The coordinator's own time of one request is exact, where looks are not.
        seconds = self.first_token_seconds() - waited if rows == 1 else time.monotonic() - begin
        prompt = rows * context / seconds
        return prompt, max(self.stretches(), key=lambda one: one.tokens_per_second)

    def decode_stretches(self, rows, context, wait_for_all=True):
        """`wait_for_all` false: some rows may wait for others to end; then it waits until no further one has begun for a while, nor has a prompt
        been computed. Two prompts of 1,024 tokens next to rows that fetch can take 4 s."""
        self.begin_load(rows, context)
        seen, since = 0.0, time.monotonic()
        while not self.all_decode():
            time.sleep(0.2)
            begun = self.first_tokens() - self.first_tokens_before
            if begun != seen or self.requests_running() > begun:
                seen, since = begun, time.monotonic()
            elif not wait_for_all and begun > 0 and time.monotonic() - since > NOBODY_BEGINS_SECONDS:
                break
        return self.stretches()

    def stretches(self):
        """Of the load that decodes; ends it."""
        time.sleep(SETTLE_SECONDS)
        stretches = [self.stretch(STRETCH_SECONDS) for _ in range(STRETCHES)]
        status = self.status()
        self.chunk_choice, self.lane_choice = status.get("chunk_choice", ""), status.get("lane_choice", "")
        self.end_load()
        return stretches


class Cluster(Running):
    """Starts the daemons; ends them, and only them, on exit."""

    def __init__(self, lanes, compute_cores="0", memory_cores="1", memory_nodes=2, capacity="2GiB",
                 running_max=256, chunk_tokens=512, coordinator_cores="", transport="shm", chunks="auto",
                 query_first="auto", prefill_cores=None, local=False, auto_load=None, model=MODEL,
                 prefix_cache="off", fetch=None, sequence_tokens_max=SEQUENCE_TOKENS_MAX, scratch_tokens=None, memory_budget=None,
                 weights_budget=None, weights_ahead=1, weights=None, kv_form=None, spill=None, attend=True,
                 compute_capacity=None, partition=None, parts=None, policies=None, threads=None):
        """`compute_cores`: of the compute node, or a tuple, of a node each, which with `parts` ("stage" or "shard") are those of one replica. `prefill_cores`: prompts run on a node of their own there, "p0". `local`: policy local, without memory nodes.
        `auto_load`: policy auto, for (rows, context), and tokens of prompts to each generated one, if not 1; `compute_cores` may have those of the memory nodes too.
        `fetch`: (policy, its keys of `fetch:`). `policies`: a list that requests choose from; the first is that of those that name none. `attend` false: memory nodes are stores. `compute_capacity`: for K and V on the compute node; None: with local as memory nodes, with auto none where `fetch` is given. `memory_budget`, `weights_budget`, `weights_ahead` (with a budget), `weights` (packed, bf16, int8), `threads`: of the compute node. `kv_form`: bf16 or int8. `spill`: (folder, capacity) of each memory node. Loads repeat
        their prompts, so that K and V of these are not kept unless it says so."""
        super().__init__(f"127.0.0.1:{free_port()}")
        self.folder = tempfile.TemporaryDirectory(prefix="lamina-bench-")
        self.processes = []
        self.pages = {}
        names = [] if local else [f"m{i}" for i in range(memory_nodes)]
        self.config = pathlib.Path(self.folder.name) / "cluster.yaml"
        tier = f", spill: {{path: {spill[0]}, capacity: {spill[1]}}}" if spill else ""
        store = "" if attend else ", attend: false"
        memory = "memory:\n" + "\n".join(
            f'  - {{name: {name}, cores: "{memory_cores}", capacity: {capacity}, http: {ANY_PORT}{tier}{store}}}'
            for name in names)
        own = compute_capacity or (capacity if local or (auto_load and not fetch) else None)
        kv = f", capacity: {own}" if own else ""
        if memory_budget:
            kv += f", memory_budget: {memory_budget}"
        if weights_budget:
            kv += f", weights_budget: {weights_budget}, weights_ahead: {weights_ahead}"
        if weights:
            kv += f", weights: {weights}"
        if threads:
            kv += f", threads: {threads}"
        scratch = f", scratch_tokens: {scratch_tokens}" if scratch_tokens else ""
        policy = policies[0] if policies else "local" if local else "auto" if auto_load else fetch[0] if fetch else "attend_remote"
        spread = f"partition: {partition}\n" if partition else ""
        load = f"policy_load: {json.dumps(dict(zip(('rows', 'context', 'prompts'), auto_load)))}\n" if auto_load else ""
        if fetch:
            load += f"fetch: {json.dumps(fetch[1])}\n"
        if policies:
            load += f"policies: {json.dumps(policies)}\n"
        prefill = "" if prefill_cores is None else (
            f'  - {{name: p0, role: prefill, cores: "{prefill_cores}", http: {ANY_PORT}}}\n')
        cores = [compute_cores] if isinstance(compute_cores, str) else compute_cores
        part = f", replica: r0, {parts}: {{}}" if parts else ""
        computes = "".join(f'  - {{name: c{i}, cores: "{some}", http: {ANY_PORT}{kv}{part.format(i)}}}\n' for i, some in enumerate(cores))
        self.config.write_text(
            f'model: {model}\ncoordinator: {{listen: {self.address}, http: {ANY_PORT}, cores: "{coordinator_cores}"}}\n'
            f'compute:\n{computes}{prefill}'
            f"policy: {policy}\n{load}{f'kv: {kv_form}' if kv_form else ''}\n{'' if local else memory}\n"
            f"pipeline: {{mode: rotational, lanes: {lanes}, chunks: {chunks}, query_first: {query_first}}}\n"
            f'transport: "{transport}"\nprefix_cache: {prefix_cache}\n{spread}'
            f"prefill: {{mode: {'dedicated' if prefill else 'inline'}, chunk_tokens: {chunk_tokens}{scratch}}}\n"
            f"limits: {{sequence_tokens_max: {sequence_tokens_max}, running_max: {running_max}}}\n")
        compute = [f"c{i}" for i in range(len(cores))] + (["p0"] if prefill else [])
        self.nodes = compute + names
        self.names = [("lamina-coordinator", "coordinator")] + [("lamina-compute", name) for name in compute]
        self.names += [("lamina-memory", name) for name in names]
        self.model_path = model

    def process(self, name):
        return self.processes[[node for _, node in self.names].index(name)]

    def pid(self, name):
        return self.process(name).pid

    def kill(self, name):
        """As a crash would end it."""
        self.process(name).kill()
        self.process(name).wait()

    def __enter__(self):
        need("lamina", *{program for program, _ in self.names})
        need_model(self.model_path)
        try:
            self.start()
        except BaseException:  # Whoever ends it meanwhile, with a signal too: `with` ends only what was entered.
            self.__exit__()
            raise
        return self

    def start(self):
        for program, name in self.names:
            with open(pathlib.Path(self.folder.name) / f"{name}.log", "wb") as log:
                self.processes.append(subprocess.Popen(
                    [BIN / program, "--cluster", self.config, "--name", name], stdout=log, stderr=log))
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            if self.status().get("state") == "serving":
                return
            if any(process.poll() is not None for process in self.processes):
                break  # Its log says why.
            time.sleep(0.2)
        logs = "".join(self.log(name)[-500:] for _, name in self.names)
        raise RuntimeError(f"the cluster did not start (it has {START_SECONDS_MAX} s for it):\n{logs}")

    def __exit__(self, *_):
        self.kill_load()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()

    def log(self, daemon):
        """What it has printed so far."""
        return (pathlib.Path(self.folder.name) / f"{daemon}.log").read_text()

    def metrics(self, daemon="coordinator"):
        """{sample: value} of a daemon's /metrics. Far cheaper than status(), which starts a program: that
        takes tens of milliseconds from the cores that are being measured."""
        if daemon not in self.pages:
            self.pages[daemon] = re.findall(r"metrics at (http://\S+)", self.log(daemon))[-1]
        with urllib.request.urlopen(self.pages[daemon], timeout=START_SECONDS_MAX) as page:
            lines = page.read().decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def tokens_generated(self):
        return sum(value for name, value in self.metrics().items()
                   if name.startswith("vllm:generation_tokens_total"))

    def requests_inside(self):
        return sum(value for name, value in self.metrics().items()
                   if name.startswith(("vllm:num_requests_running", "vllm:num_requests_waiting")))

    def requests_running(self):
        """Those whose prompts are computed among them, but none that waits for a slot."""
        return sum(value for name, value in self.metrics().items() if name.startswith("vllm:num_requests_running"))

    def sent_bytes(self, name):
        return self.metrics(name)[f'lamina_sent_bytes_total{{node="{name}",role="memory"}}']

    def part_seconds(self):
        """{(node, part): seconds} that each node has spent on each part of its work so far."""
        parts = {}
        for daemon in self.nodes:
            for name, value in self.metrics(daemon).items():
                found = PART.match(name)
                if found:
                    parts[found.groups()] = value
        return parts

    def answer_tokens(self, context):
        return min(ANSWER_TOKENS_MAX, SEQUENCE_TOKENS_MAX - context)

    def first_tokens(self):
        return sum(value for name, value in self.metrics().items()
                   if name.startswith("vllm:time_to_first_token_seconds_count"))

    def first_token_seconds(self):
        """The sum of all requests' times from their coming to their first token."""
        return sum(value for name, value in self.metrics().items()
                   if name.startswith("vllm:time_to_first_token_seconds_sum"))

    def in_lanes(self):
        """Rows, and all their tokens of context."""
        page = self.metrics()
        return tuple(sum(value for name, value in page.items() if name.startswith(sample)) for sample in ("lamina_lane_rows", "lamina_lane_context_tokens"))


class Remote(Running):
    """A cluster that serves already, here or elsewhere: nothing of it is started, set or ended. Its counters come by `lamina
    status`, which takes some tens of milliseconds, so that a stretch is measured to within so much."""

    def __init__(self, address, answer_tokens=REMOTE_ANSWER_TOKENS):
        super().__init__(address)
        self.tokens_of_answers = answer_tokens

    def __enter__(self):
        need("lamina")
        status = self.status()
        if status.get("state") != "serving":
            raise SystemExit(f"--server: no cluster serves at {self.address}")
        if status["running"] + status["waiting"] > 0:
            raise SystemExit(f"--server: {self.address} has {status['running'] + status['waiting']} requests of others")
        return self

    def __exit__(self, *_):
        self.kill_load()

    def nodes(self):
        return self.status()["nodes"]

    def answer_tokens(self, _):
        return self.tokens_of_answers

    def tokens_generated(self):
        return self.status()["tokens_generated"]

    def part_seconds(self):
        return {(node["name"], part): spent for node in self.nodes() for part, spent in node["part_seconds"].items()}

    def sent_bytes(self, name):
        return next(node["bytes_sent"] for node in self.nodes() if node["name"] == name)

    def requests_inside(self):
        status = self.status()
        return status["running"] + status["waiting"]

    def requests_running(self):
        return self.status()["running"]

    def first_tokens(self):
        return self.status()["time_to_first_token"]["count"]

    def first_token_seconds(self):
        return self.status()["time_to_first_token"]["seconds_sum"]

    def in_lanes(self):
        lanes = self.status()["lanes"]
        return tuple(sum(lane[key] for lane in lanes) for key in ("rows", "context_tokens"))


def add_server(parser):
    parser.add_argument("--server", metavar="HOST:PORT",
                        help="measure the cluster that serves there, as it is, instead of one that is started here")


def described(running):
    """What a remote cluster is, in a line."""
    status = running.status()
    nodes = ", ".join(f"{node['name']} ({node['role']}, {node['device']})" for node in status["nodes"])
    return f"cluster {running.address}: {status['model']}, policy {status['policy']}, {len(status['lanes'])} lanes, {nodes}"

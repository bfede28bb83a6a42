# SPDX-License-Identifier: Apache-2.0
"""What the scripts of the papers share: shapes that stand for a paper's models, links and buses, a measured generation, tables, verdicts.

c is the time to make K and V of a token over the time to send them. Times of KVPR's equation are in units of the time that K and V of all
tokens take on the link; an activation has half of their bytes.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import cluster
import random_opt
import svg
from programs import BIN

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = os.path.join(ROOT, "docs", "experiments", "images")
NOT_BUILT = "not built"
ACTIVATION = 0.5  # Of the bytes of K and V, in a multi-head model.
LONGEST = 2048  # Tokens of a sequence.
MIB = 1 << 20
WINDOW = "256MiB"
SETTLED_SECONDS = 20  # For the share that a cluster settles on.
IDLE_SECONDS = 2  # In which another share may be settled on.
BUS_BYTES = re.compile(r'lamina_bus_bytes_total\{.*direction="(to|from)",kind="(\w+)"\}')
BUSES = itertools.count()
BAR = 20  # Characters.
MINUTES_MOST = 10  # A command takes no more.
CLAIMS = "claims"  # Among minutes of parts.

# OPT's three sizes, a sixteenth as wide and an eighth as deep.
MODELS = {
    "OPT-6.7B": random_opt.Shape(layers=4, width=256, heads=4, positions=LONGEST),
    "OPT-13B": random_opt.Shape(layers=5, width=320, heads=5, positions=LONGEST),
    "OPT-30B": random_opt.Shape(layers=6, width=448, heads=7, positions=LONGEST),
}
SMALLEST = "OPT-6.7B"


def verdict(holds):
    return "reproduced" if holds else "not reproduced"


def table(head, rows):
    print("\n| " + " | ".join(map(str, head)) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print(flush=True)


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.0f} min"


def progress(number, count, text, out=None, left=None):
    """Says which of so many steps begins: on a terminal behind a bar of those that are done, and with the time to go, `left` seconds, if that is known."""
    out = out or sys.stdout
    if out.isatty():
        done = BAR * (number - 1) // count
        to_go = "" if left is None else f"; {duration(left)} to go"
        print(f"[{'#' * done}{'.' * (BAR - done)}] {number}/{count} {text}{to_go}", file=out, flush=True)
    else:
        print(f"[{number}/{count}] {text}", file=out, flush=True)


class Steps:
    """So many steps, each of which says that it begins. The time to go is by that of those before: all take as long, or as `seconds` of each says,
    by which it is told until one is done."""

    def __init__(self, count, seconds=None, out=None):
        self.seconds, self.known, self.out = list(seconds or [1.0] * count), seconds is not None, out
        self.begun, self.begin = 0, time.monotonic()

    def left(self):
        """Seconds, or None."""
        done, to_do = sum(self.seconds[:self.begun]), sum(self.seconds[self.begun:])
        if done > 0:
            return (time.monotonic() - self.begin) / done * to_do
        return to_do if self.known else None

    def say(self, text):
        left = self.left()
        self.begun += 1
        progress(self.begun, len(self.seconds), text, self.out, left)


def each(values, words):
    """Yields the values, each behind a line of progress, words(value), on stderr: rows of a table are printed meanwhile."""
    values = list(values)
    steps = Steps(len(values), out=sys.stderr)
    for value in values:
        steps.say(words(value))
        yield value


def draw(images, name, title, x_label, y_label, series, **axes):
    """`series` as of svg.chart(); those without points are left out."""
    os.makedirs(images, exist_ok=True)
    svg.chart(os.path.join(images, f"{name}.svg"), title, x_label, y_label, [one for one in series if one[1]], **axes)


def link(bandwidth):
    return f"throttle(bandwidth={int(bandwidth)}B)+shm"


def bus(bandwidth):
    """Of whatever goes to the compute node: K, V, activations and weights. Each call names another one."""
    return f"throttle(bandwidth={int(bandwidth)}B,bus=paper-{os.getpid()}-{next(BUSES)})+shm"


def split_time(c):
    """Of a step at the best split, over full transfer."""
    return min(1.0, (ACTIVATION + c) / (1 + c))


def split_share(c):
    """Of the tokens, recomputed at the best split."""
    return 1 / (1 + c) if split_time(c) < 1 else 0.0


def ahead_share(c):
    """As above, where the activations of the next layer come while those of one are used, as they do with room for them in the windows (ADR 0228)."""
    return min(1.0, 1 / (1 + c - ACTIVATION))


def streamed_time_of_the_paper(weights, c):
    """Of a step at the best split of the paper's equation, which does not know of the weights that come over the link too, and of these."""
    return weights + split_time(c)


def streamed_time(weights, c):
    """Of a step at the best split, if weights take so long on the same link: more is made again while they come."""
    share = min(1.0, (weights + 1) / (c + 1))
    return min(weights + 1, ACTIVATION * share + max(c * share, weights + 1 - share))


def streamed_time_of_lanes(weights, c):
    """As above, where several lanes share the link and the weights."""
    share = min(1.0, (weights + 1) / (c + 1 - ACTIVATION))
    return max(weights + 1 - share + ACTIVATION * share, c * share)


def streamed_gain(kv_over_weights, c, time=streamed_time):
    """Most that throughput can rise by the best split where weights come over the same bus and nothing else takes time."""
    weights = 1 / kv_over_weights
    return (weights + 1) / time(weights, c) - 1


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def weights_budget(shape, lanes, ahead=1):
    """Of a node on which all layers stream: the slots, and what never streams (tables, vectors, the last slice)."""
    slots = (1 if lanes == 1 else 2) + ahead
    return slots * shape.layer_bytes() + shape.last_slice_bytes() + shape.table_bytes() + shape.vector_bytes() + MIB // 8


def wait_for_share(running):
    """What the cluster says of the share that fetch_hybrid has settled on."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while time.monotonic() < deadline:
        status = running.status()
        words = status.get("fetch_choice", "")
        if status.get("state") == "serving" and words and "until links are measured" not in words:
            return words
        time.sleep(0.1)
    raise RuntimeError(f"the cluster settled on no share in {SETTLED_SECONDS} s")


def settle_share(running, load):
    """What the cluster says of the share that fetch_hybrid has settled on behind a load, load(), by whose use attention is measured."""
    wait_for_share(running)
    load()
    time.sleep(IDLE_SECONDS)
    return wait_for_share(running)


class Cluster(cluster.Cluster):
    """One whose sequences are as short as a random model's positions."""

    def __init__(self, lanes, longest=LONGEST, **keys):
        super().__init__(lanes, memory_nodes=1, sequence_tokens_max=longest, **keys)
        self.longest = longest

    def answer_tokens(self, context):
        return self.longest - context


@dataclasses.dataclass
class Generation:
    seconds: dict  # {tokens of each row: seconds in which all rows got so many}, from when all of them decoded
    prompt_seconds: float  # From the first request's coming to the last one's first token.
    span_seconds: float  # That what follows is of.
    steps: float
    parts: dict  # {part of the compute node's time: seconds a second}
    sent: dict  # {(direction, kind): bytes of a step}, on an emulated bus
    recomputed: float  # Tokens in all layers, of a step.

    def step(self):
        """Seconds, by the longest stretch."""
        most = max(self.seconds)
        return self.seconds[most] / most

    def busy(self):
        """Share of the time in which the compute node did not wait."""
        return sum(share for part, share in self.parts.items() if not part.startswith("wait"))


def bus_bytes(metrics):
    """{(direction, kind): bytes} of a compute node's page."""
    found = {}
    for name, value in metrics.items():
        match = BUS_BYTES.match(name)
        if match:
            found[match.groups()] = value
    return found


def counters(metrics):
    """{part: seconds}, bytes on the bus, and recomputed tokens, so far."""
    parts = {match.group(2): value for name, value in metrics.items() for match in [cluster.PART.match(name)] if match}
    recomputed = sum(value for name, value in metrics.items() if name.startswith("lamina_recomputed_tokens_total"))
    return parts, bus_bytes(metrics), recomputed


def requests(running, rows, tokens_in, tokens_out):
    """The report of so many whole requests, all at once."""
    done = subprocess.run([BIN / "lamina", "bench", "--json", "--server", running.address, "--concurrency", str(rows), "--requests", str(rows),
                           "--input-tokens", str(tokens_in), "--output-tokens", str(tokens_out)], capture_output=True, text=True, check=True)
    report = json.loads(done.stdout)
    if report["failed"]:
        raise RuntimeError(f"{report['failed']} of {rows} requests of {tokens_in} tokens failed: {report['errors']}")
    return report


def all_decoding(running, rows, context):
    """Puts the load on, and returns the seconds that its prompts took."""
    running.begin_load(rows, context)
    while running.requests_inside() == 0:
        running.check_load()
        time.sleep(cluster.POLL_SECONDS)
    begin = time.monotonic()
    while not running.all_decode():
        time.sleep(cluster.POLL_SECONDS)
    return time.monotonic() - begin


def learn_times(running, rows, context):
    """A load until the split goes by measured times: the nodes measure as the epoch begins, and the coordinator has it with their next report."""
    all_decoding(running, rows, context)
    while "not measured yet" in running.status().get("fetch_choice", ""):
        running.check_load()
        time.sleep(cluster.POLL_SECONDS)
    running.end_load()


def until_each_has(running, rows, begin, tokens, mark):
    """Seconds in which each row got `mark` tokens behind so many at `begin`, and the tokens then. Short steps may go by unseen; tokens of lanes
    come in a burst, of which the same lane ends the first step and the last."""
    while True:
        end, now = running.step_end()
        if now - tokens >= mark * rows:
            return (end - begin) * mark / ((now - tokens) // rows), now


def generate(running, rows, context, marks):
    """Generation of max(marks) tokens by each of `rows` requests behind prompts of `context` tokens."""
    prompt = all_decoding(running, rows, context)
    begin, tokens = running.step_end()
    before, parts_begin = counters(running.metrics("c0")), time.monotonic()
    seconds, now = {}, tokens
    for mark in sorted(marks):
        seconds[mark], now = until_each_has(running, rows, begin, tokens, mark)
    after, span = counters(running.metrics("c0")), time.monotonic() - parts_begin
    running.end_load()
    steps = (now - tokens) / rows
    return Generation(seconds, prompt, span, steps, {part: (spent - before[0].get(part, 0.0)) / span for part, spent in after[0].items()},
                      {key: (value - before[1].get(key, 0.0)) / steps for key, value in after[1].items()}, (after[2] - before[2]) / steps)


def make_seconds(model, rows=8, context=256, turns=3):
    """Seconds to make K and V of a token in a layer on a compute node of one core, the least of some turns: all tokens are activations, over a link that is not slowed down."""
    with Cluster(1, model=model, fetch=("fetch_recompute", {"window": WINDOW, "recompute_percent": 100})) as running:
        found = [generate(running, rows, context, [16]) for _ in range(turns)]
    return min(one.parts["recompute"] * one.span_seconds / (one.steps * one.recomputed) for one in found)


class Bench:
    """Models that are written once, and the time to make K and V of a token of the narrowest."""

    def __init__(self, folder, images):
        self.folder, self.images, self.written, self.made = pathlib.Path(folder), images, {}, 0.0

    def model(self, name):
        if name not in self.written:
            path = self.folder / name
            path.mkdir()
            random_opt.write(path, MODELS[name])
            self.written[name] = path
        return self.written[name]

    def bandwidth(self, c):
        """Bytes a second at which the narrowest model has this c."""
        if not self.made:
            self.made = make_seconds(self.model(SMALLEST))
            print(f"K and V of a token in a layer of {SMALLEST}'s shape: {1e6 * self.made:.1f} us to make, {MODELS[SMALLEST].kv_bytes()} bytes", flush=True)
        return c * MODELS[SMALLEST].kv_bytes() / self.made


def in_turns(minutes):
    """Parts in groups that one command has time for: [[name]]. One that takes longer is by itself."""
    groups, taken = [], 0.0
    for name, value in minutes.items():
        if not groups or taken + value > MINUTES_MOST:
            groups, taken = [*groups, []], 0.0
        groups[-1].append(name)
        taken += value
    return groups


def minutes_in_words(minutes):
    """`minutes`: {part, or CLAIMS: on two quiet cores}. What each takes, and all parts together; if that is too long, in how many goes."""
    parts = {name: value for name, value in minutes.items() if name != CLAIMS}
    total = sum(parts.values())
    words = f"About {total:g} minutes on two quiet cores for all: {', '.join(f'{name} {value:g}' for name, value in parts.items())}."
    if total > MINUTES_MOST:
        words += f" That is more than {MINUTES_MOST}; in turns: {'; '.join(', '.join(group) for group in in_turns(parts))}."
    return words + (f" The claims (--claims): {minutes[CLAIMS]:g}." if CLAIMS in minutes else "")


def add_parts(parser, names, minutes=None):
    """Options that choose one of the parts, which are called like "figure 9" or "table 2". `minutes`: as of minutes_in_words(), for --help."""
    parser.epilog = minutes_in_words(minutes) if minutes else None
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--claims", action="store_true", help="the claims, in place of the figures in shape")
    for kind in ("figure", "table"):
        numbers = [name.split()[1] for name in names if name.startswith(kind)]
        if numbers:
            which.add_argument(f"--{kind}", choices=numbers, nargs="+", help=f"these {kind}s alone")


def parts_asked(arguments):
    """The parts that were asked for; none: all of them."""
    return [f"{kind} {number}" for kind in ("figure", "table") for number in getattr(arguments, kind, None) or ()]


def run_asked(arguments, parts, make_bench, run_claims, minutes=None):
    """The claims, or the parts that were asked for. None were: all parts, with what they take, and how to have the claims is said."""
    if arguments.claims:
        return run_claims(arguments)
    asked = parts_asked(arguments)
    if minutes and not asked:
        print(minutes_in_words(minutes), flush=True)
    found = {"parts": run_parts(parts, asked or list(parts), make_bench, arguments.images, minutes)}
    if not asked:
        print(f"These are the figures in shape. The claims: bench/run.sh paper -- --only {arguments.only} --claims", flush=True)
    return found


def run_parts(parts, names, make_bench, images, minutes=None):
    """{part: its figures}, of so many of `parts` in turn: {name: function of a bench}. `minutes`: {name: what it takes}."""
    results = {}
    seconds = [60 * minutes[name] for name in names] if minutes else []
    steps = Steps(len(names), seconds if sum(seconds) > 0 else None)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lamina-paper-") as folder:
        bench = make_bench(folder, images)
        for name in names:
            steps.say(name)
            begin = time.monotonic()
            try:
                results[name] = parts[name](bench)
            except (RuntimeError, subprocess.SubprocessError) as error:  # The others go on.
                print(f"{name} gave up: {error}")
                results[name] = {"problem": str(error)}
            print(f"{name} took {time.monotonic() - begin:.0f} s\n", flush=True)
    if len(names) > 1:
        print(f"All of it took {(time.monotonic() - start) / 60:.1f} min", flush=True)
    return results

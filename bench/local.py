#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory nodes against policy local, on the same cores, in turns of one run.

Both clusters are started and given the same load: closed, so many rows of so much context. Then they decode in turns of some
seconds each; in the other's turns a cluster's processes are stopped (SIGSTOP), so that it takes nothing from the cores, and
what disturbs the machine disturbs both. A turn's step is its time by its steps, from one step's end to another's. Of the
ratios of neighbouring turns the median counts; the range shows the noise.

  tax    compute and memory node on the same cores, one lane, over shm, against policy local on these cores: what it costs
         that attention is another process. tax = step over shm / step of policy local - 1
  pools  a compute node on core 0 and a memory node on core 1, with one lane and with two, against policy local on both
         cores. gain = tokens/s of two pools / tokens/s of policy local. The number of lanes is given, since `auto` goes by
         measured times, and those of a cluster that was stopped are wrong
"""

import argparse
import json
import signal
import statistics
import subprocess
import time

import cluster

SLICE_SECONDS = 4.0  # Of a cluster whose prompts are worked on. A node that is silent for 10 s is dropped.
ALIVE_SECONDS = 0.4  # For the nodes of one that waits to report.
SETTLE_SECONDS = 0.3
POLL_SECONDS = 0.003
ANSWER_TOKENS_MAX = 6000  # More than is needed: the load is ended when all has been measured.
SEQUENCE_TOKENS_MAX = 8192


def point(text):
    rows, context = text.split("x")
    return int(rows), int(context)


def points(text):
    return [point(part) for part in text.split(",")]


class Side:
    """A cluster that runs in its turns alone."""

    def __init__(self, name, **keys):
        self.name = name
        self.running = cluster.Cluster(**keys)
        self.load = None
        self.first_tokens_before = 0

    def __enter__(self):
        self.running.__enter__()
        return self

    def __exit__(self, *exception):
        self.end_load()
        self.resume()
        self.running.__exit__(*exception)

    def pause(self):
        for process in self.running.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self):
        for process in self.running.processes:
            process.send_signal(signal.SIGCONT)

    def begin_load(self, rows, context):
        tokens = min(ANSWER_TOKENS_MAX, SEQUENCE_TOKENS_MAX - context)
        self.first_tokens_before = self.first_tokens()
        self.load = subprocess.Popen(
            [cluster.BIN / "lamina", "bench", "--json", "--server", self.running.address, "--concurrency", str(rows),
             "--requests", str(rows), "--input-tokens", str(context), "--output-tokens", str(tokens)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end_load(self):
        if self.load is not None:
            self.load.kill()
            self.load.wait()
            self.load = None

    def first_tokens(self):
        return sum(value for name, value in self.running.metrics().items()
                   if name.startswith("vllm:time_to_first_token_seconds_count"))

    def check(self):
        if self.load.poll() is not None:
            raise RuntimeError(f"the load on {self.name} ended before it was measured")

    def step_end(self):
        """The time of the next step's end, and the tokens so far."""
        before = tokens = self.running.tokens_generated()
        while tokens == before:
            self.check()
            time.sleep(POLL_SECONDS)
            tokens = self.running.tokens_generated()
        return time.monotonic(), tokens

    def turn(self, rows, seconds):
        """Seconds of a step, and {node: {part: share of the node's time}}."""
        self.resume()
        time.sleep(SETTLE_SECONDS)
        begin, tokens_before = self.step_end()
        before = self.running.part_seconds()
        time.sleep(seconds)
        after = self.running.part_seconds()
        end, tokens_after = self.step_end()
        self.pause()
        spent = {key: after[key] - before.get(key, 0.0) for key in after}
        shares = {}
        for (node, part), value in spent.items():
            whole = sum(v for (n, _), v in spent.items() if n == node)
            if whole > 0:
                shares.setdefault(node, {})[part] = value / whole
        return (end - begin) * rows / (tokens_after - tokens_before), shares


def begin(sides, rows, context):
    """All rows decode on both, and both are stopped."""
    ready = set()
    for side in sides:
        side.pause()
    while len(ready) < len(sides):
        for side in sides:
            side.resume()
            if side.load is None:
                side.begin_load(rows, context)
            end = time.monotonic() + (ALIVE_SECONDS if side in ready else SLICE_SECONDS)
            while time.monotonic() < end:
                time.sleep(0.1)
                side.check()
                if side not in ready and side.first_tokens() - side.first_tokens_before >= rows:
                    ready.add(side)
                    break
            side.pause()


def end(sides):
    """No row is left on either; both run."""
    for side in sides:
        side.end_load()
        side.resume()
    for side in sides:
        while "serving" != side.running.status().get("state") or side.running.status().get("running", 1) > 0:
            time.sleep(0.1)


def milliseconds(shares, step):
    """{node: {part: ms of a step}} of a side's turns, without what is below a hundredth of the step; waits last."""
    mean = {}
    for of_turn in shares:
        for node, parts in of_turn.items():
            for part, share in parts.items():
                mean.setdefault(node, {}).setdefault(part, []).append(share)
    return {node: {part: statistics.mean(values) * step * 1e3
                   for part, values in sorted(parts.items(), key=lambda p: (p[0].startswith("wait"), -sum(p[1])))
                   if statistics.mean(values) >= 0.01}
            for node, parts in mean.items()}


def compare(sides, rows, context, turns, seconds):
    """Of each side the step, its parts, and its ratios to the last side's in neighbouring turns."""
    begin(sides, rows, context)
    steps = {side.name: [] for side in sides}
    shares = {side.name: [] for side in sides}
    for i in range(turns):
        for side in sides if i % 2 == 0 else sides[::-1]:
            step, of_turn = side.turn(rows, seconds)
            steps[side.name].append(step)
            shares[side.name].append(of_turn)
    for side in sides:
        side.resume()
    end(sides)
    last = sides[-1].name
    found = {"rows": rows, "context": context}
    for name, of_side in steps.items():
        step = statistics.median(of_side)
        ratios = [a / b for a, b in zip(of_side, steps[last])]
        found[name] = {"step_ms": step * 1e3, "tokens_per_second": rows / step, "ratio": statistics.median(ratios),
                       "ratios": ratios, "parts_ms": milliseconds(shares[name], step)}
    return found


def words(parts):
    return "; ".join(f"{node}: " + ", ".join(f"{part} {ms:.2f}" for part, ms in of_node.items())
                     for node, of_node in parts.items())


def print_parts(found, names):
    for name in names:
        print(f"    {name}: {words(found[name]['parts_ms'])}", flush=True)


def tax(arguments):
    cores = arguments.cores
    print(f"tax: cores {cores} for all, one lane")
    rows_out = []
    with Side("shm", lanes=1, compute_cores=cores, memory_cores=cores, memory_nodes=1,
              capacity=arguments.capacity) as shm, \
            Side("local", lanes="auto", compute_cores=cores, local=True, capacity=arguments.capacity) as local:
        for rows, context in arguments.tax_points:
            found = compare([shm, local], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            ratios = [100 * (ratio - 1) for ratio in found["shm"]["ratios"]]
            print(f"{rows:3} rows of {context:4}: shm {found['shm']['step_ms']:7.2f} ms, local "
                  f"{found['local']['step_ms']:7.2f} ms, tax {100 * (found['shm']['ratio'] - 1):+.1f}% "
                  f"({min(ratios):+.1f} to {max(ratios):+.1f})")
            print_parts(found, ("shm", "local"))
    return rows_out


def pools(arguments):
    print("pools: compute on core 0, memory on core 1, one lane and two, against local on both cores")
    rows_out = []
    with Side("one lane", lanes=1, memory_nodes=1, capacity=arguments.capacity) as one, \
            Side("two lanes", lanes=2, memory_nodes=1, capacity=arguments.capacity) as two, \
            Side("local", lanes="auto", compute_cores="0-1", local=True, capacity=arguments.capacity) as local:
        for rows, context in arguments.pool_points:
            found = compare([one, two, local], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            local_rate = found["local"]["tokens_per_second"]
            print(f"{rows:3} rows of {context:4}: local {local_rate:7.1f} tok/s")
            for name in (one.name, two.name):
                gains = [1 / ratio for ratio in found[name]["ratios"]]
                print(f"    {name} {found[name]['tokens_per_second']:7.1f} tok/s, gain {1 / found[name]['ratio']:.2f} "
                      f"({min(gains):.2f} to {max(gains):.2f})")
            print_parts(found, (one.name, two.name, local.name))
    return rows_out


PARTS = {"tax": tax, "pools": pools}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--parts", default="tax,pools", type=lambda text: text.split(","))
    parser.add_argument("--tax-points", type=points, default=points("16x1024,64x512"), help="rows x context, ...")
    parser.add_argument("--pool-points", type=points, help="the same, of pools",
                        default=points("1x1024,4x1024,16x128,16x1024,16x4096,64x128,64x512,64x1024"))
    parser.add_argument("--cores", default="0", help="of tax")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--capacity", default="3GiB", help="for KV, of each cluster")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"--parts: '{part}' is not one of {', '.join(PARTS)}")
    print(f"machine   {cluster.machine()}")
    found = {part: PARTS[part](arguments) for part in arguments.parts}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": cluster.machine(), "turn_seconds": arguments.seconds, **found}, out, indent=1)


if __name__ == "__main__":
    main()

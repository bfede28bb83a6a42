#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs many seeds of every world of the scheduler's simulation, and says how to repeat those that fail.

usage: tests/sim/night.py [--seeds N] [--first SEED] [--minutes M] [--jobs N] [--state FILE] [--program PATH]
  --seeds N       of each world (default: 20,000)
  --first SEED    the first of them (default: 1)
  --minutes M     begin nothing new afterwards, and say how many seeds there were (default: no limit)
  --jobs N        so many side by side (default: 2)
  --state FILE    write down there what has passed, and pass over what is written down: goes on with a night that was
                  broken off, or that had its minutes (default: nothing is written down)
  --program PATH  scheduler_sim_replay (default: the one of build/release)

Says once a minute how far it is and how long the rest takes. A world that has failed is not gone on with. Exit status 1
if any did.
"""

import argparse
import hashlib
import itertools
import pathlib
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

REPO = pathlib.Path(__file__).resolve().parents[2]
# What scheduler_sim_replay is told of a world: these in all combinations,
WORDS = ("kept", "windows", "beams", "int8")
# others alone, with "kept", and with windows and beams,
OTHERS = (("spills",), ("spills", "int8"), ("paths",), ("paths", "int8"), ("pool",), ("pool", "int8"),
          ("pool", "spills"), ("forms",), ("hybrid",), ("spans",), ("spans", "int8"), ("spans", "spills"))
# and salts, which are of use to what is kept alone.
SALTED = ((), ("windows", "beams"), ("int8",), ("spills",), ("spills", "int8"), ("paths",), ("pool",), ("forms",),
          ("spans",))
# Requests with tokens, as after a restart, next to what takes their slots.
RESUMED = ((), ("kept", "spills"), ("kept", "int8", "beams"))
WORLDS = [tuple(itertools.compress(WORDS, chosen)) for chosen in itertools.product((0, 1), repeat=len(WORDS))]
WORLDS += [(*other, *more) for other in OTHERS for more in ((), ("kept",), ("kept", "windows", "beams"))]
WORLDS += [("salts", "kept", *more) for more in SALTED]
WORLDS += [("resumed", *more) for more in RESUMED]
SEEDS_AT_ONCE = 250
TRACE_LINES = 20
# A world that stands still is a failure too.
SECONDS_MAX = 1800


def name_of(world):
    return " ".join(world) or "plain"


def run(program, world, first, count):
    """None, or what to say of the first seed that failed."""
    command = [str(program), str(first), str(count), *world]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        return f"no end after {SECONDS_MAX} s; repeat it: {' '.join(command)}"
    if result.returncode == 0:
        return None
    lines = result.stdout.splitlines() + result.stderr.splitlines()
    seeds = [line.split()[1] for line in lines if line.startswith("seed ")]
    again = [str(program), seeds[-1], "1", *world] if seeds else command
    return "\n".join([*lines[-TRACE_LINES:], f"exit status {result.returncode}; repeat it: {' '.join(again)}"])


def batches(arguments):
    """Each world has its turn, so that a night that ends early has seen all of them."""
    end = arguments.first + arguments.seeds
    for first in range(arguments.first, end, SEEDS_AT_ONCE):
        for world in WORLDS:
            yield world, first, min(SEEDS_AT_ONCE, end - first)


class State:
    """What has passed, a line for each batch behind one that names the program. Without a path nothing is kept."""

    def __init__(self, path, program):
        self.path = path
        self.passed = set()
        if path is None:
            return
        title = f"passed by {hashlib.sha256(program.read_bytes()).hexdigest()}\n"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        if lines and lines[0] != title:
            raise ValueError(f"--state: {path} is not of this {program}; name another file, or remove it")
        whole = [line for line in lines[1:] if line.endswith("\n")]  # The last one may have been cut off.
        self.passed = {tuple(line.rstrip("\n").split(" ")) for line in whole}
        if lines != [title, *whole]:
            path.write_text("".join([title, *whole]))

    @staticmethod
    def _key(world, first, count):
        return (str(first), str(count), *world)

    def has(self, batch):
        return self._key(*batch) in self.passed

    def add(self, *batch):
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(" ".join(self._key(*batch)) + "\n")


class Night:
    def __init__(self, arguments, state):
        self.arguments = arguments
        self.state = state
        self.began = time.monotonic()
        self.passed = dict.fromkeys(WORLDS, 0)
        self.passed_before = 0
        self.failed = {}

    def minutes(self):
        return (time.monotonic() - self.began) / 60

    def todo(self):
        """The batches that have not passed before, once those that have are counted."""
        left = []
        for batch in batches(self.arguments):
            if self.state.has(batch):
                self.passed[batch[0]] += batch[2]
            else:
                left.append(batch)
        self.passed_before = sum(self.passed.values())
        return iter(left)

    def take(self, world, first, count, failure):
        if failure is None:
            self.passed[world] += count
            self.state.add(world, first, count)
            return
        self.failed.setdefault(world, failure)
        print(f"world {name_of(world)}, seeds {first} to {first + count - 1}: failed\n{failure}", flush=True)

    def minutes_left(self):
        """At the pace of this run, of worlds that have not failed; None before anything has passed."""
        ran = sum(self.passed.values()) - self.passed_before
        left = sum(self.arguments.seeds - self.passed[world] for world in WORLDS if world not in self.failed)
        if left and not ran:
            return None
        return left * self.minutes() / ran if left else 0

    def tell(self):
        all_of_them = self.arguments.seeds * len(WORLDS)
        left = self.minutes_left()
        print(f"{self.minutes():6.1f} min: {sum(self.passed.values()):,} of {all_of_them:,} seeds passed, "
              f"{len(self.failed)} worlds failed" + ("" if left is None else f"; the rest takes {left:.1f} min"),
              flush=True)

    def run(self):
        running = {}
        told = 0
        todo = self.todo()
        with ThreadPoolExecutor(self.arguments.jobs) as pool:
            while True:
                while len(running) < self.arguments.jobs and self.minutes() < self.arguments.minutes:
                    batch = next((one for one in todo if one[0] not in self.failed), None)
                    if batch is None:
                        break
                    running[pool.submit(run, self.arguments.program, *batch)] = batch
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    self.take(*running.pop(done), done.result())
                if self.minutes() > told + 1:
                    told = self.minutes()
                    self.tell()
        self.tell()
        for world in WORLDS:
            state = "failed" if world in self.failed else "passed"
            print(f"  {name_of(world)}: {self.passed[world]:,} seeds, {state}")
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--state", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=REPO / "build/release/bin/scheduler_sim_replay")
    arguments = parser.parse_args()
    if min(arguments.seeds, arguments.jobs) < 1:
        parser.error("--seeds and --jobs are numbers from 1 on")
    if not arguments.program.exists():
        parser.error(f"{arguments.program} is missing; build it: ninja -C build/release scheduler_sim_replay")
    try:
        state = State(arguments.state, arguments.program)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return Night(arguments, state).run()


if __name__ == "__main__":
    sys.exit(main())

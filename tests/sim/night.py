#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs many seeds of every world of the scheduler's simulation, and says how to repeat those that fail.

usage: tests/sim/night.py [--seeds N] [--first SEED] [--minutes M] [--jobs N] [--program PATH]
  --seeds N       of each world (default: 20,000)
  --first SEED    the first of them (default: 1)
  --minutes M     begin nothing new afterwards, and say how many seeds there were (default: no limit)
  --jobs N        so many side by side (default: 2)
  --program PATH  scheduler_sim_replay (default: the one of build/release)

A world that has failed is not gone on with. Exit status 1 if any did.
"""

import argparse
import itertools
import pathlib
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

REPO = pathlib.Path(__file__).resolve().parents[2]
# What scheduler_sim_replay is told of a world: these in all combinations, others alone, with "kept", and with windows and beams.
WORDS = ("kept", "windows", "beams", "int8")
OTHERS = (("spills",), ("spills", "int8"), ("paths",), ("pool",), ("forms",), ("spans",))
WORLDS = [tuple(itertools.compress(WORDS, chosen)) for chosen in itertools.product((0, 1), repeat=len(WORDS))]
WORLDS += [(*other, *more) for other in OTHERS for more in ((), ("kept",), ("kept", "windows", "beams"))]
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


class Night:
    def __init__(self, arguments):
        self.arguments = arguments
        self.began = time.monotonic()
        self.passed = dict.fromkeys(WORLDS, 0)
        self.failed = {}

    def minutes(self):
        return (time.monotonic() - self.began) / 60

    def take(self, world, first, count, failure):
        if failure is None:
            self.passed[world] += count
            return
        self.failed.setdefault(world, failure)
        print(f"world {name_of(world)}, seeds {first} to {first + count - 1}: failed\n{failure}", flush=True)

    def tell(self):
        all_of_them = self.arguments.seeds * len(WORLDS)
        print(f"{self.minutes():6.1f} min: {sum(self.passed.values()):,} of {all_of_them:,} seeds passed, "
              f"{len(self.failed)} worlds failed", flush=True)

    def run(self):
        running = {}
        told = 0
        with ThreadPoolExecutor(self.arguments.jobs) as pool:
            todo = batches(self.arguments)
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
    parser.add_argument("--program", type=pathlib.Path, default=REPO / "build/release/bin/scheduler_sim_replay")
    arguments = parser.parse_args()
    if min(arguments.seeds, arguments.jobs) < 1:
        parser.error("--seeds and --jobs are numbers from 1 on")
    if not arguments.program.exists():
        parser.error(f"{arguments.program} is missing; build it: ninja -C build/release scheduler_sim_replay")
    return Night(arguments).run()


if __name__ == "__main__":
    sys.exit(main())

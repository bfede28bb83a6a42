#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of tests on a GPU for deploy/gpu_check.sh and prints what came of it as JSON.

A test that fails may leave the device useless to its process (after an illegal access every call
fails), and one that hangs or crashes ends it. So after each of these the tests that are left run
in a new process, and what ran counts when the time is up.

usage: gpu_tests.py --limit SECONDS [--silence SECONDS] [--filter PATTERN] -- COMMAND...
  --limit SECONDS    for all tests together
  --silence SECONDS  a test that takes longer hangs (default: 20)
  --filter PATTERN   as --gtest_filter
JSON: {"tests": how many ran, "failures": how many of them failed, "failed": [names], "left": [names]}
The program's own output goes to stderr.
Exit status: 0 all passed, 1 some failed, 124 the time was up before all had run; 77 the program's.
"""

import argparse
import json
import queue
import re
import subprocess
import sys
import threading
import time

RESULT = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)")


def list_tests(command, pattern):
    done = subprocess.run(
        [*command, "--gtest_list_tests", f"--gtest_filter={pattern}"], capture_output=True, text=True
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        sys.exit(done.returncode)
    names = []
    suite = ""
    for line in done.stdout.splitlines():
        if line.startswith("  "):
            names.append(suite + line.split("#")[0].strip())
        elif line.split("#")[0].strip().endswith("."):
            suite = line.split("#")[0].strip()
    return names


def lines_of(process):
    """A queue of the process's lines, and None behind the last."""
    lines = queue.Queue()

    def read():
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


class Runner:
    def __init__(self, command, names, limit, silence):
        self.command = command
        self.left = names
        self.deadline = time.monotonic() + limit
        self.silence = silence
        self.ran = 0
        self.failed = []

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def note(self, name, failure=None):
        self.left.remove(name)
        self.ran += 1
        if failure is not None:
            self.failed.append(name + failure)

    def run_process(self):
        """Until a test fails, or all have run; whether it was worth it."""
        before = len(self.left)
        process = subprocess.Popen(
            [*self.command, "--gtest_filter=" + ":".join(self.left)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        try:
            self.follow(lines_of(process))
        finally:
            process.kill()
            process.wait()
        return len(self.left) < before

    def follow(self, lines):
        running = None
        while True:
            try:
                line = lines.get(timeout=max(0, min(self.silence, self.seconds_left())))
            except queue.Empty:
                if running is not None and self.seconds_left() > 0:
                    self.note(running, f" (hung for {self.silence} s)")
                return
            if line is None:
                if running is not None:
                    self.note(running, " (ended its process)")
                return
            sys.stderr.write(line)
            found = RESULT.match(line)
            if found is None or found[2] not in self.left:
                continue
            if found[1] == "RUN":
                running = found[2]
            elif found[2] == running:
                running = None
                self.note(found[2], "" if found[1] == "FAILED" else None)
                if found[1] == "FAILED":
                    return

    def run(self):
        while self.left and self.seconds_left() > 0 and self.run_process():
            pass


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, required=True)
    parser.add_argument("--silence", type=float, default=20)
    parser.add_argument("--filter", default="*")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    names = list_tests(options.command, options.filter)
    runner = Runner(options.command, names, options.limit, options.silence)
    runner.run()
    result = {
        "tests": runner.ran,
        "failures": len(runner.failed),
        "failed": runner.failed,
        "left": runner.left,
    }
    print(json.dumps(result))
    return 1 if runner.failed else 124 if runner.left else 0


if __name__ == "__main__":
    sys.exit(main())

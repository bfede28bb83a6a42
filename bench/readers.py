# SPDX-License-Identifier: Apache-2.0
"""Requests whose answers are read as they come, with the time of each piece of text."""

import os
import selectors
import subprocess
import time

from programs import program

WORD = "Item {} of the list."


class Readers:
    """Running requests: when each of them got a piece of text (one token, seldom more)."""

    def __init__(self, address, prompts, tokens):
        self.pieces = [[] for _ in prompts]
        self.selector = selectors.DefaultSelector()
        self.processes = []
        for i, prompt in enumerate(prompts):
            process = subprocess.Popen(
                [program("lamina"), "generate", "--server", address, "--prompt", prompt,
                 "--max-tokens", str(tokens), "--ignore-eos"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            self.processes.append(process)
            self.selector.register(process.stdout, selectors.EVENT_READ, i)

    def read_until(self, done):
        while not done():
            for key, _ in self.selector.select(0.01):
                now = time.monotonic()
                if not os.read(key.fd, 4096):
                    raise RuntimeError("a running request has ended: give it more tokens")
                self.pieces[key.data].append(now)

    def gaps(self, begin, end):
        """Milliseconds between pieces, of those that came in the time given."""
        return sorted((after - before) * 1e3 for times in self.pieces
                      for before, after in zip(times, times[1:]) if begin <= after <= end)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()


def prompt_of(tokens):
    """Nine tokens an item."""
    return " ".join(WORD.format(100 + i % 900) for i in range(tokens // 9))

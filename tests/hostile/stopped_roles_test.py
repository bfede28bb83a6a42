#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGSTOP of a process of each role, and SIGCONT later: no answer is wrong, none is lost, and the process serves again.

A stopped process is not a dead one: its sockets stay open and its memory can still be written. A node that is stopped is left out
and joins again; a stopped coordinator finds its nodes as it left them, since its own silence is not theirs.
"""

import contextlib
import signal
import time
import unittest

import clients
import harness

PROMPTS = ["Once upon a time", "The capital of France is", "A recipe for bread. " * 12]
TOKENS = 240
# Longer than a node may be silent before it is declared lost.
STOPPED_SECONDS = 13


class StoppedRolesTest(unittest.TestCase):
    wanted = []  # The answers of an undisturbed run.

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_coordinator"))
        cls.cluster = harness.Cluster(compute=[{"name": "c0"}, {"name": "c1"}], gateway={"listen": "127.0.0.1:0"})
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def setUp(self):
        self.cluster.await_state("serving")
        if not self.wanted:
            self.wanted.extend(stream.finish() for stream in self.streams())

    def streams(self):
        return [clients.Stream(self, self.cluster, prompt, TOKENS) for prompt in PROMPTS]

    @contextlib.contextmanager
    def stopped(self, *names):
        """The processes are stopped inside, and go on after, whatever happens."""
        processes = [self.cluster.processes[name] for name in names]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def role(self, role):
        return next(name for name, its in self.cluster.roles.items() if its == role)

    def finish(self, streams):
        harness.require_same_answer(self, [stream.finish() for stream in streams], self.wanted)

    def test_nodes_and_gateway(self):
        """One of each at a time: the others answer, and all serve again."""
        running = self.streams()
        self.cluster.await_true(lambda: self.cluster.status()["running"] == len(running), "all of them running")
        with self.stopped("m1", "c1", self.role("gateway")):
            self.finish(running)
            state = self.cluster.status()["state"]
            self.assertIn("m1", state)
            self.assertIn("c1", state)
        self.cluster.await_state("serving")  # With all of its nodes.
        self.finish(self.streams())
        self.assertEqual(clients.health(self.cluster), 200)
        answer = clients.post(self.cluster, "/v1/completions",
                              {"model": harness.MODEL.stem, "prompt": PROMPTS[0], "max_tokens": 4, "temperature": 0})
        self.assertEqual(answer["usage"]["completion_tokens"], 4)

    def test_coordinator(self):
        epoch = self.cluster.status()["epoch"]
        running = self.streams()
        self.cluster.await_true(lambda: self.cluster.status()["running"] == len(running), "all of them running")
        with self.stopped(self.role("coordinator")):
            time.sleep(STOPPED_SECONDS)
        self.finish(running)
        self.assertEqual(self.cluster.status()["epoch"], epoch, self.cluster.logs())


if __name__ == "__main__":
    unittest.main()

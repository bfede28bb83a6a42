#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's front door: clients that take all descriptors, begin and reset calls without end, send texts of megabytes, or say nothing.

Meanwhile requests run; their tokens must be those of an undisturbed run, in the same epoch, and afterwards all is as before.
"""

import concurrent.futures
import json
import resource
import socket
import unittest
import urllib.error
from pathlib import Path

import clients
import harness
import http2

PROMPT = "Once upon a time"
TOKENS = 100
SECONDS = 120  # Against hanging.
CONNECTIONS = 60
# Those of users: 1.1 MB. With 100,000, on two busy cores, the library was late by more than 30 s (ADR 0099).
RESETS = {b"/lamina.v1.Inference/Generate": 40_000, b"/lamina.v1.Cluster/Attach": 5_000}
CALLS_MAX = 2 * (256 + 1024)  # Of a connection: twice limits.running_max and limits.waiting_max.
RSS_MORE_MAX = 256 << 20
TEXT = "a b " * (1 << 20)  # As large as the gateway takes.
TEXTS = 16


class FrontDoorTest(unittest.TestCase):
    wanted = None

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_descriptors_run_out"))
        cls.cluster = harness.Cluster(model=harness.MODEL, gateway={"listen": "127.0.0.1:0", "body_bytes_max": 8 << 20})
        cls.cluster.__enter__()
        cls.silent = cls.connect()

    @classmethod
    def tearDownClass(cls):
        cls.silent.close()
        cls.cluster.__exit__()

    @classmethod
    def connect(cls):
        host, port = cls.cluster.server.rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=SECONDS)

    def setUp(self):
        self.pid = self.cluster.processes["coordinator"].pid
        if self.wanted is None:
            FrontDoorTest.wanted = self.stream().finish()
        self.cluster.await_state("serving")
        self.epoch = self.cluster.status()["epoch"]

    def stream(self):
        return clients.Stream(self, self.cluster, PROMPT, TOKENS)

    def running_stream(self):
        stream = self.stream()
        self.cluster.await_true(lambda: self.cluster.status()["running"] > 0, "a request that runs")
        return stream

    def assert_undisturbed(self, running):
        harness.require_same_answer(self, running.finish(), self.wanted)
        harness.require_same_answer(self, self.stream().finish(), self.wanted)
        self.assertEqual(self.cluster.status()["epoch"], self.epoch, self.cluster.logs())

    def rss(self):
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def test_descriptors_run_out(self):
        running = self.running_stream()
        before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        highest = max(int(entry.name) for entry in Path(f"/proc/{self.pid}/fd").iterdir())
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (highest + 8, before[1]))
        self.addCleanup(resource.prlimit, self.pid, resource.RLIMIT_NOFILE, before)
        connections = [self.connect() for _ in range(CONNECTIONS)]
        for connection in connections:
            self.addCleanup(connection.close)
        self.cluster.await_true(lambda: "connections are turned away" in self.cluster.log("coordinator"),
                                "the coordinator to run out of descriptors", ["coordinator"])
        for connection in connections:
            connection.close()
        # The limit stays: descriptors of connections that were closed are enough.
        self.assert_undisturbed(running)

    def test_calls_that_are_reset_at_once(self):
        running = self.running_stream()
        before = self.rss()
        for method, resets in RESETS.items():
            heads = http2.CallHeads(method)
            attack = b"".join(heads.call(stream) + http2.reset(stream) for stream in range(1, 2 * resets, 2))
            with http2.connect(self.cluster.server, SECONDS) as connection:
                try:
                    connection.sendall(attack)
                except ConnectionError:
                    pass  # Who does that may be shut out.
        self.assert_undisturbed(running)
        self.cluster.await_true(lambda: self.rss() < before + RSS_MORE_MAX, "memory to be given back", seconds=SECONDS)

    def test_texts_of_megabytes(self):
        running = self.running_stream()
        model = {"model": harness.MODEL.stem}

        def post(path, body):
            try:
                return clients.post(self.cluster, path, {**model, **body}, seconds=SECONDS)
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read())["error"]["message"]

        chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1}
        with concurrent.futures.ThreadPoolExecutor(2 * TEXTS) as pool:
            prompts = [pool.submit(post, "/v1/completions", {"prompt": TEXT, "max_tokens": 1}) for _ in range(TEXTS)]
            chats = [pool.submit(post, "/v1/chat/completions", chat) for _ in range(TEXTS)]
            for refused in prompts + chats:
                code, message = refused.result()
                self.assertEqual(code, 400, message)
                # Before it is tokenized, though the model's vocabulary lacks some bytes.
                self.assertRegex(message, r"the prompt has 4194\d\d\d bytes, which are at least \d+ tokens; at most")
        self.assert_undisturbed(running)

    def test_a_connection_carries_a_bounded_number_of_calls(self):
        with http2.connect(self.cluster.server, SECONDS) as connection:
            self.assertEqual(http2.first_settings(connection).get(http2.MAX_CONCURRENT_STREAMS), CALLS_MAX)

    def test_who_says_nothing_is_let_go(self):
        """The last test: its connection has been there since the first."""
        while self.silent.recv(65536):
            pass


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's front door: clients that take all descriptors, begin and reset calls without end, or send texts of megabytes.

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
RESETS = 200_000  # 5.6 MB, of which 1.2 GB stayed.
RSS_MORE_MAX = 256 << 20
TEXT = "a b " * (1 << 20)  # As large as the gateway takes.
TEXTS = 16


class FrontDoorTest(unittest.TestCase):
    wanted = None

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_descriptors_run_out"))
        cls.cluster = harness.Cluster(gateway={"listen": "127.0.0.1:0", "body_bytes_max": 8 << 20})
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

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

    def assert_answered(self, running):
        self.assertEqual(running.finish(), self.wanted)
        self.assertEqual(self.stream().finish(), self.wanted)

    def assert_undisturbed(self, running):
        self.assert_answered(running)
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
        host, port = self.cluster.server.rsplit(":", 1)
        connections = []
        for _ in range(CONNECTIONS):
            connection = socket.create_connection((host, int(port)), timeout=SECONDS)
            self.addCleanup(connection.close)
            connections.append(connection)
        self.cluster.await_true(lambda: "connections are turned away" in self.cluster.log("coordinator"),
                                "the coordinator to run out of descriptors", ["coordinator"])
        for connection in connections:
            connection.close()
        # The limit stays: descriptors of connections that were closed are enough.
        self.assert_undisturbed(running)

    def test_calls_that_are_reset_at_once(self):
        running = self.running_stream()
        before = self.rss()
        heads = http2.CallHeads(b"/lamina.v1.Inference/Generate")
        attack = b"".join(heads.call(stream) + http2.reset(stream) for stream in range(1, 2 * RESETS, 2))
        with http2.connect(self.cluster.server, SECONDS) as connection:
            try:
                connection.sendall(attack)
            except ConnectionError:
                pass  # Who does that may be shut out.
        # On a busy machine nodes' reports may wait behind so many calls for longer than a node may be silent.
        self.assert_answered(running)
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
                self.assertRegex(message, r"the prompt has (4194\d\d\d bytes, which are at least \d+ tokens|\d+ tokens; at most)")
        self.assert_undisturbed(running)


if __name__ == "__main__":
    unittest.main()

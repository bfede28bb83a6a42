#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP that would occupy everybody: refused, while others' streams run on with the right tokens.

Objects of very many keys, whose search is quadratic where their order is kept, and heads that leave it open where the body ends.
"""

import json
import socket
import unittest
import urllib.error

import clients
import harness

KEYS = 330_000
PROMPT = "Once upon a time"
TOKENS = 100
SECONDS = 60  # Against hanging. The quadratic search took 115 s for one body.


class HttpEdgesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_objects_of_many_keys"))
        cls.cluster = harness.Cluster(gateway={"listen": "127.0.0.1:0"})
        cls.cluster.__enter__()
        cls.wanted = None

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def setUp(self):
        if self.wanted is None:
            HttpEdgesTest.wanted = self.stream().finish()

    def stream(self):
        return clients.Stream(self, self.cluster, PROMPT, TOKENS)

    def refused(self, path, body):
        with self.assertRaises(urllib.error.HTTPError) as raised:
            clients.post(self.cluster, path, body, seconds=SECONDS)
        self.assertEqual(raised.exception.code, 400)
        return json.loads(raised.exception.read())["error"]["message"]

    def test_objects_of_many_keys(self):
        many = {f"{i:x}": 0 for i in range(KEYS)}
        model = {"model": harness.MODEL.stem}
        chat = {**model, "max_tokens": 1}
        running = self.stream()
        for path, body in (("/v1/completions", {**chat, "prompt": PROMPT, **many}), ("/tokenize", {**model, **many}),
                           ("/v1/chat/completions", {**chat, "messages": [{"role": "user", "content": "hi", **many}]}),
                           ("/v1/completions", {**chat, "prompt": PROMPT, "logit_bias": many}),
                           ("/v1/completions", {**chat, "prompt": PROMPT, "response_format": {"schema": many}})):
            self.assertIn("keys; at most 4096", self.refused(path, body), path)
        self.assertEqual(running.finish(), self.wanted)
        self.assertEqual(self.cluster.status()["epoch"], 1, self.cluster.logs())

    def exchange(self, request):
        """All that the gateway answers until it closes the connection."""
        host, port = self.cluster.gateway.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            connection.sendall(request)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        return answer

    def test_unclear_framing(self):
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n"
        for coding in (b"xchunked", b"identity", b"gzip", b"chunked, identity"):
            answer = self.exchange(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: " + coding +
                                   b"\r\n\r\n" + smuggled)
            self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
            self.assertEqual(answer.count(b"HTTP/1.1 "), 1, answer)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP that would occupy everybody: refused, while others' streams run on with the right tokens.

Objects of very many keys, whose search is quadratic where their order is kept; bodies as large and as ramified as is allowed; heads that leave it open
where the body ends; more idle connections than the gateway has descriptors.
"""

import contextlib
import json
import resource
import socket
import unittest
import urllib.error

import clients
import harness

KEYS = 330_000
BODY_BYTES = (4 << 20) - 1000  # Just within gateway.body_bytes_max.
DESCRIPTORS = 256  # Of the gateway.
IDLE = 2000
PROMPT = "Once upon a time"
TOKENS = 100
SECONDS = 60  # Against hanging. The quadratic search took 115 s for one body.


class Cluster(harness.Cluster):

    def prefix(self, name):
        return ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"] if name == "gateway" else []


def filled(unit, total):
    """A list of `unit`, which is JSON, in so many bytes."""
    return "[" + ",".join([unit] * (total // (len(unit) + 1))) + "]"


class HttpEdgesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_objects_of_many_keys"))
        cls.cluster = Cluster(gateway={"listen": "127.0.0.1:0"})
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

    def test_large_bodies_within_the_limits(self):
        running = self.stream()
        for unit in ("[]", "{}", "0", '"aaaaaaaa"', "[" * 60 + "]" * 60, '{"a":0,"b":[1,2]}'):
            body = '{"prompt":"a","unknown":' + filled(unit, BODY_BYTES) + "}"
            self.assertIn("unknown parameter", self.refused("/tokenize", body), unit)
            self.assertEqual(clients.health(self.cluster), 200)
        answer = clients.post(self.cluster, "/tokenize", {"prompt": "a b" * 10_000, "return_token_strs": True})
        self.assertEqual(len(answer["token_strs"]), answer["count"])
        self.assertEqual(running.finish(), self.wanted)
        self.assertEqual(self.cluster.status()["epoch"], 1, self.cluster.logs())

    def test_more_idle_connections_than_descriptors(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * IDLE), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        host, port = self.cluster.gateway.rsplit(":", 1)
        with contextlib.ExitStack() as crowd:
            for _ in range(IDLE):
                crowd.enter_context(socket.create_connection((host, int(port)), timeout=SECONDS))
            self.assertEqual(clients.health(self.cluster), 200)
        self.assertLess(self.cluster.log("gateway").count("accept: "), IDLE // 10)

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

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway's HTTP, byte by byte: events, limits, slow and vanishing clients, keys, TLS, draining."""

import contextlib
import http.client
import json
import os
import re
import resource
import selectors
import signal
import socket
import ssl
import subprocess
import unittest
from pathlib import Path

from harness import START_SECONDS, STOP_SECONDS, Cluster, require_model

MODEL = "smollm2-135m-instruct"
JSON = {"Content-Type": "application/json"}
STREAMS = 1000
MEMORY_KIB_MAX = 200 << 10  # Of the gateway with so many streams.


def body_of(**keys):
    return json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4,
                       "temperature": 0, **keys})


def raw(body, path="/v1/completions", headers=""):
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n{body}").encode()


def read_until(connection, end):
    data = b""
    while end not in data:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return data


class GatewayTestCase(unittest.TestCase):
    def cluster_of(self, gateway=None, **keys):
        require_model(self)
        gateway = {"listen": "127.0.0.1:0", **(gateway or {})}
        cluster = Cluster(gateway=gateway, **keys)
        cluster.__enter__()
        self.addCleanup(cluster.__exit__)
        return cluster

    def connect(self, cluster):
        host, port = cluster.gateway.rsplit(":", 1)
        connection = socket.create_connection((host, int(port)), timeout=START_SECONDS)
        self.addCleanup(connection.close)
        return connection

    def ask(self, cluster, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(cluster.gateway, timeout=START_SECONDS)
        self.addCleanup(connection.close)
        connection.request(method, path, body, JSON if headers is None else headers)
        response = connection.getresponse()
        return response, response.read()

    def await_idle(self, cluster):
        def idle():
            status = cluster.status()
            return status["running"] + status["waiting"] == 0
        cluster.await_true(idle, "no request is left", list(cluster.processes))


class GatewayHttpTest(GatewayTestCase):
    """One cluster for all: requests and their limits."""

    @classmethod
    def setUpClass(cls):
        require_model(cls("test_events_are_byte_exact"))
        cls.cluster = Cluster(gateway={
            "listen": "127.0.0.1:0", "request_seconds": 1, "idle_seconds": 2, "write_seconds": 2,
            "body_bytes_max": "64KiB", "connections_max": 40, "cors_origins": ["https://a.example"]})
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def test_events_are_byte_exact(self):
        connection = self.connect(self.cluster)
        connection.sendall(raw(body_of(stream=True)))
        data = read_until(connection, b"0\r\n\r\n")
        head, _, rest = data.partition(b"\r\n\r\n")
        self.assertTrue(head.startswith(b"HTTP/1.1 200 OK\r\n"))
        self.assertIn(b"Content-Type: text/event-stream", head)
        stream = b""
        while rest != b"0\r\n\r\n":
            size, _, rest = rest.partition(b"\r\n")
            stream += rest[:int(size, 16)]
            self.assertEqual(rest[int(size, 16):][:2], b"\r\n")
            rest = rest[int(size, 16) + 2:]
        self.assertRegex(stream.decode(), r"\A(data: \{[^\n]*\}\n\n)+data: \[DONE\]\n\n\Z")
        for event in stream.decode().split("\n\n")[:-2]:
            chunk = json.loads(event.removeprefix("data: "))
            self.assertEqual(list(chunk), ["id", "object", "created", "model", "system_fingerprint",
                                           "choices"])
            self.assertEqual(list(chunk["choices"][0]),
                             ["index", "text", "logprobs", "finish_reason"])

    def test_a_connection_serves_many_requests_and_pipelines(self):
        connection = self.connect(self.cluster)
        connection.sendall(raw(body_of()) + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" +
                           raw(body_of(n=0)) +
                           b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = read_until(connection, b"never")
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+) ", data), [b"200", b"200", b"400", b"200"])

    def test_http_1_0_gets_a_stream_that_ends_with_the_connection(self):
        connection = self.connect(self.cluster)
        connection.sendall(raw(body_of(stream=True)).replace(b"HTTP/1.1", b"HTTP/1.0"))
        data = read_until(connection, b"never")
        self.assertNotIn(b"chunked", data)
        self.assertTrue(data.endswith(b"data: [DONE]\n\n"))

    def test_expectations_are_met(self):
        connection = self.connect(self.cluster)
        whole = raw(body_of(), headers="Expect: 100-continue\r\n")
        head, _, body = whole.partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        self.assertEqual(read_until(connection, b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        self.assertIn(b"HTTP/1.1 200 OK", read_until(connection, b"usage"))

    def test_what_is_refused_and_how(self):
        cases = [("GET", "/v1/nothing", None, JSON, 404), ("GET", "/v1/completions", None, JSON, 405),
                 ("POST", "/v1/completions", body_of(), {"Content-Type": "text/plain"}, 415),
                 ("POST", "/v1/completions", "{", JSON, 400),
                 ("POST", "/v1/completions", "[" * 1000, JSON, 400),
                 ("POST", "/v1/completions", b'{"model":"\xff"}', JSON, 400),
                 ("POST", "/v1/completions", "x" * 100000, JSON, 413),
                 ("GET", "/health", None, {"X-Long": "x" * 20000}, 431),
                 ("POST", "/tokenize", "{}", JSON, 400), ("POST", "/detokenize", "{}", JSON, 400),
                 ("POST", "/detokenize", '{"tokens": [999999]}', JSON, 400)]
        for method, path, body, headers, status in cases:
            with self.subTest(path=path, status=status):
                response, text = self.ask(self.cluster, method, path, body, headers)
                self.assertEqual(response.status, status, text)
                error = json.loads(text)["error"]
                self.assertEqual(set(error), {"message", "type", "param", "code"})

    def test_small_endpoints(self):
        response, text = self.ask(self.cluster, "GET", "/health")
        self.assertEqual((response.status, json.loads(text)), (200, {"state": "serving"}))
        response, text = self.ask(self.cluster, "GET", "/version")
        self.assertIn("version", json.loads(text))
        _, text = self.ask(self.cluster, "GET", "/openapi.json")
        self.assertIn("/v1/chat/completions", json.loads(text)["paths"])
        _, text = self.ask(self.cluster, "POST", "/tokenize",
                           json.dumps({"prompt": "Hello, world", "return_token_strs": True}))
        tokens = json.loads(text)
        self.assertEqual(tokens["count"], len(tokens["tokens"]))
        self.assertEqual(len(tokens["token_strs"]), tokens["count"])
        _, text = self.ask(self.cluster, "POST", "/detokenize",
                           json.dumps({"model": MODEL, "tokens": tokens["tokens"]}))
        self.assertEqual(json.loads(text), {"prompt": "Hello, world"})
        response, text = self.ask(self.cluster, "HEAD", "/version")
        self.assertEqual((response.status, text), (200, b""))

    def test_request_ids_and_cors(self):
        response, _ = self.ask(self.cluster, "GET", "/version", headers={"x-request-id": "mine-1"})
        self.assertEqual(response.headers["x-request-id"], "mine-1")
        self.assertIsNone(response.headers["Access-Control-Allow-Origin"])
        response, _ = self.ask(self.cluster, "OPTIONS", "/v1/completions",
                               headers={"Origin": "https://a.example"})
        self.assertEqual(response.status, 204)
        self.assertEqual(response.headers["Access-Control-Allow-Origin"], "https://a.example")
        response, _ = self.ask(self.cluster, "GET", "/version", headers={"Origin": "https://b.example"})
        self.assertIsNone(response.headers["Access-Control-Allow-Origin"])
        self.assertTrue(response.headers["x-request-id"].startswith("req-"))

    def test_a_request_that_dribbles_in_is_ended(self):
        connection = self.connect(self.cluster)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Le")
        data = read_until(connection, b"never")
        self.assertIn(b"HTTP/1.1 408 ", data)
        silent = self.connect(self.cluster)
        self.assertEqual(read_until(silent, b"never"), b"")

    def test_a_full_house_turns_newcomers_away(self):
        crowd = [self.connect(self.cluster) for _ in range(40)]
        for connection in crowd:
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
            read_until(connection, b"}")
        # Idle ones give way, the one that is idle for longest first.
        self.assertEqual(self.ask(self.cluster, "GET", "/health")[0].status, 200)
        self.assertEqual(read_until(crowd[0], b"never"), b"")
        crowd[0] = self.connect(self.cluster)
        # Those with a request in hand do not. A newcomer that is let in, since the gateway has not read all of them yet, joins them.
        for connection in crowd:
            connection.sendall(b"GET /version HT")
        late = b""
        while not late:
            crowd.append(self.connect(self.cluster))
            crowd[-1].settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                late = crowd[-1].recv(65536)
            if not late:
                crowd[-1].sendall(b"GET /version HT")
        self.assertIn(b"HTTP/1.1 503 ", late)
        head, _, body = late.partition(b"\r\n\r\n")
        self.assertIn(b"Content-Length: %d\r\n" % len(body), head + b"\r\n")
        for connection in crowd:
            connection.close()

        def served():
            try:
                return self.ask(self.cluster, "GET", "/version")[0].status == 200
            except (ConnectionError, http.client.HTTPException):
                return False  # Closed before it was read.
        # Not before the gateway has seen them go may the next test connect.
        self.cluster.await_true(served, "a free place")

    def test_a_client_that_goes_is_cancelled(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                connection = self.connect(self.cluster)
                connection.sendall(raw(body_of(stream=stream, max_tokens=8000, ignore_eos=True)))
                self.cluster.await_true(lambda: self.cluster.status()["running"] > 0, "a request")
                connection.close()
                self.await_idle(self.cluster)

    def test_a_slow_reader_holds_back_only_itself(self):
        slow = socket.socket()
        self.addCleanup(slow.close)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = self.cluster.gateway.rsplit(":", 1)
        slow.connect((host, int(port)))
        slow.sendall(raw(body_of(stream=True, max_tokens=8000, ignore_eos=True, n=8, logprobs=20)))
        self.cluster.await_true(lambda: self.cluster.status()["running"] > 0, "a request")
        response, _ = self.ask(self.cluster, "POST", "/v1/completions", body_of(max_tokens=20))
        self.assertEqual(response.status, 200)
        # It takes nothing for write_seconds, is closed, and its request ends.
        self.await_idle(self.cluster)


class GatewayLoadTest(GatewayTestCase):
    def test_a_thousand_streams_wait_in_little_memory(self):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        cluster = self.cluster_of({"keep_alive_seconds": 1},
                                  limits={"running_max": 4, "waiting_max": 4000})
        request = raw(body_of(stream=True, max_tokens=8000, ignore_eos=True))
        streams = [self.connect(cluster) for _ in range(STREAMS)]
        for stream in streams:
            stream.sendall(request)
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            seen = {stream: b"" for stream in streams}
            # Those that run get events, those that wait get comments.
            while not all(b": keep-alive\n\n" in data or b"data: {" in data
                          for data in seen.values()):
                ready = selector.select(START_SECONDS)
                self.assertTrue(ready, "no stream has news")
                for key, _ in ready:
                    seen[key.fileobj] += key.fileobj.recv(65536)
        waiting = sum(b": keep-alive\n\n" in data for data in seen.values())
        self.assertGreaterEqual(waiting, STREAMS - 100)
        status = Path(f"/proc/{cluster.processes['gateway'].pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        self.assertLess(int(fields["Threads"]), 32, "threads must not grow with connections")
        memory = int(fields["VmHWM"].split()[0])
        print(f"{STREAMS} streams: {memory / 1024:.0f} MiB at most, {fields['Threads'].strip()} threads")
        if "asan" not in os.environ.get("LAMINA_BIN", "") + "tsan":
            self.assertLess(memory, MEMORY_KIB_MAX)
        for stream in streams:
            stream.close()
        self.await_idle(cluster)

    def test_a_full_queue_is_429_and_a_cluster_that_is_gone_503(self):
        cluster = self.cluster_of(limits={"running_max": 1, "waiting_max": 1})
        long = raw(body_of(stream=True, max_tokens=8000, ignore_eos=True))
        first, second = self.connect(cluster), self.connect(cluster)
        first.sendall(long)
        read_until(first, b"data: {")
        second.sendall(long)
        cluster.await_true(lambda: cluster.status()["waiting"] == 1, "the second waits")
        response, text = self.ask(cluster, "POST", "/v1/completions", body_of(stream=True))
        self.assertEqual(response.status, 429, text)
        self.assertEqual(json.loads(text)["error"]["code"], "rate_limit_exceeded")
        self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)
        cluster.kill("coordinator")
        data = read_until(first, b"[DONE]")
        self.assertIn(b'data: {"error":{', data)
        response, text = self.ask(cluster, "POST", "/v1/completions", body_of())
        self.assertEqual(response.status, 503, text)
        self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)
        response, _ = self.ask(cluster, "GET", "/health")
        self.assertEqual(response.status, 503)
        cluster.start("coordinator")
        cluster.await_true(lambda: self.ask(cluster, "GET", "/health")[0].status == 200,
                           "the gateway finds the coordinator again")

    def test_draining_lets_streams_finish(self):
        cluster = self.cluster_of()
        connection = self.connect(cluster)
        connection.sendall(raw(body_of(stream=True, max_tokens=100, ignore_eos=True)))
        data = read_until(connection, b"data: ")
        endless = self.connect(cluster)  # Draining cannot be over while this one runs.
        endless.sendall(raw(body_of(stream=True, max_tokens=8000, ignore_eos=True)))
        read_until(endless, b"data: ")
        process = cluster.processes["gateway"]
        process.send_signal(signal.SIGTERM)
        cluster.await_true(lambda: "stopping" in cluster.log("gateway"), "the signal")
        response, text = self.ask(cluster, "POST", "/v1/completions", body_of())
        self.assertEqual(response.status, 503, text)
        data += read_until(connection, b"[DONE]")
        self.assertIn(b"[DONE]", data)
        endless.close()
        self.assertEqual(process.wait(STOP_SECONDS), 0, cluster.log("gateway"))

    def test_draining_ends_though_clients_come_again_and_again(self):
        cluster = self.cluster_of()
        stream = self.connect(cluster)
        stream.sendall(raw(body_of(stream=True, max_tokens=8000, ignore_eos=True)))
        read_until(stream, b"data: ")
        process = cluster.processes["gateway"]
        process.send_signal(signal.SIGTERM)
        cluster.await_true(lambda: "stopping" in cluster.log("gateway"), "the signal")
        host, port = cluster.gateway.rsplit(":", 1)
        crowd = contextlib.ExitStack()  # There is always one that has not asked yet.
        self.addCleanup(crowd.close)

        def came():
            with contextlib.suppress(ConnectionError):
                crowd.enter_context(socket.create_connection((host, int(port)), timeout=START_SECONDS))
        came()
        self.assertIsNone(process.poll(), "it waits for the stream")
        stream.close()

        def ended():
            came()
            return process.poll() is not None
        cluster.await_true(ended, "the end", seconds=STOP_SECONDS)
        self.assertEqual(process.returncode, 0, cluster.log("gateway"))

    def test_keys_and_tls(self):
        folder = self.enterContext(__import__("tempfile").TemporaryDirectory())
        keys, certificate, key = (Path(folder) / n for n in ("keys", "cert.pem", "key.pem"))
        keys.write_text("# ours\nalpha\nbeta\n")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                        "-keyout", key, "-out", certificate, "-subj", "/CN=localhost",
                        "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
        cluster = self.cluster_of({"api_keys_file": str(keys), "tls_certificate": str(certificate),
                                   "tls_key": str(key), "connections_max": 2})
        context = ssl.create_default_context(cafile=certificate)

        def ask(path, key=None, body=None, method="GET"):
            connection = http.client.HTTPSConnection(cluster.gateway, timeout=START_SECONDS,
                                                     context=context)
            self.addCleanup(connection.close)
            headers = {**JSON, **({"Authorization": f"Bearer {key}"} if key else {})}
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()

        for wrong in (None, "gamma", "alph", "alphaa"):
            status, text = ask("/v1/models", wrong)
            self.assertEqual(status, 401)
            self.assertEqual(json.loads(text)["error"]["code"], "invalid_api_key")
        self.assertEqual(ask("/health")[0], 200)
        for right in ("alpha", "beta"):
            self.assertEqual(ask("/v1/models", right)[0], 200)
        status, text = ask("/v1/completions", "beta", body_of(stream=True), "POST")
        self.assertEqual(status, 200)
        self.assertTrue(text.endswith(b"data: [DONE]\n\n"))
        gateway = cluster.processes["gateway"]
        keys.write_text("beta\ngamma\n")
        gateway.send_signal(signal.SIGHUP)
        cluster.await_true(lambda: ask("/v1/models", "gamma")[0] == 200, "the new key", ["gateway"])
        self.assertEqual(ask("/v1/models", "alpha")[0], 401)
        keys.write_text("# none\n")
        gateway.send_signal(signal.SIGHUP)
        cluster.await_true(lambda: "the keys stay as they were" in cluster.log("gateway"), "the refusal", ["gateway"])
        self.assertEqual(ask("/v1/models", "beta")[0], 200)
        plain = self.connect(cluster)
        plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        self.assertNotIn(b"HTTP/1.1 200", read_until(plain, b"never"))
        for _ in range(2):  # As many connections as there may be, with a request in hand each.
            stream = context.wrap_socket(self.connect(cluster), server_hostname="127.0.0.1")
            self.addCleanup(stream.close)
            stream.sendall(raw(body_of(stream=True, max_tokens=8000, ignore_eos=True),
                               headers="Authorization: Bearer beta\r\n"))
            self.assertIn(b"data: ", read_until(stream, b"data: "))
        for body, method in ((None, "GET"), (body_of(), "POST")):
            status, text = ask("/v1/completions", "beta", body, method)
            self.assertEqual(status, 503, text)
            self.assertEqual(json.loads(text)["error"]["code"], "service_unavailable")


if __name__ == "__main__":
    unittest.main()

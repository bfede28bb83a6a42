#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rogue control streams: whoever was not accepted as a node is not believed, and does no harm to the one that was.

Streams come without the cluster's secret, with another one, or with a proof of another stream or name; they claim a node's name
while the node is there, speak without a Hello, speak on after a refusal, send names of megabytes, and say nothing. Meanwhile requests run; their tokens must be those of an undisturbed run, in the same epoch.
"""

import hashlib
import hmac
import json
import os
import queue
import struct
import tempfile
import unittest
from pathlib import Path

import clients
from harness import MODEL, Cluster, cluster_file, require_model, run, run_in_environment, write_token

if __name__ == "__main__":
    # Those of grpc_api_test.py: one environment for both.
    run_in_environment("grpcio==1.85.1", "grpcio-reflection==1.85.1", "grpcio-health-checking==1.85.1")

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "lamina.v1.Cluster"
ANSWER_SECONDS = 30
PROMPTS = ["Once upon a time"]  # Of requests that run during each attack.
TOKENS = 60
INTERNAL = 13  # absl::StatusCode.
TOKEN = "the-secret-of-this-cluster"
STREAMS_UNPROVED_MAX = 32  # coordinator/join_gate_service.h.


def proof(token, challenge, hello):
    """What a node puts into its Hello: control/node_proof_service.cc."""
    fields = (b"lamina control stream 1: node", challenge.nonce, hello.nonce, str(hello.role).encode(), hello.name.encode())
    message = b"".join(struct.pack("<Q", len(field)) + field for field in fields)
    return hmac.new(token.encode(), message, hashlib.sha256).digest()


class ControlStreamTest(unittest.TestCase):
    wanted = None

    @classmethod
    def setUpClass(cls):
        require_model(cls("test_silence_before_acceptance"))
        cls.cluster = Cluster(model=MODEL, token=TOKEN)
        cls.cluster.__enter__()
        cls.channel = grpc.insecure_channel(
            cls.cluster.server, options=[("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)])
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(cls.channel))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Attach")
        cls.message = message_factory.GetMessageClass(method.input_type)
        cls.answer = message_factory.GetMessageClass(method.output_type)
        cls.attach = cls.stream_of(cls.message.SerializeToString)

    @classmethod
    def stream_of(cls, serializer):
        return cls.channel.stream_stream(f"/{SERVICE}/Attach", request_serializer=serializer, response_deserializer=cls.answer.FromString)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.__exit__()

    def setUp(self):
        self.cluster.await_state("serving")
        self.epoch = self.cluster.status()["epoch"]
        if self.wanted is None:
            ControlStreamTest.wanted = [stream.finish() for stream in self.streams()]

    def lies(self, name):
        """What would harm the cluster if it were the node that says it."""
        node = next((node for node in self.cluster.status()["nodes"] if node["name"] == name), {})
        hello = {"name": name, "role": 1 if name.startswith("c") else 2, "version": self.cluster.status()["version"],
                 "capacity_bytes": 1 << 40, "device": node.get("device", "cpu"), "bandwidth_bytes_per_second": 1e18}
        tokens = [{"sequence": sequence, "position": position, "token": 1 << 30}
                  for sequence in range(40) for position in range(40)]
        return [hello,
                {"fault": {"epoch": self.epoch, "code": INTERNAL, "message": "a lie", "peer": "c0"}},
                {"status": {"busy_share": 1e300, "units": 1 << 60, "unit_seconds_fixed": 1e9}},
                {"prepared": {"epoch": self.epoch, "region": b"nowhere"}},
                {"ready": {"epoch": self.epoch}},
                {"layers_loaded": {"code": INTERNAL, "message": "a lie"}},
                {"links": {"epoch": self.epoch, "links": [{"peer": "m0", "latency_seconds": 1e9}]}},
                *({"step_result": {"epoch": self.epoch, "lane": lane, "step": step, "tokens": tokens}}
                  for lane in range(2) for step in range(1, 60))]

    def tell(self, messages, token=TOKEN, spoil=lambda hello: None):
        """Proves the first message, a Hello, unless there is no token; spoils it; sends all on one stream, keeps it open until
        the coordinator ends it, and returns what it says after its challenge."""
        waiting = queue.SimpleQueue()
        call = self.attach(iter(waiting.get, None), timeout=ANSWER_SECONDS)
        challenge = next(call).challenge
        self.assertEqual((len(challenge.nonce), challenge.has_secret), (32, True))
        hello = messages[0].hello
        if token is not None:
            hello.nonce = os.urandom(32)
            hello.proof = proof(token, challenge, hello)
        spoil(hello)
        for message in messages:
            waiting.put(message)
        answers = []
        try:
            answers.extend(call)
        except grpc.RpcError as error:
            self.assertIn(error.code(), (grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED), error)
        waiting.put(None)
        return answers

    def messages(self, lies):
        hello, *others = lies
        return [self.message(hello=hello), *(self.message(**lie) for lie in others)]

    def assert_nothing_happened(self, running):
        self.assertEqual([stream.finish() for stream in running], self.wanted)
        status = self.cluster.status()
        self.assertEqual((status["state"], status["epoch"]), ("serving", self.epoch), self.cluster.logs())
        self.assertTrue(all(link["latency_seconds"] < 1e6 for link in status.get("links", [])))

    def streams(self):
        running = [clients.Stream(self, self.cluster, prompt, TOKENS) for prompt in PROMPTS]
        self.cluster.await_true(lambda: self.cluster.status()["running"] > 0, "a request that runs")
        return running

    def test_a_claim_to_a_live_nodes_name_never_touches_it(self):
        running = self.streams()
        for name, reason in (("c0", "the model of c0"), ("m0", "already part of this cluster")):
            answers = self.tell(self.messages(self.lies(name)))
            self.assertEqual([answer.WhichOneof("message") for answer in answers], ["welcome", "refused"])
            self.assertIn(reason, answers[1].refused.reason)
        self.assert_nothing_happened(running)

    def test_bytes_that_are_no_message_end_the_stream(self):
        running = self.streams()
        attach = self.stream_of(bytes)
        for no_message in (b"\xff" * 40, b"\x0a\x05"):
            waiting = queue.SimpleQueue()
            call = attach(iter(waiting.get, None), timeout=ANSWER_SECONDS)
            self.assertTrue(next(call).HasField("challenge"))
            waiting.put(no_message)
            self.assertEqual(list(call), [])
            waiting.put(None)
        self.assert_nothing_happened(running)

    def test_a_stranger_is_refused_and_not_heard(self):
        running = self.streams()
        hello, *others = self.lies("c0")
        answers = self.tell(self.messages([{**hello, "name": "c77"}, *others]))
        self.assertTrue(answers[-1].refused.reason)
        self.assert_nothing_happened(running)

    def test_silence_before_acceptance(self):
        """Without a Hello nothing counts; the stream's end is nobody's."""
        running = self.streams()
        for name in ("c0", "m0"):
            call = self.attach(iter(self.messages(self.lies(name))[1:]), timeout=ANSWER_SECONDS)
            self.assertEqual([answer.WhichOneof("message") for answer in call], ["challenge"])
        self.assert_nothing_happened(running)

    def test_long_and_strange_names_are_refused_and_not_logged(self):
        before = len(self.cluster.log("coordinator"))
        hello = self.lies("c0")[0]
        for field in ({"name": "x" * (50 << 20)}, {"name": "c0\n2026 E everything is lost"}, {"kernels": "k" * (1 << 20)},
                      {"version": "v" * (1 << 20)}):
            answers = self.tell([self.message(hello={**hello, **field})])
            self.assertIn("of a Hello", answers[0].refused.reason)
        self.assertLess(len(self.cluster.log("coordinator")) - before, 20_000)
        self.assertNotIn("\n2026 E everything", self.cluster.log("coordinator"))
        self.assert_nothing_happened([clients.Stream(self, self.cluster, prompt, TOKENS) for prompt in PROMPTS])

    def test_who_does_not_prove_the_secret_is_refused_and_not_heard(self):
        running = self.streams()
        stolen = {}

        def steal(hello):
            stolen.update(nonce=hello.nonce, proof=hello.proof)

        def replay(hello):
            hello.nonce, hello.proof = stolen["nonce"], stolen["proof"]

        def rename(hello):
            hello.name = "c0"

        lies = self.lies("c0")
        self.tell(self.messages(lies), spoil=steal)  # A right proof, of a stream that was refused for its name.
        for name, token, spoil in (("c0", None, lambda hello: None), ("c0", "another-secret-than-that", lambda hello: None),
                                   ("c0", "", lambda hello: None), ("c0", TOKEN, replay), ("c7", TOKEN, rename),
                                   ("c0", TOKEN, lambda hello: setattr(hello, "role", 2)),
                                   ("c0", TOKEN, lambda hello: setattr(hello, "proof", hello.proof[:-1]))):
            answers = self.tell(self.messages([{**lies[0], "name": name}, *lies[1:]]), token, spoil)
            self.assertEqual([answer.WhichOneof("message") for answer in answers], ["refused"])
            self.assertIn("did not prove", answers[0].refused.reason)
        self.assert_nothing_happened(running)

    def test_a_second_hello_with_a_right_proof_does_not_mend_a_refusal(self):
        running = self.streams()
        messages = [self.message(hello=self.lies("c7")[0]) for _ in range(2)]
        waiting = queue.SimpleQueue()
        call = self.attach(iter(waiting.get, None), timeout=ANSWER_SECONDS)
        challenge = next(call).challenge
        messages[1].hello.nonce = os.urandom(32)
        messages[1].hello.proof = proof(TOKEN, challenge, messages[1].hello)
        for message in messages:
            waiting.put(message)
        self.assertEqual([answer.WhichOneof("message") for answer in call], ["refused"])
        waiting.put(None)
        self.assert_nothing_happened(running)

    def test_silent_streams_are_few_and_ended(self):
        running = self.streams()
        waiting = [queue.SimpleQueue() for _ in range(STREAMS_UNPROVED_MAX + 8)]
        calls = [self.attach(iter(one.get, None), timeout=ANSWER_SECONDS) for one in waiting]
        challenged, turned_away = [], 0
        for call in calls:
            try:
                self.assertEqual(next(call).WhichOneof("message"), "challenge")
                challenged.append(call)
            except grpc.RpcError as error:
                self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED, error)
                turned_away += 1
        self.assertEqual((len(challenged), turned_away), (STREAMS_UNPROVED_MAX, 8))
        for call in challenged:
            # Ended by the coordinator: the test's own limit would be DEADLINE_EXCEEDED.
            with self.assertRaises(grpc.RpcError) as ended:
                next(call)
            self.assertEqual(ended.exception.code(), grpc.StatusCode.CANCELLED)
        for one in waiting:
            one.put(None)
        self.assertIn("did not prove", self.tell(self.messages(self.lies("c0")[:1]), None)[0].refused.reason)
        self.assert_nothing_happened(running)

    def test_a_node_says_why_it_may_not_join(self):
        running = self.streams()
        own = self.cluster.directory
        other = write_token(own / "other.token", "another-secret-than-that")
        for words, reason in ((["--cluster-token-file", other], "did not prove"), ([], "this node has none")):
            # The cluster file names no token: the test's cluster has that of a --set.
            node = run("--cluster", self.cluster.file, "--name", "m1", "--coordinator", self.cluster.server, *words,
                       program="lamina-memory")
            self.assertEqual(node.returncode, 1, node.stderr)
            self.assertIn(reason, node.stderr)
            self.assertIn("cluster_token_file", node.stderr)
            self.assertNotIn("another-secret", node.stderr + node.stdout)
        self.assert_nothing_happened(running)

    def test_the_secret_is_told_to_nobody(self):
        shown = [self.cluster.logs(), json.dumps(self.cluster.status()), self.cluster.lamina("status").stdout,
                 run("config", "--cluster", self.cluster.file, *self.cluster.overrides).stdout]
        for process in self.cluster.processes.values():
            shown += [Path(f"/proc/{process.pid}/{what}").read_bytes().decode(errors="replace") for what in ("cmdline", "environ")]
        for text in shown:
            self.assertTrue(text)
            self.assertNotIn(TOKEN, text)


class CoordinatorSecretTest(unittest.TestCase):
    """What a coordinator refuses before it reads a model."""

    def start(self, listen, *words):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(cluster_file(model="no_such_model.gguf", coordinator={"listen": listen}))
            file.flush()
            return run("--cluster", file.name, *words, program="lamina-coordinator")

    def test_without_a_secret_only_this_host_is_served(self):
        for listen in ("0.0.0.0:0", "[::]:0", "192.0.2.1:7400"):
            refused = self.start(listen)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"coordinator.listen: {listen} can be reached from other hosts", refused.stderr)
            self.assertIn("cluster_token_file", refused.stderr)
        loopback = self.start("127.0.0.1:0")
        self.assertIn("every process of this host may join", loopback.stderr + loopback.stdout)
        self.assertIn("no_such_model", loopback.stderr)  # That was next.

    def test_a_token_file_that_is_no_secret_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "cluster.token"
            cases = ((None, 0, "cannot open"), ("q" * 15, 0o600, "has a token of 15 bytes"), ("", 0o600, "has a token of 0 bytes"),
                     ("q" * 40, 0o640, "chmod 600"), ("q" * 40, 0o604, "chmod 600"), ("q" * 40, 0o600, "no_such_model"))
            for token, mode, reason in cases:
                if token is not None:
                    write_token(path, token, mode)
                result = self.start("0.0.0.0:0", "--cluster-token-file", path)
                self.assertEqual(result.returncode, 1)
                self.assertIn(reason, result.stderr)
                self.assertNotIn("qqq", result.stderr + result.stdout)


if __name__ == "__main__":
    unittest.main()

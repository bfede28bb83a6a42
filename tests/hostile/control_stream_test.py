#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rogue control streams: whoever was not accepted as a node is not believed, and does no harm to the one that was.

Streams claim a node's name while the node is there, speak without a Hello, speak on after a refusal, and send names of megabytes.
Meanwhile requests run; their tokens must be those of an undisturbed run, in the same epoch.
"""

import queue
import unittest

import clients
from harness import Cluster, require_model, run_in_environment

if __name__ == "__main__":
    # Those of grpc_api_test.py: one environment for both.
    run_in_environment("grpcio==1.85.1", "grpcio-reflection==1.85.1", "grpcio-health-checking==1.85.1")

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "lamina.v1.Cluster"
ANSWER_SECONDS = 30
PROMPTS = ["Once upon a time", "The capital of France is"]
TOKENS = 60
INTERNAL = 13  # absl::StatusCode.


class ControlStreamTest(unittest.TestCase):
    wanted = None

    @classmethod
    def setUpClass(cls):
        require_model(cls("test_silence_before_acceptance"))
        cls.cluster = Cluster()
        cls.cluster.__enter__()
        cls.channel = grpc.insecure_channel(
            cls.cluster.server, options=[("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)])
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(cls.channel))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Attach")
        cls.message = message_factory.GetMessageClass(method.input_type)
        answer = message_factory.GetMessageClass(method.output_type)
        cls.attach = cls.channel.stream_stream(f"/{SERVICE}/Attach", request_serializer=cls.message.SerializeToString,
                                               response_deserializer=answer.FromString)

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

    def tell(self, messages):
        """Sends them on one stream, keeps it open until the coordinator ends it, and returns what it says."""
        waiting = queue.SimpleQueue()
        for message in messages:
            waiting.put(message)
        call = self.attach(iter(waiting.get, None), timeout=ANSWER_SECONDS)
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
            self.assertEqual(len(answers), 1)
            self.assertIn(reason, answers[0].refused.reason)
        self.assert_nothing_happened(running)

    def test_a_stranger_is_refused_and_not_heard(self):
        running = self.streams()
        hello, *others = self.lies("c0")
        answers = self.tell(self.messages([{**hello, "name": "c77"}, *others]))
        self.assertTrue(answers[0].refused.reason)
        self.assert_nothing_happened(running)

    def test_silence_before_acceptance(self):
        """Without a Hello nothing counts; the stream's end is nobody's."""
        running = self.streams()
        for name in ("c0", "m0"):
            call = self.attach(iter(self.messages(self.lies(name))[1:]), timeout=ANSWER_SECONDS)
            self.assertEqual(list(call), [])
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


if __name__ == "__main__":
    unittest.main()

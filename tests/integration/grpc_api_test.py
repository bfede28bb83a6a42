#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's gRPC as a program without our .proto files meets it: reflection, health, deadlines."""

import unittest

from harness import MODEL, Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("grpcio==1.85.1", "grpcio-reflection==1.85.1", "grpcio-health-checking==1.85.1")

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase


class GrpcApiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_health_says_that_it_serves"))
        cls.cluster = Cluster(model=MODEL)
        cls.cluster.__enter__()
        # No web proxy of the environment.
        cls.channel = grpc.insecure_channel(cls.cluster.server, options=[("grpc.enable_http_proxy", 0)])
        cls.reflected = ProtoReflectionDescriptorDatabase(cls.channel)
        cls.pool = descriptor_pool.DescriptorPool(cls.reflected)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        cls.cluster.__exit__()

    def method(self, service, name):
        """The call of a method, and its request's class, from what reflection says."""
        method = self.pool.FindServiceByName(service).FindMethodByName(name)
        request = message_factory.GetMessageClass(method.input_type)
        answer = message_factory.GetMessageClass(method.output_type)
        make = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        call = make(f"/{service}/{name}", request_serializer=request.SerializeToString,
                    response_deserializer=answer.FromString)
        return call, request

    def generate(self, timeout=None, **fields):
        call, request = self.method("lamina.v1.Inference", "Generate")
        return call(request(**fields), timeout=timeout)

    def assert_all_is_free(self):
        def free():
            status = self.cluster.status()
            return status["running"] == 0 and all(node["slots_used"] == 0 for node in status["nodes"])
        self.cluster.await_true(free, "the end of all requests")

    def test_reflection_names_the_services(self):
        services = self.reflected.get_services()
        for service in ("lamina.v1.Inference", "lamina.v1.Cluster", "grpc.health.v1.Health"):
            self.assertIn(service, services)

    def test_reflection_is_enough_to_call(self):
        call, request = self.method("lamina.v1.Cluster", "GetStatus")
        self.assertEqual(call(request()).state, "serving")
        call, request = self.method("lamina.v1.Inference", "ListModels")
        self.assertEqual(call(request()).models[0].vocabulary, 49152)
        pieces = list(self.generate(text="The capital of France is", max_tokens=4))
        self.assertIn("Paris", "".join(piece.text for piece in pieces))

    def test_health_says_that_it_serves(self):
        answer = health_pb2_grpc.HealthStub(self.channel).Check(health_pb2.HealthCheckRequest())
        self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)

    def test_a_client_that_compresses_is_told_so(self):
        with grpc.insecure_channel(self.cluster.server, options=[("grpc.enable_http_proxy", 0)],
                                   compression=grpc.Compression.Gzip) as compressing:
            with self.assertRaises(grpc.RpcError) as raised:
                health_pb2_grpc.HealthStub(compressing).Check(health_pb2.HealthCheckRequest())
        self.assertEqual(raised.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
        self.assertIn("Compression algorithm 'gzip' is disabled", raised.exception.details())

    def test_a_score_tells_how_far_it_is(self):
        prompt = {"ids": [1 + i % 997 for i in range(700)]}
        call, request = self.method("lamina.v1.Inference", "ScoreStream")
        *updates, last = call(request(tokens=prompt))
        self.assertEqual([(u.tokens_done, u.tokens) for u in updates], [(512, 700)])
        call, request = self.method("lamina.v1.Inference", "Score")
        self.assertEqual(list(last.result.logprobs), list(call(request(tokens=prompt)).logprobs))

    def test_a_deadline_ends_the_request_and_frees_its_slots(self):
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.generate(text="Once upon a time", max_tokens=8000, ignore_eos=True, timeout=1))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assert_all_is_free()

    def test_a_request_that_another_call_cancels_ends(self):
        stream = self.generate(text="Once upon a time", max_tokens=8000, ignore_eos=True, request_id="mine")
        next(stream)
        cancel, request = self.method("lamina.v1.Inference", "Cancel")
        cancel(request(request_id="mine"))
        with self.assertRaises(grpc.RpcError) as raised:
            list(stream)
        self.assertEqual(raised.exception.code(), grpc.StatusCode.CANCELLED)
        self.assert_all_is_free()
        with self.assertRaises(grpc.RpcError) as raised:
            cancel(request(request_id="mine"))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_a_request_without_a_prompt_says_what_to_set(self):
        with self.assertRaises(grpc.RpcError) as raised:
            list(self.generate(max_tokens=4))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("set text, tokens or chat", raised.exception.details())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that stay in the blocks of their GGUF file give the tokens of bf16, in the file's memory."""

import unittest

import harness
from policies import answers

MIB = 1 << 20


def weights(form):
    return {"compute": [{"name": "c0", "weights": form}]}


def compute_node(status):
    return next(node for node in status["nodes"] if node["role"] == "compute")


class PackedWeightsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_tokens_are_those_of_bf16(self):
        with harness.Cluster(**weights("bf16")) as cluster:
            expected = answers(self, cluster)
            widened = compute_node(cluster.status())
        self.assertGreater(widened["weight_bytes"], 88 * MIB)
        self.assertRegex(widened["kernels"], r", weights bf16 \d+\.\d MiB$")
        with harness.Cluster(**weights("auto")) as cluster:
            self.assertEqual(answers(self, cluster), expected)
        with harness.Cluster(**weights("packed")) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            packed = compute_node(cluster.status())
            if "onednn" in packed["kernels"]:
                self.skipTest("oneDNN multiplies here, which takes no blocks")
            self.assertLess(packed["weight_bytes"], 44 * MIB)
            self.assertRegex(packed["kernels"], r", weights Q4_1 \d+\.\d MiB, Q8_0 \d+\.\d MiB$")
        two = [{"name": name, "replica": "r", "shard": shard, "weights": "packed"} for shard, name in enumerate(("c0", "c1"))]
        with harness.Cluster(compute=two) as cluster:
            answers(self, cluster)
            for node in cluster.status()["nodes"]:
                if node["role"] == "compute":
                    self.assertLess(node["weight_bytes"], 44 * MIB)


if __name__ == "__main__":
    unittest.main()

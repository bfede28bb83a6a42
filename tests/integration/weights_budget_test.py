#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that exceed a compute node's budget come from a file, slice by slice, with the same tokens."""

import tempfile
import unittest
from pathlib import Path

import harness
from policies import CANONICAL, answers

MIB = 1 << 20


def streaming(budget="84MiB", weights="bf16", **keys):
    return {"compute": [{"name": "c0", "weights_budget": budget, "weights": weights, **keys}]}


def serves(cluster):
    return cluster.status()["state"].startswith("serving")  # Perhaps without a node that is lost.


class WeightsBudgetTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_tokens_are_those_of_weights_that_stay(self):
        with harness.Cluster(attention=CANONICAL, compute=[{"name": "c0", "weights": "bf16"}]) as cluster:
            expected = answers(self, cluster)
            all_weights = cluster.status()["nodes"][0]["weight_bytes"]
        with tempfile.TemporaryDirectory() as store:
            with harness.Cluster(attention=CANONICAL, **streaming(weights_store=store)) as cluster:
                self.assertEqual(answers(self, cluster), expected)
                status = cluster.status()
                self.assertLess(status["nodes"][0]["weight_bytes"], 85 * MIB)
                self.assertGreater(all_weights, 90 * MIB)
                self.assertEqual(len(status["lanes"]), 1)
                self.assertRegex(cluster.log("c0"), r"weights: \d+ of 7 slices come from")
                self.assertEqual(list(Path(store).iterdir()), [])
                # Nodes that are lost end epochs in the middle of a step; the compute node loads anew.
                cluster.kill("m0")
                self.assertEqual(answers(self, cluster), expected)
                cluster.kill("c0")
                cluster.await_true(lambda: not serves(cluster), "the loss of c0")
                cluster.start("c0")
                cluster.await_true(lambda: serves(cluster), "c0 again", ["c0", "m1"])
                self.assertEqual(answers(self, cluster), expected)
                self.assertEqual(list(Path(store).iterdir()), [])
        with harness.Cluster(policy="local", memory=[], attention=CANONICAL, **streaming(capacity="256MiB")) as cluster:
            self.assertEqual(answers(self, cluster), expected)
        # K and V are made again with weights that come.
        recompute, hybrid = ("fetch_recompute", {"recompute_percent": 60}), ("fetch_hybrid", {"activation_percent": 60})
        in_order = (recompute[0], {**recompute[1], "kv_weights_first": "false"})
        for (policy, fetch), keys in [(recompute, {}), (hybrid, {}), (in_order, {}), (recompute, {"weights_ahead": 0})]:
            with harness.Cluster(policy=policy, fetch={"window": "16MiB", **fetch}, limits={"sequence_tokens_max": 256}, **streaming(**keys)) as cluster:
                self.assertEqual(answers(self, cluster), expected)
        with harness.Cluster(policy="fetch_heads", fetch={"window": "16MiB"}, limits={"sequence_tokens_max": 256}, **streaming()) as cluster:
            self.assertEqual(answers(self, cluster), expected)

    def test_lanes_share_what_comes(self):
        with harness.Cluster(attention=CANONICAL, compute=[{"name": "c0", "weights": "packed"}]) as cluster:
            expected = answers(self, cluster)
        short = {"limits": {"sequence_tokens_max": 256}}
        for keys in ({"attention": CANONICAL}, {"policy": "fetch_heads", "fetch": {"window": "16MiB"}, **short},
                     {"policy": "fetch_hybrid", "fetch": {"window": "16MiB", "activation_percent": 60}, **short}):
            with harness.Cluster(pipeline={"lanes": 3}, **keys, **streaming("38MiB", weights="packed")) as cluster:
                found = answers(self, cluster)
                self.assertEqual([tokens for tokens, _ in found], [tokens for tokens, _ in expected])
                self.assertEqual(len(cluster.status()["lanes"]), 3)
                if "onednn" not in cluster.status()["nodes"][0]["kernels"]:
                    self.assertRegex(cluster.log("c0"), r"of 7 slices come from .* through 3 slots")
                cluster.kill("m0")  # An epoch ends in the middle of a round.
                self.assertEqual([tokens for tokens, _ in answers(self, cluster)], [tokens for tokens, _ in expected])

    def test_tokens_are_chosen_as_with_weights_that_stay(self):
        sparse = {"fetch": {"window": "16MiB", "caching_ratio": 0.5}, "limits": {"sequence_tokens_max": 256}, "attention": CANONICAL}
        with harness.Cluster(policy="fetch_sparse", **sparse, compute=[{"name": "c0", "weights": "packed"}]) as cluster:
            expected = answers(self, cluster)
        both = ["attend_remote", "fetch_sparse"]
        with harness.Cluster(policies=both, pipeline={"lanes": 2}, **sparse, **streaming("38MiB", weights="packed")) as cluster:
            self.assertEqual(answers(self, cluster, ["fetch_sparse"]), expected)
            mixed = answers(self, cluster, both)  # Every second request is served by fetch_sparse.
            self.assertEqual(mixed[1::2], expected[1::2])
            self.assertNotEqual(mixed[0::2], expected[0::2])

    def test_weights_come_in_the_blocks_of_their_file(self):
        with harness.Cluster(compute=[{"name": "c0", "weights": "packed"}]) as cluster:
            expected = answers(self, cluster)
            if "onednn" in cluster.status()["nodes"][0]["kernels"]:
                self.skipTest("oneDNN multiplies here, which takes no blocks")
        for form in ("packed", "auto"):  # Auto packs what it can, since they do not fit as bf16.
            with harness.Cluster(**streaming("38MiB", weights=form)) as cluster:
                self.assertEqual(answers(self, cluster), expected)
                status = cluster.status()
                self.assertLess(status["nodes"][0]["weight_bytes"], 38 * MIB)
                self.assertRegex(cluster.log("c0"), r"weights: \d+ of 7 slices come from .* all are Q4_1 \d+\.\d MiB, Q8_0 \d+\.\d MiB")
        # All of them fit in a budget that those of bf16 exceed.
        with harness.Cluster(**streaming(weights="packed")) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            self.assertNotIn("slices come from", cluster.log("c0"))

    def test_a_budget_without_room_for_a_slice_is_refused_with_the_numbers(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "cluster.yaml"
            path.write_text(harness.cluster_file(**streaming("70MiB")))
            result = harness.run("--cluster", path, "--name", "c0", "--coordinator", "127.0.0.1:1", program="lamina-compute")
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"weights_budget 70\.0 MiB is less than \d\d\.\d MiB")
            path.write_text(harness.cluster_file(**streaming(weights_store="/nowhere")))
            result = harness.run("--cluster", path, "--name", "c0", "--coordinator", "127.0.0.1:1", program="lamina-compute")
            self.assertEqual(result.returncode, 1)
            self.assertIn("weights_store /nowhere", result.stderr)

    def test_what_is_not_served_is_refused_by_name(self):
        two = streaming()["compute"] + [{"name": "c1"}]
        for keys, why in [
            ({"compute": two}, "not served by this version with 2 compute nodes"),
            ({"policy": "auto", "compute": [{"name": "c0", "capacity": "1GiB", "weights_budget": "160MiB"}]},
             "not served by this version with policy auto"),
            ({"compute": [{"name": "c0", "weights_store": "/nowhere"}]}, "compute.0.weights_store: says where"),
            ({"compute": [{"name": "c0", "weights_ahead": 0}]}, "compute.0.weights_ahead: says how far"),
        ]:
            with self.subTest(why), tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "cluster.yaml"
                path.write_text(harness.cluster_file(memory_nodes=2, **{**streaming(), **keys}))
                result = harness.run("--cluster", path, "--name", "m0", program="lamina-memory")
                self.assertEqual(result.returncode, 1)
                self.assertIn(why, result.stderr)

    def test_the_cluster_file_is_written_as_it_was_read(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "cluster.yaml"
            path.write_text(harness.cluster_file(**streaming()))
            shown = harness.run("config", "--cluster", path)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            self.assertIn("weights_budget: 84MiB, weights_store: /var/tmp", shown.stdout)


if __name__ == "__main__":
    unittest.main()

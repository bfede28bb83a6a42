#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policies that fetch: K and V lie on memory nodes and come to the compute node, where rows attend."""

import json
import tempfile
import unittest
from pathlib import Path

import harness
import short_model
from policies import CANONICAL, answers, answers_through_a_kill

# What links and the making of K and V were measured to be, and how well lines explain that.
FITTED = r"^{}; lines fitted with R squared (-?[01]\.\d{{3}} \(links\) and )?-?[01]\.\d{{3}} \(making K and V\)$"


def fetching(window="16MiB", **keys):
    return {"policy": "fetch_heads", "fetch": {"window": window}, **keys}


def recomputing(percent, **keys):
    return {"policy": "fetch_recompute", "fetch": {"window": "16MiB", "recompute_percent": percent}, **keys}


def hybrid(percent, **keys):
    return {"policy": "fetch_hybrid", "fetch": {"window": "16MiB", "activation_percent": percent}, **keys}


class FetchPolicyTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    expected_ = []

    def expected(self):
        """Answers where memory nodes attend; of one cluster for all."""
        if not self.expected_:
            with harness.Cluster(attention=CANONICAL) as cluster:
                self.expected_.extend(answers(self, cluster))
        return self.expected_

    def test_tokens_are_those_of_attention_at_memory_nodes(self):
        expected = self.expected()
        limits = {"sequence_tokens_max": 256}
        # One head of the longest sequence fits into a window, and slots are few.
        small = fetching("1MiB", limits=limits, memory=[{"name": "m0", "capacity": "1500KiB"}])
        with harness.Cluster(**small) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertGreater(cluster.status()["preemptions"], 0)
            self.check_status(cluster)
        # Some K and V stay on the compute node, and come no more.
        stays = {"policy": "fetch_heads", "fetch": {"window": "16MiB", "resident": "600KiB"}, "limits": short_model.LONG}
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertEqual(cluster.status()["policy"], "fetch_heads")
            self.check_kill(cluster)
        with harness.Cluster(policies=["fetch_heads", "attend_remote"], **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertEqual(cluster.status()["policy"], "fetch_heads")
        # Layer by layer.
        whole = {"policy": "fetch_heads", "fetch": {"window": "16MiB", "heads": 100}}
        with harness.Cluster(**whole, limits=limits) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)

    def test_recomputed_k_and_v_are_what_they_were(self):
        expected = self.expected()
        limits = {"sequence_tokens_max": 256}
        # All heads of the longest sequence fit into a window; slots are few, and larger.
        small = recomputing(30, limits=limits, memory=[{"name": "m0", "capacity": "3500KiB"}])
        with harness.Cluster(**small) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertEqual(status["policy"], "fetch_recompute")
            self.assertRegex(status["fetch_choice"], FITTED.format("30% of tokens recomputed, as configured"))
            self.assertIn("30% of tokens recomputed", cluster.lamina("status").stdout)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **recomputing(100, limits=short_model.LONG)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.check_kill(cluster)

    def test_k_and_v_from_token_numbers_are_what_they_were(self):
        expected = self.expected()

        def making(window, percent):
            return {"policy": "fetch_recompute", "fetch": {"window": window, "recompute": "tokens", "recompute_percent": percent}}

        # One head of the longest sequence fits into a window, and slots are few.
        with harness.Cluster(**making("1MiB", 50), limits={"sequence_tokens_max": 256}, memory=[{"name": "m0", "capacity": "1500KiB"}]) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertEqual(status["policy"], "fetch_recompute")
            self.assertRegex(status["fetch_choice"], FITTED.format("50% of tokens made from their numbers, as configured"))
            self.assertIn("50% of tokens made from their numbers", cluster.lamina("explain").stdout)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **making("16MiB", 100), limits=short_model.LONG) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.check_kill(cluster)
        with harness.Cluster(memory_nodes=2, partition="head", **making("16MiB", "auto"), limits=short_model.LONG) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn("of tokens made from their numbers: K and V of one take" if "%" in cluster.status()["fetch_choice"] else "no tokens made from their numbers",
                          cluster.lamina("explain").stdout)

    def test_activations_are_spread_as_heads_are(self):
        expected = self.expected()
        spread = {"memory_nodes": 2, "transport": ["ucx"], "partition": "head"}
        with harness.Cluster(**spread, **recomputing(60, limits=short_model.LONG)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn(" of 3 KV heads", cluster.status()["partition"])
            self.check_kill(cluster)
        with harness.Cluster(**spread, **hybrid(50, limits={"sequence_tokens_max": 256})) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertEqual(cluster.status()["policy"], "fetch_hybrid")

    def test_each_node_sends_the_spans_that_it_has(self):
        cut = {"memory_nodes": 2, "transport": ["ucx"], "partition": "token_range"}
        # One head of one span fits into a window, and not one of the longest sequence.
        with harness.Cluster(**cut, **fetching("512KiB", limits=short_model.LONG)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), self.expected())
            self.assertIn("token_range: spans of 256 tokens over 2 memory nodes", cluster.status()["partition"])
            self.check_kill(cluster)

    def test_what_spans_have_is_made_again(self):
        expected = self.expected()
        cut = {"memory_nodes": 2, "transport": ["ucx"], "partition": "token_range"}
        recompute = recomputing(60, limits={**short_model.LONG, "running_max": 8})
        recompute["fetch"]["resident"] = "8MiB"
        with harness.Cluster(**cut, **recompute) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn("token_range: spans of 256 tokens over 2 memory nodes", cluster.status()["partition"])
            self.check_kill(cluster)
        tokens = {"policy": "fetch_recompute", "fetch": {"window": "1MiB", "recompute": "tokens", "recompute_percent": 80}}
        with harness.Cluster(**cut, **tokens, limits=short_model.LONG) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
        with harness.Cluster(**cut, **hybrid(50, limits=short_model.LONG)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.check_kill(cluster)

    def test_tokens_that_stay_are_named_to_all_nodes_that_share_heads(self):
        stays = {"policy": "fetch_heads", "fetch": {"window": "16MiB", "resident": "600KiB"}, "limits": short_model.LONG}
        with harness.Cluster(memory_nodes=2, transport=["ucx"], partition="head", **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), self.expected())
            self.check_kill(cluster)

    def test_tokens_that_stay_are_of_all_spans(self):
        stays = {"policy": "fetch_heads", "fetch": {"window": "1MiB", "resident": "600KiB"}, "limits": short_model.LONG}
        with harness.Cluster(memory_nodes=2, transport=["ucx"], partition="token_range", **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), self.expected())
            self.assertIn("token_range: spans of 256 tokens over 2 memory nodes", cluster.status()["partition"])
            self.check_kill(cluster)

    def test_activations_that_stay_make_what_was_there(self):
        expected = self.expected()
        # Room for those of 32 tokens of each of 8 sequences.
        stays = recomputing(60, limits={"sequence_tokens_max": 256, "running_max": 8})
        stays["fetch"]["resident"] = "2MiB"
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertEqual(cluster.status()["policy"], "fetch_recompute")
            formula = self.check_formula(cluster, "KVPR")
            # An activation of this model is larger than K and V: windows have those of all tokens.
            self.assertEqual(formula["windows"] % (2 * 2 * 256 * 1152), 0)
        stays["fetch"]["recompute_percent"] = "auto"
        with harness.Cluster(**stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn("nothing kept in fetch.resident: an activation has 1152 bytes in a layer, no less than K and V with 768",
                          cluster.lamina("explain").stdout)

    def test_a_model_with_grouped_queries_says_why_nothing_is_recomputed(self):
        with harness.Cluster(**recomputing("auto", limits=short_model.LONG)) as cluster:
            cluster.lamina(*short_model.ENDLESS)

            def explained():
                return cluster.status()["fetch_choice"].startswith("nothing recomputed: an activation takes")

            cluster.await_true(explained, "the reason")
            self.assertIn("nothing recomputed: an activation takes", cluster.lamina("explain").stdout)

    def test_tokens_held_as_activations_do_not_show(self):
        expected = self.expected()
        limits = {"sequence_tokens_max": 256}
        # Slots are few; an activation of this model is larger than K and V.
        small = hybrid(50, limits=limits, memory=[{"name": "m0", "capacity": "1728KiB"}])
        with harness.Cluster(**small) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertEqual(status["policy"], "fetch_hybrid")
            self.assertRegex(status["fetch_choice"], FITTED.format("50% of tokens held as activations, as configured"))
            self.assertIn("as configured; lines fitted with R squared", cluster.lamina("explain").stdout)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **hybrid(100, limits=short_model.LONG)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.check_kill(cluster)
        # Room for those of 32 tokens of each of 8 sequences.
        stays = hybrid(60, limits={"sequence_tokens_max": 256, "running_max": 8})
        stays["fetch"]["resident"] = "2MiB"
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **stays) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn("activations of the first 32 tokens of a sequence stay on the compute node", cluster.status()["fetch_choice"])
            self.check_formula(cluster, "HybridServe")
        with harness.Cluster(**hybrid("auto", limits=limits)) as cluster:
            harness.require_same_answer(self, answers(self, cluster), expected)
            self.assertIn("no token held as an activation: one has 1152 bytes in a layer, no fewer than K and V with 768",
                          cluster.lamina("status").stdout)
            # K and V come by groups of heads, then.
            self.assertEqual(cluster.status()["nodes"][0]["memory_formula"]["paper"], "HeadInfer")

    def check_formula(self, cluster, paper):
        """What the paper's formula gives is part of what the compute node accounts for."""
        node = cluster.status()["nodes"][0]
        formula = node["memory_formula"]
        self.assertEqual(formula["paper"], paper)
        self.assertEqual(formula["weights"], node["weight_bytes"])
        self.assertGreater(formula["windows"], 0)
        self.assertLess(formula["windows"], node["memory_bytes"]["windows"])
        self.assertGreater(formula["resident"], 0)
        self.assertLessEqual(formula["resident"], node["memory_bytes"]["kv"])
        self.assertIn(f"c0 by the paper's formula ({paper}) activations that stay 2.0 MiB, weights ", cluster.lamina("status").stdout)
        return formula

    def check_status(self, cluster):
        self.assertEqual(cluster.status()["policy"], "fetch_heads")

        def all_is_counted():
            nodes = {node["name"]: node for node in cluster.status()["nodes"]}
            # What was read for attention crossed to the compute node, and the memory node read none.
            self.assertEqual(nodes["m0"]["kv_bytes_read"], 0)
            return 0 < 0.8 * nodes["c0"]["kv_bytes_read"] < nodes["m0"]["bytes_sent"]

        # Nodes report at times of their own.
        cluster.await_true(all_is_counted, "as many bytes sent as were read", seconds=20)

    def check_kill(self, cluster):
        """A lost memory node costs nobody a token."""
        alone = json.loads(cluster.lamina(*short_model.ENDLESS).stdout)["token_ids"]
        for tokens in answers_through_a_kill(self, cluster):
            harness.require_same_answer(self, tokens, alone)

    def test_windows_too_small_are_refused_with_the_numbers(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "cluster.yaml"
            path.write_text(harness.cluster_file(memory_nodes=2, **fetching("1MiB")))
            result = harness.run("--cluster", path, program="lamina-coordinator")
            self.assertEqual(result.returncode, 1)
            self.assertIn("fetch.window: 1.0 MiB", result.stderr)
            self.assertIn("one KV head of 8192 tokens takes 2.0 MiB", result.stderr)
            path.write_text(harness.cluster_file(memory_nodes=2, **fetching("100TiB")))
            result = harness.run("--cluster", path, program="lamina-coordinator")
            self.assertEqual(result.returncode, 1)
            self.assertIn("windows for K and V (fetch.window) would take 100.0 TiB", result.stderr)

    def test_a_budget_bounds_the_memory_of_the_compute_node(self):
        limits = {"sequence_tokens_max": 256}
        with harness.Cluster(**fetching(limits=limits), compute=[{"name": "c0", "memory_budget": "2GiB"}]) as cluster:
            node = cluster.status()["nodes"][0]
            self.assertEqual(sorted(node["memory_bytes"]), ["activations", "kv", "weights", "windows"])
            self.assertEqual(node["memory_bytes"]["weights"], node["weight_bytes"])
            self.assertGreater(node["memory_bytes"]["windows"], 16 << 20)
            self.assertGreater(node["memory_bytes"]["activations"], 0)
            formula = node["memory_formula"]
            self.assertEqual(formula["paper"], "HeadInfer")
            self.assertEqual(formula["weights"], node["weight_bytes"])
            # All 3 KV heads of 256 tokens have room in the windows, which are larger.
            self.assertEqual(formula["heads"], 3)
            self.assertLess(formula["windows"], node["memory_bytes"]["windows"])
            self.assertGreater(formula["activations"], 0)
            printed = cluster.lamina("status").stdout
            self.assertIn("of 2.0 GiB", printed)
            self.assertIn("c0 by the paper's formula (HeadInfer) activations ", printed)
            self.assertIn(" with 3 KV heads a group: ", printed)
        small = [{"name": "c0", "memory_budget": "64MiB"}]
        with harness.Cluster(wait=False, **fetching(limits=limits), compute=small) as cluster:
            cluster.await_true(lambda: cluster.status().get("state", "").startswith("c0 failed: memory_budget 64.0 MiB is less than the"),
                               "the reason")

    def test_sets_of_tokens_count_in_the_budget(self):
        counted = []
        for tokens in (256, 8192):
            keys = {"policy": "fetch_sparse", "fetch": {"window": "32MiB", "caching_ratio": 0.5}, "limits": {"sequence_tokens_max": tokens}}
            with harness.Cluster(**keys) as cluster:
                counted.append(cluster.status()["nodes"][0]["memory_bytes"]["activations"])
        # Of each of 128 rows and 6 layers a bit for each token, at least.
        self.assertGreater(counted[1] - counted[0], 6 * 128 * (8192 - 256) // 8)

    def test_what_is_not_served_is_refused_by_name(self):
        for keys, why in [
            ({"compute": [{"name": "c0"}, {"name": "c1"}]},
             "2 nodes are not served by this version with policy fetch_heads"),
            ({"fetch": {"recompute_percent": 10}}, "and the policy is fetch_heads"),
            ({"compute": [{"name": "c0", "memory_budget": "8MiB"}]}, "compute.0.memory_budget: 8.0 MiB has no room for fetch.window, 16.0 MiB"),
            ({"fetch": {"heads": 0}}, "fetch.heads: 0 KV heads cannot come together"),
            ({"policy": "fetch_recompute", "fetch": {"heads": 1}}, "fetch.heads: says how many KV heads come together"),
            ({**recomputing(30), "compute": [{"name": "c0", "compute_type": "f32"}]}, "compute.0.compute_type: f32 is not served by this version with policy fetch_recompute"),
            ({**hybrid(50), "compute": [{"name": "c0", "compute_type": "f32"}]}, "compute.0.compute_type: f32 is not served by this version with policy fetch_hybrid"),
            (hybrid(101), "fetch.activation_percent: 101 is no number from 0 to 100"),
            ({"fetch": {"activation_percent": 10}}, "how many tokens are held as activations, and the policy is fetch_heads"),
            ({"policy": "fetch_sparse", "fetch": {"sparse": "local"}, "partition": "token_range"},
             "token_range is not served by this version with policy fetch_sparse"),
            (recomputing(101), "fetch.recompute_percent: 101 is no number from 0 to 100"),
            ({"policy": "fetch_recompute", "fetch": {"recompute": "tokens", "resident": "1MiB"}}, "fetch.resident: is for activations, and with fetch.recompute tokens there are none"),
            ({"policy": "attend_remote"}, "fetch: says how K and V are fetched, and the policy is attend_remote"),
        ]:
            with self.subTest(why), tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "cluster.yaml"
                path.write_text(harness.cluster_file(memory_nodes=2, **{**fetching(), **keys}))
                result = harness.run("--cluster", path, "--name", "m0", program="lamina-memory")
                self.assertEqual(result.returncode, 1)
                self.assertIn(why, result.stderr)


if __name__ == "__main__":
    unittest.main()

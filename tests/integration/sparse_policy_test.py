#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policy fetch_sparse: rows attend to a part of the tokens, which the compute node chooses and memory nodes send."""

import json
import math
import tempfile
import unittest
import urllib.request
from pathlib import Path

import harness
import short_model
from policies import CANONICAL, answers, answers_through_a_kill

GOLDENS = Path(__file__).resolve().parents[1] / "fidelity/goldens"
LIMITS = {"sequence_tokens_max": 256}
# Of float64 with the same weights, which here are bf16, as K and V are.
NEAR = 0.005


def sparse(ratio, window="16MiB", tokens="window_sums", resident=None, **keys):
    stays = {"resident": resident} if resident else {}
    return {"policy": "fetch_sparse", "fetch": {"window": window, "caching_ratio": ratio, "sparse": tokens, **stays}, **keys}


class SparsePolicyTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_with_all_tokens_answers_are_those_of_attention_at_memory_nodes(self):
        with harness.Cluster(attention=CANONICAL) as cluster:
            expected = answers(self, cluster)
        # One head of the longest sequence fits into a window, and slots are few.
        small = sparse(1, "1MiB", limits=LIMITS, memory=[{"name": "m0", "capacity": "1500KiB"}])
        with harness.Cluster(**small) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertEqual(status["policy"], "fetch_sparse")
        # Some tokens of each sequence stay on the compute node, and the others come.
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **sparse(1, limits=short_model.LONG, resident="600KiB")) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            self.check_lost_nodes(cluster)

    def check_lost_nodes(self, cluster):
        """Neither what stays nor where it came from is needed for the tokens that follow."""
        alone = json.loads(cluster.lamina(*short_model.ENDLESS).stdout)["token_ids"]
        # Some of the tokens stay.
        for tokens in answers_through_a_kill(self, cluster, tokens=40):
            self.assertEqual(tokens, alone)
        # Requests end with their last compute node; the next one has nothing that stays.
        cluster.kill("c0")
        cluster.start("c0")
        cluster.start("m0")
        cluster.await_state("serving")
        self.assertEqual(json.loads(cluster.lamina(*short_model.ENDLESS).stdout)["token_ids"], alone)

    def test_the_answer_says_that_it_is_lossy_and_fewer_bytes_come(self):
        bytes_of = {}
        for ratio in (1, 0.2):
            # Slots run out, requests are preempted, and all of them end.
            with harness.Cluster(**sparse(ratio, limits=LIMITS, memory=[{"name": "m0", "capacity": "1500KiB"}]),
                                 gateway={"listen": "127.0.0.1:0"}) as cluster:
                self.assertEqual(len(answers(self, cluster)), 4)
                status = cluster.status()
                word = f"fetch_sparse-{ratio}-window_sums"
                self.assertIn(f"({word}); of each of ", status["fetch_choice"])
                self.assertIn("none is recomputed (p2 = n): an activation has 1152 bytes in a layer, K and V 768", status["fetch_choice"])
                self.assertIn(status["fetch_choice"], cluster.lamina("explain").stdout)
                self.assertIn(word, cluster.lamina("status").stdout)
                fingerprint, header = self.marks(cluster)
                self.assertTrue(fingerprint.endswith(f"-{word}"), fingerprint)
                self.assertEqual(header, word)
                nodes = {node["name"]: node for node in status["nodes"]}
                bytes_of[ratio] = nodes["c0"]["kv_bytes_read"]
        self.assertLess(bytes_of[0.2], 0.5 * bytes_of[1])

    def test_with_int8_the_answer_says_both_words_and_half_of_the_bytes_come(self):
        read = {}
        for form in ("bf16", "int8"):
            memory = [{"name": "m0", "capacity": "2500KiB"}]
            with harness.Cluster(**sparse(0.5, kv=form, limits={"sequence_tokens_max": 256, "running_max": 4}, memory=memory),
                                 gateway={"listen": "127.0.0.1:0"}) as cluster:
                self.assertEqual(len(answers(self, cluster)), 4)
                word = "fetch_sparse-0.5-window_sums" + ("-kv_int8" if form == "int8" else "")
                fingerprint, header = self.marks(cluster)
                self.assertTrue(fingerprint.endswith(f"-{word}"), fingerprint)
                self.assertEqual(header, word)
                self.assertIn("fetch_sparse-0.5-window_sums", cluster.lamina("status").stdout)
                text = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"][:250]
                before = self.counted(cluster)
                self.score(cluster, text, 200)
                read[form] = self.counted(cluster) - before
        # Chosen tokens of a row's own block are bf16 in both.
        self.assertLess(read["int8"], 0.85 * read["bf16"])

    def test_with_int8_a_request_chooses_it_of_several(self):
        keys = {"kv": "int8", "policies": ["attend_remote", "fetch_sparse"], "fetch": {"window": "16MiB", "caching_ratio": 1},
                "pipeline": {"lanes": 2}, "limits": {"sequence_tokens_max": 256, "running_max": 4}}
        with harness.Cluster(**keys) as cluster:
            expected = answers(self, cluster, ["attend_remote"])
            self.assertEqual(answers(self, cluster, ["fetch_sparse"]), expected)
            lossy = {policy["name"]: policy["lossy"] for policy in cluster.status()["policies"]}
            self.assertEqual(lossy, {"attend_remote": "kv_int8", "fetch_sparse": "fetch_sparse-1-window_sums-kv_int8"})

    def counted(self, cluster):
        """Bytes of K and V that the compute node has read, of all that has run."""
        node = lambda: next(node for node in cluster.status()["nodes"] if node["name"] == "c0")
        first = node()["reports"]
        cluster.await_true(lambda: node()["reports"] >= first + 2, "reports of what has run")
        return node()["kv_bytes_read"]

    def marks(self, cluster):
        """What an answer of the gateway says of how it came about, in its body and in its head."""
        body = {"model": cluster.status()["model"], "prompt": "The capital of France is", "max_tokens": 1}
        request = urllib.request.Request(f"http://{cluster.gateway}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as answer:
            return json.load(answer)["system_fingerprint"], answer.headers["x-lamina-lossy"]

    def test_a_lost_memory_node_costs_nobody_an_answer(self):
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **sparse(0.5, limits=short_model.LONG)) as cluster:
            for tokens in answers_through_a_kill(self, cluster):
                self.assertEqual(len(tokens), 400)

    def score(self, cluster, tokens, prompt):
        """Log-probabilities of all tokens but the first; those behind the prompt go through decode steps."""
        result = cluster.lamina("score", "--tokens", ",".join(map(str, tokens)), "--decode-from", str(prompt), "--json")
        logprobs = json.loads(result.stdout)["logprobs"]
        self.assertEqual(len(logprobs), len(tokens) - 1)
        return logprobs

    def test_given_tokens_in_decode_steps_have_the_log_probabilities_of_a_prompt(self):
        tokens = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"][:200]
        for keys in ({}, sparse(1, limits=LIMITS)):
            with harness.Cluster(**keys) as cluster:
                whole = cluster.lamina("score", "--tokens", ",".join(map(str, tokens)), "--json")
                self.assertEqual(self.score(cluster, tokens, 64), json.loads(whole.stdout)["logprobs"])
                refused = cluster.lamina("score", "--tokens", "1,2,3", "--decode-from", "3")
                self.assertIn("decode_from is 3 and the text has 3 tokens", refused.stderr)

    def test_heads_over_memory_nodes_choose_the_tokens_of_whole_sequences(self):
        tokens = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"][:250]
        for form in ("bf16", "int8"):
            found = []
            # So do rows of whom some tokens stay on the compute node.
            for partition, resident in (("request", None), ("head", None), ("head", "600KiB")):
                keys = sparse(0.3, resident=resident, kv=form, partition=partition, limits={"sequence_tokens_max": 256, "running_max": 4})
                with harness.Cluster(memory_nodes=2, **keys) as cluster:
                    found.append(self.score(cluster, tokens, 64))
            self.assertEqual(found, [found[0]] * 3, form)

    def test_perplexity_is_that_of_algorithm_1_in_float64(self):
        goldens = json.loads((GOLDENS / "alisa.json").read_text())
        passage = goldens["passages"][0]
        text = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"]
        tokens = text[passage["first"]:passage["first"] + goldens["tokens"]]
        wanted = {(run["pattern"], run["ratio"], run.get("kv", "bf16")): run["perplexity"] for run in passage["runs"]}
        limits = {"sequence_tokens_max": 2048, "running_max": 4}
        for run in (("window_sums", 0.2, "bf16"), ("local", 0.5, "bf16"), ("window_sums", 0.2, "int8")):
            pattern, ratio, form = run
            with self.subTest(pattern=pattern, ratio=ratio, kv=form), \
                    harness.Cluster(model=harness.MODEL, memory_nodes=1, **sparse(ratio, tokens=pattern, kv=form, limits=limits)) as cluster:
                behind = self.score(cluster, tokens, goldens["prompt"])[goldens["prompt"]:]
                found = math.exp(-sum(behind) / len(behind))
                self.assertLess(abs(found / wanted[run] - 1), NEAR, f"{found} for {wanted[run]}")

    def test_what_is_not_served_is_refused_by_name(self):
        for keys, why in [
            ({"compute": [{"name": "c0"}, {"name": "c1"}]},
             "2 nodes are not served by this version with policy fetch_sparse"),
            ({"partition": "token_range"}, "token_range is not served by this version with policy fetch_sparse; set it to request, head or auto"),
            ({"fetch": {"caching_ratio": 0}}, "fetch.caching_ratio: 0 is not in (0, 1]"),
            ({"fetch": {"caching_ratio": 1.5}}, "fetch.caching_ratio: 1.5 is not in (0, 1]"),
            ({"fetch": {"caching_ratio": "half"}}, "fetch.caching_ratio: 'half' is no number like 0.5"),
            ({"fetch": {"sparse": "random"}}, "window_sums, local, strided"),
            ({"fetch": {"recompute_percent": 10}}, "and the policy is fetch_sparse"),
            ({"policy": "fetch_hybrid", "fetch": {"resident": "1MiB", "activation_percent": 0}}, "with activation_percent 0 no token is held as one"),
            ({"policy": "fetch_heads", "fetch": {"caching_ratio": 0.2}}, "fetch.caching_ratio: says to which tokens rows attend"),
            ({"policy": "fetch_heads", "fetch": {"sparse": "local"}}, "fetch.sparse: says to which tokens rows attend"),
            ({"policy": "attend_remote"}, "fetch: says how K and V are fetched, and the policy is attend_remote"),
        ]:
            with self.subTest(why), tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / "cluster.yaml"
                path.write_text(harness.cluster_file(memory_nodes=2, **{**sparse(0.5), **keys}))
                result = harness.run("--cluster", path, "--name", "m0", program="lamina-memory")
                self.assertEqual(result.returncode, 1)
                self.assertIn(why, result.stderr)


if __name__ == "__main__":
    unittest.main()

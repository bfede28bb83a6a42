#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clusters that prepare several policies, of which a request chooses one: by the command, by gRPC's field and by the
gateway's header."""

import json
import re
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import harness
import short_model
from policies import CANONICAL, answers

LIMITS = {"sequence_tokens_max": 256}
GATEWAY = {"listen": "127.0.0.1:0"}
COORDINATOR = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
WORD = "fetch_sparse-0.2-window_sums"
TEXT = " ".join(f"The {word} stood by the river and looked at the hills." for word in ("horse", "old man", "child", "tower", "mill", "cart"))


def several(*policies, **keys):
    return {"policies": list(policies), "limits": LIMITS, **keys}


class PoliciesTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_requests_of_two_policies_run_at_once_with_the_tokens_of_each_alone(self):
        with harness.Cluster(attention=CANONICAL) as cluster:
            expected = answers(self, cluster)
        both = several("attend_remote", "fetch_heads", fetch={"window": "16MiB"})
        # Slots are few: requests are preempted.
        with harness.Cluster(**both, memory=[{"name": "m0", "capacity": "1500KiB"}]) as cluster:
            for policies in (["attend_remote", "fetch_heads"], ["fetch_heads", "attend_remote"]):
                self.assertEqual(answers(self, cluster, policies), expected)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertEqual(status["policy"], "attend_remote")
            nodes = {node["name"]: node for node in status["nodes"]}
            # Both ways of attending were used.
            self.assertGreater(nodes["c0"]["kv_bytes_read"], 0)
            self.assertGreater(nodes["m0"]["kv_bytes_read"], 0)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **{**both, "limits": short_model.LONG}) as cluster:
            self.assertEqual(answers(self, cluster, ["fetch_heads", "attend_remote"]), expected)
            self.check_kill(cluster)

    def test_recomputation_is_of_those_alone_who_ask_for_it(self):
        with harness.Cluster(attention=CANONICAL) as cluster:
            expected = answers(self, cluster)
        three = several("attend_remote", "fetch_recompute", "fetch_heads",
                        fetch={"window": "24MiB", "recompute_percent": 50})
        # Slots are few, and larger by the activations: requests are preempted.
        with harness.Cluster(**three, memory=[{"name": "m0", "capacity": "3500KiB"}]) as cluster:
            self.assertEqual(cluster.status()["policy"], "attend_remote")
            # The second time prompts are found, whoever stored them.
            for policies in (["fetch_recompute", "attend_remote", "fetch_heads"], ["fetch_recompute"], ["attend_remote", "fetch_recompute"]):
                self.assertEqual(answers(self, cluster, policies), expected, policies)
            status = cluster.status()
            self.assertGreater(status["preemptions"], 0)
            self.assertTrue(status["fetch_choice"].startswith("50% of tokens recomputed, as configured; lines fitted"), status["fetch_choice"])
            self.assertIn("fetch_recompute 0 running", cluster.lamina("status").stdout)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], **three, gateway=GATEWAY) as cluster:
            self.assertEqual(answers(self, cluster, ["fetch_heads", "fetch_recompute"]), expected)
            self.assertEqual(self.post(cluster, "fetch_recompute")[0], 200)

    def test_slots_of_fetch_hybrid_are_its_own(self):
        with harness.Cluster(attention=CANONICAL) as cluster:
            expected = answers(self, cluster)
        three = several("attend_remote", "fetch_hybrid", "fetch_heads",
                        fetch={"window": "24MiB", "activation_percent": 50, "hybrid_percent": 60})
        with harness.Cluster(memory_nodes=2, **three, gateway=GATEWAY) as cluster:
            for policies in (["fetch_hybrid", "attend_remote", "fetch_heads"], ["fetch_hybrid"], ["attend_remote", "fetch_hybrid"]):
                self.assertEqual(answers(self, cluster, policies), expected, policies)
            self.assertEqual(self.post(cluster, "fetch_hybrid")[0], 200)
            status = cluster.status()
            self.assertTrue(status["fetch_choice"].startswith("50% of tokens held as activations, as configured"), status["fetch_choice"])
            node = next(node for node in status["nodes"] if node["name"] == "m0")
            forms = {form["policy"]: form for form in node["slot_forms"]}
            self.assertEqual(set(forms), {"others", "fetch_hybrid"})
            for key in ("used", "total", "kept"):
                self.assertEqual(node[f"slots_{key}"], forms["others"][key] + forms["fetch_hybrid"][key])
            text = cluster.lamina("status").stdout
            self.assertRegex(text, r"slots:    m0 others \d+/\d+, fetch_hybrid \d+/\d+; m1 others")
            self.assertIn("60% of the room is for fetch_hybrid", text)

    def check_kill(self, cluster):
        """A lost memory node costs nobody a token, whatever the policy; meanwhile status counts who runs."""
        alone = json.loads(cluster.lamina(*short_model.ENDLESS).stdout)["token_ids"]
        names = ("attend_remote", "fetch_heads")
        running = [cluster.popen(*short_model.ENDLESS, "--policy", name, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for name in names]

        def counts():
            return {policy["name"]: policy["running"] for policy in cluster.status()["policies"]}

        cluster.await_true(lambda: [counts()[name] for name in names] == [1, 1], "a running request of each policy")
        cluster.kill("m0")
        for process in running:
            out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
            self.assertEqual(process.returncode, 0, error)
            self.assertEqual(json.loads(out)["token_ids"], alone)

    def post(self, cluster, policy=None, **keys):
        """The answer of the gateway: its status, its body and its headers."""
        body = {"model": cluster.status()["model"], "prompt": "The capital of France is", "max_tokens": 8,
                "temperature": 0, **keys}
        headers = {"Content-Type": "application/json"}
        if policy is not None:
            headers["x-lamina-policy"] = policy
        request = urllib.request.Request(f"http://{cluster.gateway}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def test_only_the_answers_of_a_lossy_policy_say_that_they_are(self):
        three = several("attend_remote", "fetch_heads", "fetch_sparse", fetch={"window": "16MiB", "caching_ratio": 0.2})
        with harness.Cluster(**three, gateway=GATEWAY, coordinator=COORDINATOR) as cluster:
            for policy, word in ((None, None), ("attend_remote", None), ("fetch_sparse", WORD), ("fetch_heads", None)):
                status, text, headers = self.post(cluster, policy)
                self.assertEqual(status, 200, text)
                self.assertEqual(headers["x-lamina-lossy"], word)
                fingerprint = json.loads(text)["system_fingerprint"]
                self.assertEqual(fingerprint.endswith(f"-{WORD}"), word is not None, fingerprint)
                status, text, headers = self.post(cluster, policy, stream=True)
                self.assertEqual((status, headers["x-lamina-lossy"]), (200, word))
                flags = [] if policy is None else ["--policy", policy]
                answer = json.loads(cluster.lamina("generate", "--prompt", "Once", "--max-tokens", "4", "--json", *flags).stdout)
                self.assertEqual(answer.get("lossy"), word)
            self.assertTrue(self.batch_of(cluster, "fetch_sparse")[0]["system_fingerprint"].endswith(f"-{WORD}"))
            self.assertFalse(self.batch_of(cluster, "fetch_heads")[0]["system_fingerprint"].endswith(WORD))
            scores = [json.loads(cluster.lamina("score", "--prompt", TEXT, "--decode-from", "40", "--policy", policy, "--json").stdout)
                      for policy in ("attend_remote", "fetch_heads", "fetch_sparse")]
            self.assertEqual([score.get("lossy") for score in scores], [None, None, WORD])
            self.assertEqual(scores[0]["logprobs"], scores[1]["logprobs"])
            self.assertNotEqual(scores[0]["logprobs"], scores[2]["logprobs"])
            chosen = json.loads(cluster.lamina("explain", "--json").stdout)[0]
            self.assertEqual(chosen, {"what": "policy", "chosen": "attend_remote", "figures": [
                f"for requests that name none of attend_remote, fetch_heads, fetch_sparse (lossy: {WORD})"]})
            pages = re.findall(r"metrics at (http://\S+/metrics)", cluster.log("coordinator"))
            with urllib.request.urlopen(pages[-1], timeout=harness.COMMAND_SECONDS) as page:
                self.assertIn('lamina_policy_running{policy="fetch_sparse"} 0\n', page.read().decode())
            text = cluster.lamina("status").stdout
            self.assertIn("policies: attend_remote (of requests that name none) 0 running; "
                          f"fetch_heads 0 running; fetch_sparse 0 running, lossy: {WORD}", text)

    def batch_of(self, cluster, policy):
        """Bodies of the answers of a batch of one request."""
        requests, results = cluster.directory / f"{policy}.jsonl", cluster.directory / f"{policy}-results.jsonl"
        body = {"prompt": "Once upon a time", "max_tokens": 4}
        requests.write_text(json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}) + "\n")
        answered = cluster.lamina("batch", "--input", str(requests), "--output", str(results), "--policy", policy)
        self.assertEqual(answered.returncode, 0, answered.stderr)
        return [json.loads(line)["response"]["body"] for line in results.read_text().splitlines()]

    def check_batch(self, cluster):
        """All requests of a batch have its policy; one that is not prepared answers none."""
        requests, results = cluster.directory / "requests.jsonl", cluster.directory / "results.jsonl"
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        requests.write_text("".join(json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": body}) + "\n"
                                    for name in ("a", "b")))
        flags = ["batch", "--input", str(requests), "--output", str(results)]
        refused = cluster.lamina(*flags, "--policy", "fetch_sparse")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("--policy: the cluster prepares attend_remote, fetch_heads, not fetch_sparse", refused.stderr)
        self.assertEqual(results.read_text() if results.exists() else "", "")

        def kv_read():
            return {node["name"]: node["kv_bytes_read"] for node in cluster.status()["nodes"]}

        before = kv_read()
        answered = cluster.lamina(*flags, "--policy", "fetch_heads")
        self.assertEqual(answered.returncode, 0, answered.stderr)
        texts = {json.loads(line)["response"]["body"]["choices"][0]["text"] for line in results.read_text().splitlines()}
        self.assertEqual(len(texts), 1)
        cluster.await_true(lambda: kv_read()["c0"] > before["c0"], "c0 to attend")

    def test_a_policy_that_is_not_prepared_is_refused_and_the_cluster_serves_on(self):
        both = several("attend_remote", "fetch_heads", fetch={"window": "16MiB"})
        words = "policy: 'fetch_sparse' is not one that this cluster prepares, which are attend_remote, fetch_heads"
        with harness.Cluster(**both, gateway=GATEWAY) as cluster:
            for keys in ({}, {"stream": True}):
                status, text, headers = self.post(cluster, "fetch_sparse", **keys)
                self.assertEqual(status, 400)
                self.assertIn(words, json.loads(text)["error"]["message"])
                self.assertIsNone(headers["x-lamina-lossy"])
            result = cluster.lamina("generate", "--prompt", "Once", "--policy", "fetch_sparse")
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)
            result = cluster.lamina("bench", "--requests", "2", "--output-tokens", "4", "--policy", "fetch_sparse", "--json")
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stdout)
            report = json.loads(cluster.lamina("bench", "--requests", "2", "--output-tokens", "4", "--policy",
                                               "fetch_heads", "--json").stdout)
            self.assertEqual((report["failed"], report["load"]["policy"]), (0, "fetch_heads"))
            self.check_batch(cluster)
            self.assertEqual(self.post(cluster, "fetch_heads")[0], 200)
            self.assertEqual(self.post(cluster)[0], 200)

    def test_lists_that_cannot_be_are_refused_at_start(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "cluster.yaml"
            for keys, words in (({"policies": ["attend_remote", "local"]}, "policies: local cannot be one of several"),
                                ({"policies": ["fetch_recompute", "fetch_hybrid"]}, "fetch_recompute and fetch_hybrid are not served"),
                                ({"policies": ["attend_remote", "fetch_sparse"], "partition": "token_range"},
                                 "policies has fetch_sparse")):
                path.write_text(harness.cluster_file(**keys))
                result = harness.run("--cluster", path, program="lamina-coordinator")
                self.assertEqual(result.returncode, 1)
                self.assertIn(words, result.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clusters that keep K and V in two forms, of which a request chooses one: by the command, by gRPC's field and by the
gateway's header."""

import json
import re
import unittest
import urllib.error
import urllib.request

import harness
from policies import CANONICAL, answers

# Open blocks are reserved for all that may run.
LIMITS = {"sequence_tokens_max": 256, "running_max": 8}
BOTH = {"kv": ["bf16", "int8"], "pipeline": {"lanes": 2}, "limits": LIMITS}
GATEWAY = {"listen": "127.0.0.1:0"}
COORDINATOR = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
LONG = " ".join(f"Item {i} of the list." for i in range(20))


class KvFormsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_requests_of_both_forms_run_at_once_with_the_tokens_of_each_alone(self):
        alone = {}
        for form in ("bf16", "int8"):
            with harness.Cluster(attention=CANONICAL, kv=form, limits=LIMITS) as cluster:
                alone[form] = answers(self, cluster)
        self.assertNotEqual(alone["bf16"], alone["int8"])
        # Slots are few: requests are preempted.
        with harness.Cluster(**BOTH, memory=[{"name": "m0", "capacity": "5MiB"}]) as cluster:
            for forms in (["bf16", "int8"], ["int8", "bf16"], ["int8"], ["bf16"]):
                expected = [alone[forms[i % len(forms)]][i] for i in range(len(alone["bf16"]))]
                self.assertEqual(answers(self, cluster, forms, flag="--kv"), expected, forms)
            self.assertGreater(cluster.status()["preemptions"], 0)
        with harness.Cluster(memory_nodes=2, transport=["ucx"], partition="head", **BOTH) as cluster:
            expected = [alone[("bf16", "int8")[i % 2]][i] for i in range(len(alone["bf16"]))]
            self.assertEqual(answers(self, cluster, ["bf16", "int8"], flag="--kv"), expected)
            self.assertEqual(answers(self, cluster), alone["bf16"])  # Who names none.

    def test_policies_that_fetch_activations_fetch_int8_and_say_why(self):
        with harness.Cluster(attention=CANONICAL, kv="int8", limits=LIMITS) as cluster:
            expected = answers(self, cluster)
        for policy in ("fetch_recompute", "fetch_hybrid"):
            with harness.Cluster(kv="int8", policy=policy, fetch={"window": "16MiB"}, limits=LIMITS) as cluster:
                self.assertEqual(answers(self, cluster), expected)
                self.assertEqual(cluster.status()["policy"], policy)
                words = "no activations with kv int8: one has 1152 bytes in a layer, K and V 408"
                self.assertIn(words, cluster.lamina("status").stdout)
                self.assertIn(words, cluster.lamina("explain").stdout)

    def post(self, cluster, kv=None, **keys):
        """The answer of the gateway: its status, its body and its headers."""
        body = {"model": cluster.status()["model"], "prompt": LONG, "max_tokens": 8, "temperature": 0, **keys}
        headers = {"Content-Type": "application/json"}
        if kv is not None:
            headers["x-lamina-kv"] = kv
        request = urllib.request.Request(f"http://{cluster.gateway}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def test_only_answers_of_int8_say_that_they_are_lossy(self):
        with harness.Cluster(**BOTH, gateway=GATEWAY, coordinator=COORDINATOR) as cluster:
            for kv, word in ((None, None), ("bf16", None), ("int8", "kv_int8")):
                for stream in (False, True):
                    status, text, headers = self.post(cluster, kv, stream=stream)
                    self.assertEqual((status, headers["x-lamina-lossy"]), (200, word), text)
                    self.assertEqual("-kv_int8" in text, word is not None, text)
                flags = [] if kv is None else ["--kv", kv]
                answer = json.loads(cluster.lamina("generate", "--prompt", LONG, "--max-tokens", "4", "--json", *flags).stdout)
                self.assertEqual(answer.get("lossy"), word)
            scores = [json.loads(cluster.lamina("score", "--prompt", LONG, "--json", *flags).stdout)["logprobs"]
                      for flags in ([], ["--kv", "bf16"], ["--kv", "int8"])]
            self.assertEqual(scores[0], scores[1])
            self.assertNotEqual(scores[0], scores[2])
            report = json.loads(cluster.lamina("bench", "--requests", "2", "--output-tokens", "4", "--kv", "int8", "--json").stdout)
            self.assertEqual((report["failed"], report["load"]["kv"]), (0, "int8"))
            self.check_status(cluster)

    def check_status(self, cluster):
        """Slots by form, in `status`, its text and the metrics."""
        status = cluster.status()
        self.assertEqual([(policy["name"], policy["kv"], policy["lossy"]) for policy in status["policies"]],
                         [("attend_remote", "bf16", ""), ("attend_remote", "int8", "kv_int8")])
        nodes = {node["name"]: node for node in status["nodes"]}
        self.assertEqual(nodes["c0"]["slot_forms"], [])
        forms = {form["kv"]: form for form in nodes["m0"]["slot_forms"]}
        self.assertEqual(set(forms), {"bf16", "int8"})
        # Half of the bytes each: heads of 64 take 256 bytes and 136.
        self.assertAlmostEqual(forms["int8"]["total"] / forms["bf16"]["total"], 256 / 136, places=2)
        for key in ("used", "total", "kept"):
            self.assertEqual(nodes["m0"][f"slots_{key}"], forms["bf16"][key] + forms["int8"][key])
        text = cluster.lamina("status").stdout
        self.assertIn("policies: attend_remote with kv bf16 (of requests that name none) 0 running; "
                      "attend_remote with kv int8 0 running, lossy: kv_int8", text)
        self.assertRegex(text, r"slots:    m0 bf16 \d+/\d+, int8 \d+/\d+; m1 bf16")
        pages = re.findall(r"metrics at (http://\S+/metrics)", cluster.log("coordinator"))
        with urllib.request.urlopen(pages[-1], timeout=harness.COMMAND_SECONDS) as page:
            metrics = page.read().decode()
        self.assertIn('lamina_policy_running{policy="attend_remote",kv="int8"} 0\n', metrics)
        self.assertIn(f'lamina_node_form_slots{{node="m0",kv="int8"}} {forms["int8"]["total"]}\n', metrics)

    def test_a_form_that_is_not_prepared_is_refused_and_the_cluster_serves_on(self):
        words = "kv: 'int8' is not a form that this cluster prepares for policy attend_remote, which are bf16"
        with harness.Cluster(limits=LIMITS, gateway=GATEWAY) as cluster:
            for keys in ({}, {"stream": True}):
                status, text, headers = self.post(cluster, "int8", **keys)
                self.assertEqual(status, 400)
                self.assertIn(words, json.loads(text)["error"]["message"])
                self.assertIsNone(headers["x-lamina-lossy"])
            for command in ("generate", "score"):
                result = cluster.lamina(command, "--prompt", "Once", "--kv", "int8")
                self.assertEqual(result.returncode, 1)
                self.assertIn(words, result.stderr)
            self.assertEqual(self.post(cluster, "bf16")[0], 200)
            self.assertEqual(self.post(cluster)[0], 200)

    def test_lists_that_cannot_be_are_refused_at_start(self):
        for keys, words in (({"policy": "fetch_heads"}, "kv: a list of forms is not served by this version with policy fetch_heads"),
                            ({"partition": "token_range"}, "kv: a list of forms is not served by this version with partition token_range"),
                            ({"kv_int8_percent": 100}, "kv_int8_percent: 100 leaves one of the forms of kv no room")):
            path = self.write({**BOTH, **keys})
            result = harness.run("--cluster", path, program="lamina-coordinator")
            self.assertEqual(result.returncode, 1)
            self.assertIn(words, result.stderr)

    def write(self, keys):
        directory = harness.tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        path = harness.Path(directory.name) / "cluster.yaml"
        path.write_text(harness.cluster_file(**keys))
        return path


if __name__ == "__main__":
    unittest.main()

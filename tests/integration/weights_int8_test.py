#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`weights: int8`: a model of its own, which says so wherever it answers, and is the same in any arrangement."""

import json
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path
from unittest import mock

import harness
from policies import answers

sys.path.insert(0, str(harness.REPO / "bench"))
import small_vocabulary  # noqa: E402

VOCABULARY = 320
LAYERS = 4
WORD = "weights_int8"


def nodes(form, *others):
    """Compute nodes with weights in this form; `others`: keys of each one, else there is one."""
    return [{"name": f"c{i}", "weights": form, **keys} for i, keys in enumerate(others or ({},))]


def compute_nodes(status):
    return [node for node in status["nodes"] if node["role"] == "compute"]


class WeightsInt8Test(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="lamina-test-")
        cls.model = Path(cls.folder.name) / "model"
        with mock.patch.object(small_vocabulary, "LAYERS", LAYERS):
            small_vocabulary.write(cls.model, VOCABULARY)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def cluster(self, compute, **keys):
        return harness.Cluster(model=self.model, compute=compute, **keys)

    def test_answers_are_those_of_another_model_in_any_arrangement(self):
        with self.cluster(nodes("bf16")) as cluster:
            bf16 = answers(self, cluster)
            whole = compute_nodes(cluster.status())[0]["weight_bytes"]
        with self.cluster(nodes("int8")) as cluster:
            int8 = answers(self, cluster)
            self.assertNotEqual(int8, bf16)
            node = compute_nodes(cluster.status())[0]
            if "onednn" in node["kernels"]:
                self.skipTest("oneDNN multiplies here, and the values are held as bf16")
            self.assertRegex(node["kernels"], r", weights bf16 \d+\.\d KiB, int8 \d+\.\d MiB$")
            self.assertLess(node["weight_bytes"], 0.55 * whole)
        budget = node["weight_bytes"] * 85 // 100 // 1024
        with self.cluster(nodes("int8", {"weights_budget": f"{budget}KiB"})) as cluster:
            self.assertEqual(answers(self, cluster), int8)
            self.assertRegex(cluster.log("c0"), r"of 5 slices come from .* all are bf16 \d+\.\d KiB, int8 \d+\.\d MiB")
        stages = [{"replica": "r", "stage": stage, "threads": 1 + stage} for stage in range(2)]
        with self.cluster(nodes("int8", *stages)) as cluster:
            self.assertEqual(answers(self, cluster), int8)
        with self.cluster(nodes("int8", {}, {"role": "prefill"}), prefill={"mode": "dedicated", "chunk_tokens": 32}) as cluster:
            self.assertEqual(answers(self, cluster), int8)
        shards = [{"replica": "r", "shard": shard} for shard in range(2)]
        with self.cluster(nodes("int8", *shards)) as cluster:
            answers(self, cluster)
            for node in compute_nodes(cluster.status()):
                self.assertLess(node["weight_bytes"], 0.55 * whole)

    def test_answers_say_what_they_are(self):
        with self.cluster(nodes("int8"), kv="int8", gateway={"listen": "127.0.0.1:0"}) as cluster:
            self.check_words(cluster, f"kv_int8-{WORD}")
        with self.cluster(nodes("int8"), gateway={"listen": "127.0.0.1:0"}) as cluster:
            self.check_words(cluster, WORD)

    def check_words(self, cluster, words):
        body = {"model": cluster.status()["model"], "prompt": "Once", "max_tokens": 4}
        request = urllib.request.Request(f"http://{cluster.gateway}/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as answer:
            self.assertEqual(answer.headers["x-lamina-lossy"], words)
            self.assertTrue(json.loads(answer.read())["system_fingerprint"].endswith(f"-{words}"))
        answer = json.loads(cluster.lamina("generate", "--prompt", "Once", "--max-tokens", "4", "--json").stdout)
        self.assertEqual(answer["lossy"], words)
        self.assertIn(f"running, lossy: {words}", cluster.lamina("status").stdout)
        self.assertIn(f"lossy: {words}", cluster.lamina("explain").stdout)

    def test_a_node_that_holds_the_file_as_it_is_is_refused(self):
        with self.cluster(nodes("int8")) as cluster:
            other = Path(self.folder.name) / "other.yaml"
            other.write_text(cluster.file.read_text().replace('"int8"', '"bf16"'))
            result = harness.run("--cluster", other, "--name", "c0", "--coordinator", cluster.server, program="lamina-compute", timeout=60)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("weights: int8 makes another model of it", result.stderr)

    def test_a_file_that_is_quantised_already_is_refused(self):
        harness.require_model(self)
        path = Path(self.folder.name) / "cluster.yaml"
        path.write_text(harness.cluster_file(compute=nodes("int8")))
        result = harness.run("--cluster", path, "--name", "c0", "--set", "coordinator.listen=127.0.0.1:1", program="lamina-compute")
        self.assertEqual(result.returncode, 1)
        self.assertIn("quantised already: Q4_1, Q8_0; say auto", result.stderr)


if __name__ == "__main__":
    unittest.main()

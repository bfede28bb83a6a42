#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policy fetch_heads with heads that stream: a file names KV heads whose rows attend to the first and the last tokens alone."""

import json
import math
import tempfile
import unittest
import urllib.request
from pathlib import Path

import harness
import short_model
from policies import TOKENS, answers

GOLDENS = Path(__file__).resolve().parents[1] / "fidelity/goldens"
HEADS = GOLDENS / "streaming_heads.json"  # Half of them.
LIMITS = {"sequence_tokens_max": 256}
MODEL = {"layers": 30, "kv_heads": 3, "head_dim": 64}
SHORT = {**MODEL, "layers": short_model.LAYERS}
# Of float64 with the same weights, which here are bf16, as K and V are.
NEAR = 0.005


def streaming(heads, sink=16, window=128, bytes_of_windows="16MiB", **keys):
    return {"policy": "fetch_heads", **keys,
            "fetch": {"window": bytes_of_windows, "streaming_heads": str(heads), "streaming_sink": sink, "streaming_window": window}}


def file_of(heads, model=None):
    return json.dumps({"format": 1, "model": model or MODEL, "streaming": heads})


class StreamingHeadsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def write(self, text, name="heads.json"):
        path = self.folder / name
        path.write_text(text)
        return path

    def heads(self, of_layer, model=None):
        """A file of these heads of each layer."""
        model = model or SHORT
        return self.write(file_of([{"layer": layer, "heads": of_layer(layer)} for layer in range(model["layers"])], model))

    def all_heads(self, model=None):
        return self.heads(lambda layer: [0, 1, 2], model)

    def some_heads(self):
        return self.heads(lambda layer: [layer % 3] if layer % 2 else [0, 2])

    def test_answers_are_the_same_however_they_are_run(self):
        with harness.Cluster(**streaming(self.some_heads(), window=32, limits=LIMITS)) as cluster:
            expected = answers(self, cluster)
        # One head of the longest sequence fits into a window, and slots are few.
        with harness.Cluster(**streaming(self.some_heads(), window=32, bytes_of_windows="1MiB", limits=LIMITS,
                                             memory=[{"name": "m0", "capacity": "1500KiB"}])) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            self.assertGreater(cluster.status()["preemptions"], 0)
        # Prompts' ends are rows.
        with harness.Cluster(memory_nodes=2, partition="head", transport=["ucx"],
                                 **streaming(self.some_heads(), window=32, limits=LIMITS, prefill={"chunk_tokens": 16, "scratch_tokens": 32})) as cluster:
            self.assertEqual(answers(self, cluster), expected)

    def test_a_file_without_heads_loses_nothing(self):
        with harness.Cluster(policy="fetch_heads", limits=LIMITS) as cluster:
            expected = answers(self, cluster)
        with harness.Cluster(**streaming(self.write(file_of([], SHORT)), limits=LIMITS)) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            self.assertNotIn("lossy", cluster.lamina("status").stdout)

    def test_the_answer_says_that_it_is_lossy_and_fewer_bytes_come(self):
        # Of four answers with so many tokens each, to all tokens before them, in every layer and head.
        whole = 4 * (TOKENS * (TOKENS - 1) // 2) * 3 * short_model.LAYERS * 4 * 64
        for window in (256, 1):
            with harness.Cluster(**streaming(self.all_heads(), sink=0, window=window, limits=LIMITS), gateway={"listen": "127.0.0.1:0"}) as cluster:
                answers(self, cluster)
                status = cluster.status()
                word = f"fetch_heads-{3 * short_model.LAYERS}_heads-sink_0-window_{window}-"
                self.assertIn(f"({word}", status["fetch_choice"])
                self.assertIn(word, cluster.lamina("status").stdout)
                self.assertIn(word, cluster.lamina("explain").stdout)
                fingerprint, header = self.marks(cluster)
                self.assertTrue(header.startswith(word), header)
                self.assertTrue(fingerprint.endswith(f"-{header}"), fingerprint)
                if window == 256:  # Which leaves nothing out.
                    cluster.await_true(lambda: self.bytes_read(cluster) > whole, "bytes of all tokens")
                else:
                    cluster.await_true(lambda: self.bytes_read(cluster) > 0.1 * whole, "counters")
                    self.assertLess(self.bytes_read(cluster), 0.7 * whole)

    def bytes_read(self, cluster):
        return next(node["kv_bytes_read"] for node in cluster.status()["nodes"] if node["name"] == "c0")

    def marks(self, cluster):
        """What an answer of the gateway says of how it came about, in its body and in its head."""
        body = {"model": cluster.status()["model"], "prompt": "The capital of France is", "max_tokens": 1}
        request = urllib.request.Request(f"http://{cluster.gateway}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as answer:
            return json.load(answer)["system_fingerprint"], answer.headers["x-lamina-lossy"]

    def test_perplexity_is_that_of_the_mask_in_float64(self):
        goldens = json.loads((GOLDENS / "streaming.json").read_text())
        text = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"]
        tokens = text[goldens["first"]:goldens["first"] + goldens["tokens"]]
        limits = {"sequence_tokens_max": 2048}
        for which, heads, runs in (("half", HEADS, ([], ["--decode-from", "300"])), ("all", self.all_heads(MODEL), ([],))):
            with harness.Cluster(model=harness.MODEL, memory_nodes=1, **streaming(heads, goldens["sink"], goldens["window"], limits=limits)) as cluster:
                for words in runs:
                    with self.subTest(which, words=words):
                        result = cluster.lamina("score", "--tokens", ",".join(map(str, tokens)), "--json", *words)
                        found, wanted = json.loads(result.stdout)["logprobs"], goldens["perplexity"][which]
                        found = math.exp(-sum(found) / len(found))
                        self.assertLess(abs(found / wanted - 1), NEAR, f"{found} for {wanted}")

    def test_a_file_that_is_not_this_models_is_refused_at_start(self):
        for text, why in [
            ("", "has 0 bytes"),
            ("heads", "no JSON object"),
            (file_of([], {**MODEL, "layers": 12}), "is one of 12 layers with 3 KV heads of 64, and this cluster's has 30"),
            (file_of([], {**MODEL, "name": "Another"}), "'Another' is another model than this cluster's"),
            (file_of([{"layer": 30, "heads": [0]}]), "streaming.0.layer: 30 is not in [0, 29]"),
            (file_of([{"layer": 2, "heads": [3]}]), "3 is no KV head of layer 2, which are 0 to 2"),
            (file_of([{"layer": 2, "heads": [1]}, {"layer": 2, "heads": [0]}]), "streaming.1.layer: 2 comes twice"),
        ]:
            with self.subTest(why):
                self.assertIn(why, self.refusal(**streaming(self.write(text))))
        self.assertIn("No such file", self.refusal(**streaming(self.folder / "none.json")))

    def refusal(self, **keys):
        path = self.write(harness.cluster_file(model=harness.MODEL, **keys), "cluster.yaml")
        result = harness.run("--cluster", path, "--name", "coordinator", program="lamina-coordinator")
        self.assertEqual(result.returncode, 1)
        return result.stderr


if __name__ == "__main__":
    unittest.main()

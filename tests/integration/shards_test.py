#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The real model over shards of real daemons: transformers' logits, the same bits however it runs, and what a lost
shard takes with it. Small models, all architectures and more combinations: local_cluster_shards_test.cc."""

import json
import subprocess
import unittest
from pathlib import Path

import harness

GOLDENS = Path(__file__).resolve().parents[1] / "fidelity/goldens/smollm2.json"
# Of one node (smollm2_fidelity_test.py): the order of a sum is no more than its factors' rounding.
LOGIT_TOLERANCE = 0.4
LIKELY = 20
SOON_SECONDS = 60


def shards(count):
    return [{"name": f"c{i}", "replica": "r0", "shard": i, "weights": "bf16"} for i in range(count)]


class ShardsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls())
        cls.goldens = json.loads(GOLDENS.read_text())
        cls.cluster = harness.Cluster(model=harness.MODEL, compute=shards(2))
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def runTest(self):
        pass  # Lets setUpClass make an instance to skip or fail with.

    def tokens(self, cluster, prompt="The capital of France is", count=24):
        result = cluster.lamina("generate", "--prompt", prompt, "--max-tokens", count, "--temperature", "0",
                                "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["token_ids"]

    def check_logits(self, cluster, prompts):
        for prompt in self.goldens["prompts"][:prompts]:
            golden = dict(map(tuple, prompt["top"]))
            best = prompt["top"][0][0]
            result = cluster.lamina("generate", "--tokens", ",".join(map(str, prompt["tokens"])), "--max-tokens", 1,
                                    "--temperature", "0", "--ignore-eos", "--logprobs", LIKELY, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            found = {t["token"]: t["logprob"] for t in json.loads(result.stdout)["logprobs"][0]["top"]}
            self.assertIn(best, found, prompt["text"])
            for token in found.keys() & golden.keys():
                difference = abs((found[token] - found[best]) - (golden[token] - golden[best]))
                self.assertLess(difference, LOGIT_TOLERANCE, f"{prompt['text']!r} token {token}")

    def test_logits_of_the_likely_tokens_are_those_of_transformers(self):
        self.check_logits(self.cluster, 5)

    def test_status_says_who_holds_what(self):
        self.tokens(self.cluster)
        status = self.cluster.status()
        # Three KV heads: c1 has one, and more of the MLP.
        self.assertEqual(status["stages"], "r0: c0 0-29, c1 0-29, all layers; shards of 3 KV heads and 1536 MLP "
                         "columns c0 2 and 704, c1 1 and 832, by cost")
        first, second = status["nodes"][:2]
        self.assertEqual(second["layers"], "0-29, KV heads 2-2, MLP columns 704-1535")
        table = 49152 * 576 * 2
        layers = (134515008 - 49152 * 576) * 2  # All but the embedding, as bf16.
        # Half of the layers each, and the table to look up, which is c0's LM head too.
        self.assertAlmostEqual(first["weight_bytes"] - table, layers / 2, delta=0.03 * layers)
        self.assertAlmostEqual(second["weight_bytes"] - table, layers / 2, delta=0.03 * layers)
        split = json.loads(harness.run("split", harness.MODEL, "--shards", 2, "--json").stdout)["shards"]
        self.assertEqual([shard["kv_heads"] for shard in split], [2, 1])
        self.assertEqual(split[0]["put_bytes_per_token"], 2 * 30 * 576 * 4)

    def test_the_timeline_shows_reductions(self):
        request = self.cluster.popen("generate", "--prompt", "One two three", "--max-tokens", "8000", "--ignore-eos",
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.cluster.await_true(lambda: self.cluster.status()["lanes"][0]["step"] > 2, "steps")
            path = self.cluster.directory / "trace.json"
            for seconds in ("0.3", "2", "8"):  # On a busy machine a step takes long.
                result = self.cluster.lamina("trace", "--seconds", seconds, "--output", path)
                self.assertEqual(result.returncode, 0, result.stderr)
                events = json.loads(path.read_text())["traceEvents"]
                pids = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
                nodes = {e["pid"] for e in events if e["ph"] == "X" and "reduce" in (e["name"], e.get("cat", ""))}
                if {pids["c0 (compute)"], pids["c1 (compute)"]} <= nodes:
                    break
            else:
                self.fail(f"no reductions among {sorted({e['name'] for e in events if e['ph'] == 'X'})[:30]}")
        finally:
            request.kill()
            request.wait()

    def test_lanes_partitions_and_batches_change_nothing(self):
        alone = self.tokens(self.cluster)
        others = [self.cluster.popen("generate", "--prompt", f"Once upon a time, {i}", "--max-tokens", "80",
                                     "--ignore-eos", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                  for i in range(3)]
        self.assertEqual(self.tokens(self.cluster), alone)
        for other in others:
            self.assertEqual(other.wait(harness.COMMAND_SECONDS), 0)
        with harness.Cluster(model=harness.MODEL, compute=shards(2), partition="head", memory_nodes=3, capacity="512MiB",
                             pipeline={"mode": "sequential"}, prefill={"chunk_tokens": 16}) as cluster:
            self.assertEqual(self.tokens(cluster), alone)

    def test_a_killed_shard_ends_requests_at_once_and_is_taken_up_again(self):
        first = self.tokens(self.cluster)
        request = self.cluster.popen("generate", "--prompt", "Once upon a time", "--max-tokens", "8000", "--ignore-eos",
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.cluster.await_true(lambda: self.cluster.status()["running"] == 1, "the request")
        self.cluster.kill("c1")
        _, error = request.communicate(timeout=SOON_SECONDS)
        self.assertEqual(request.returncode, 1)
        self.assertIn("node c1 is gone", error)
        self.cluster.await_true(lambda: "waiting for c1" in self.cluster.status()["state"], "the loss of c1")
        self.cluster.start("c1")
        self.cluster.await_state("serving")
        self.assertEqual(self.tokens(self.cluster), first)

    def test_three_shards(self):
        with harness.Cluster(model=harness.MODEL, compute=shards(3)) as cluster:
            self.check_logits(cluster, 2)
            self.assertIn("c0 1 and 512, c1 1 and 512, c2 1 and 512", cluster.status()["stages"])

    def test_more_shards_than_heads_are_refused_before_serving(self):
        with self.assertRaises(harness.ClusterError) as refused:
            harness.Cluster(model=harness.MODEL, compute=shards(4)).__enter__()
        self.assertIn("this model has 3 KV heads and 1536 columns: take fewer shards, or stages", str(refused.exception))


if __name__ == "__main__":
    unittest.main()

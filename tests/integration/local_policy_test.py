#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policy local: compute nodes that hold KV and attend themselves, without memory nodes."""

import json
import subprocess
import unittest

import harness
from policies import PROMPTS, TOKENS, answers

ENDLESS = ["generate", "--prompt", "Once upon a time", "--max-tokens", "240", "--ignore-eos"]
SOON_SECONDS = 60  # For what happens at once on a machine that may be busy.


def local(capacity, **keys):
    return {"policy": "local", "memory": [], "compute": [{"name": "c0", "threads": 2, "capacity": capacity}], **keys}


def pool(*nodes, **keys):
    compute = [{"name": f"c{i}", "threads": 1, "capacity": "200MiB", "weights": "bf16", **node}
               for i, node in enumerate(nodes)]
    return {"policy": "local", "memory": [], "compute": compute, **keys}


SHARDS = [{"replica": "r0", "shard": 0}, {"replica": "r0", "shard": 1}]
STAGES = [{"replica": "r0", "stage": 0}, {"replica": "r0", "stage": 1}]


class LocalPolicyTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def short(self, cluster):
        result = cluster.lamina("generate", "--prompt", PROMPTS[0], "--max-tokens", "8", "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["token_ids"]

    def test_tokens_are_those_of_two_pools_under_preemption_and_after_a_kill(self):
        with harness.Cluster() as cluster:
            expected = answers(self, cluster)
        # Room for one sequence of the limit and a little.
        with harness.Cluster(**local("1500KiB", limits={"sequence_tokens_max": 256})) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            self.assertGreater(cluster.status()["preemptions"], 0)
            self.check_bench(cluster)
            self.check_status(cluster)
            self.check_kill(cluster, expected[0][0][:8])

    def check_status(self, cluster):
        status = cluster.status()
        self.assertEqual(status["links"], [])
        self.assertEqual(status["chunk_choice"], "")
        self.assertEqual(status["lane_choice"], "1, for no attention is away that another lane would hide")
        self.assertIn("K and V stay on c0", status["partition"])
        (node,) = status["nodes"]
        self.assertEqual((node["name"], node["role"], node["bytes_sent"]), ("c0", "compute", 0))
        self.assertGreater(node["slots_total"], 256)
        self.assertGreater(node["kv_bytes_read"], 0)
        self.assertGreater(node["bandwidth_bytes_per_second"], 0)
        self.assertGreater(node["part_seconds"]["attend"], 0)

    def check_bench(self, cluster):
        result = cluster.lamina("bench", "--json", "--concurrency", "2", "--requests", "2", "--input-tokens", "32",
                                "--output-tokens", "64")
        self.assertEqual(result.returncode, 0, result.stderr)
        (node,) = json.loads(result.stdout)["nodes"]
        self.assertGreater(node["part_shares"]["attend"], 0)
        self.assertGreater(node["part_shares"]["dense"], 0)

    def check_kill(self, cluster, expected):
        running = [cluster.popen(*ENDLESS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
        cluster.await_true(lambda: cluster.status()["running"] > 0, "running requests")
        cluster.kill("c0")
        for process in running:
            error = process.communicate(timeout=SOON_SECONDS)[1]
            if process.returncode != 0:  # It may have been faster.
                self.assertEqual(process.returncode, 1)
                self.assertIn("c0", error)
        refused = cluster.lamina("generate", "--prompt", "Hello", "--max-tokens", "1")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("waiting for c0", refused.stderr)
        cluster.start("c0")
        cluster.await_state("serving")
        self.assertEqual(self.short(cluster), expected)

    def test_replicas_answer_alike_and_outlive_each_other(self):
        with harness.Cluster(compute=[{"name": "c0", "threads": 1, "weights": "bf16"}]) as cluster:
            expected = answers(self, cluster)
        with harness.Cluster(**pool({}, {})) as cluster:
            self.assertEqual(answers(self, cluster), expected)
            status = cluster.status()
            self.assertEqual(status["lane_choice"],
                             "2, one for each replica, for no attention is away that another lane would hide")
            self.assertIn("K and V stay on c0, c1", status["partition"])
            self.assertEqual(status["links"], [])  # Replicas have nothing to say to each other.
            for node in status["nodes"]:
                self.assertGreater(node["kv_bytes_read"], 0, node["name"])
            running = [cluster.popen("generate", "--prompt", "The capital of France is", "--max-tokens", "300",
                                     "--ignore-eos", "--temperature", "0", "--json", stdout=subprocess.PIPE)
                       for _ in range(4)]
            cluster.await_true(lambda: all(lane["rows"] > 0 for lane in cluster.status()["lanes"]), "rows on both")
            cluster.kill("c1")
            for process in running:
                out = process.communicate(timeout=SOON_SECONDS)[0]
                self.assertEqual(process.returncode, 0)
                self.assertEqual(json.loads(out)["token_ids"][:TOKENS], expected[0][0])
            cluster.start("c1")
            cluster.await_state("serving")
            self.assertEqual(answers(self, cluster), expected)

    def test_stages_and_shards_of_one_pool_have_the_bits_of_those_with_memory_nodes(self):
        for parts in (STAGES, SHARDS):
            with self.subTest(parts=parts):
                compute = [{"name": f"c{i}", "threads": 1, "weights": "bf16", **part} for i, part in enumerate(parts)]
                with harness.Cluster(compute=compute) as cluster:
                    expected = answers(self, cluster)
                with harness.Cluster(**pool(*parts)) as cluster:
                    self.assertEqual(answers(self, cluster), expected)
                    first, second = cluster.status()["nodes"]
                    self.assertEqual(first["slots_total"], second["slots_total"])
                    self.assertGreater(second["kv_bytes_read"], 0)

    def test_a_node_too_small_for_one_request_says_how_much_it_needs(self):
        with harness.Cluster(model=harness.MODEL, wait=False, **local("1MiB")) as cluster:
            self.assertEqual(cluster.processes["c0"].wait(harness.START_SECONDS), 1)
            self.assertIn("compute node c0 has 1.0 MiB: room for 45 tokens", cluster.log("c0"))

    def test_a_node_of_another_policy_than_the_coordinator_is_refused(self):
        with harness.Cluster(wait=False, **local("256MiB")) as cluster:
            for name in cluster.processes:
                if name != "coordinator":
                    cluster.kill(name)
            other = cluster.directory / "other.yaml"
            other.write_text(harness.cluster_file(memory_nodes=1))
            result = harness.run("--cluster", other, "--name", "c0", "--coordinator", cluster.server,
                                 program="lamina-compute")
            self.assertEqual(result.returncode, 1)
            self.assertIn("compute node c0 has no capacity for KV", result.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Policy local: one compute node that holds KV and attends itself, without memory nodes."""

import json
import subprocess
import unittest

import harness
from policies import PROMPTS, answers

ENDLESS = ["generate", "--prompt", "Once upon a time", "--max-tokens", "240", "--ignore-eos"]
SOON_SECONDS = 60  # For what happens at once on a machine that may be busy.


def local(capacity, **keys):
    return {"policy": "local", "memory": [], "compute": [{"name": "c0", "threads": 2, "capacity": capacity}], **keys}


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
        with harness.Cluster(**local("7MiB", limits={"sequence_tokens_max": 256})) as cluster:
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

    def test_a_node_too_small_for_one_request_says_how_much_it_needs(self):
        with harness.Cluster(wait=False, **local("1MiB")) as cluster:
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

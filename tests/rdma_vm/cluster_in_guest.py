#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose data goes by RDMA WRITE gives the tokens of one over shared memory.

Runs in the guest of this folder, which has an RDMA device; see guest_cluster.sh.
"""

import os
import unittest

from harness import Cluster, json_lines

MODEL = os.environ["RDMA_VM_MODEL"]
PROMPTS = ["1,2,3", ",".join(str(3 + i % 200) for i in range(90))]


def tokens(cluster):
    """What each prompt gives."""
    answers = []
    for prompt in PROMPTS:
        result = cluster.lamina("generate", "--tokens", prompt, "--max-tokens", "12", "--temperature", "0",
                                "--ignore-eos", "--n", "2", "--json")
        if result.returncode != 0:
            raise AssertionError(result.stderr + cluster.logs())
        lines = sorted(json_lines(result.stdout), key=lambda line: line["index"])
        answers.append([line["token_ids"] for line in lines])
    return answers


def cluster_over(transport):
    return Cluster(model=MODEL, memory_nodes=2, capacity="16MiB", transport=transport,
                   prefill={"chunk_tokens": 32}, token="the-secret-of-the-guest")


class VerbsClusterTest(unittest.TestCase):
    """One test: each cluster takes half a minute to start on emulated processors."""

    def test_same_tokens_as_over_shared_memory_and_after_a_node_was_killed(self):
        with cluster_over("shm") as cluster:
            wanted = tokens(cluster)

        with cluster_over(["verbs", "ucx"]) as cluster:
            got = tokens(cluster)
            before = cluster.status()
            cluster.kill("m0")
            cluster.start("m0")

            def serves_anew():
                status = cluster.status()
                return status["epoch"] > before["epoch"] and status["state"] == "serving"

            cluster.await_true(serves_anew, "a new epoch")
            again = tokens(cluster)

        self.assertEqual(got, wanted)
        self.assertEqual(again, wanted)
        self.assertTrue(all(len(ids) == 12 for answer in wanted for ids in answer))
        self.assertEqual(before["warnings"], [])
        self.assertEqual({node["windows"] for node in before["nodes"] if node["role"] != "coordinator"}, {"host memory"})
        self.assertEqual({link["path"] for link in before["links"]}, {"verbs rxe0"})
        self.assertEqual({f"{link['from']} {link['to']}" for link in before["links"]}, {"c0 m0", "c0 m1"})


if __name__ == "__main__":
    unittest.main()

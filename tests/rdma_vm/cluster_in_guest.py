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


def tokens_over(transport):
    """What each prompt gives, and what `status` says that carried it."""
    with Cluster(model=MODEL, memory_nodes=2, capacity="16MiB", transport=transport,
                 prefill={"chunk_tokens": 32}) as cluster:
        answers = []
        for prompt in PROMPTS:
            result = cluster.lamina("generate", "--tokens", prompt, "--max-tokens", "12",
                                    "--temperature", "0", "--ignore-eos", "--n", "2", "--json")
            if result.returncode != 0:
                raise AssertionError(result.stderr + cluster.logs())
            lines = sorted(json_lines(result.stdout), key=lambda line: line["index"])
            answers.append([line["token_ids"] for line in lines])
        return answers, {node["transport"] for node in cluster.status()["nodes"]}


class VerbsClusterTest(unittest.TestCase):
    def test_same_tokens_as_over_shared_memory(self):
        over_verbs, verbs = tokens_over("verbs")
        over_shm, _ = tokens_over("shm")

        self.assertEqual(over_verbs, over_shm)
        self.assertTrue(all(len(ids) == 12 for answer in over_verbs for ids in answer))
        self.assertEqual({name.split()[0] for name in verbs}, {"verbs"})

    def test_serves_again_after_a_memory_node_was_killed_and_restarted(self):
        with Cluster(model=MODEL, memory_nodes=2, capacity="16MiB", transport="verbs") as cluster:
            epoch = cluster.status()["epoch"]
            cluster.kill("m0")
            cluster.start("m0")

            def serves_anew():
                status = cluster.status()
                return status["epoch"] > epoch and status["state"] == "serving"

            cluster.await_true(serves_anew, "a new epoch")
            result = cluster.lamina("generate", "--tokens", PROMPTS[0], "--max-tokens", "4",
                                    "--temperature", "0", "--ignore-eos", "--json")
            self.assertEqual(result.returncode, 0, result.stderr + cluster.logs())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose data goes by RDMA WRITE gives the tokens of one over shared memory.

Runs in the guest of this folder, which has an RDMA device; see guest_cluster.sh.
"""

import os
import unittest

from harness import Cluster, json_lines, require_same_answer

MODEL = os.environ["RDMA_VM_MODEL"]
PROMPTS = ["1,2,3", ",".join(str(3 + i % 200) for i in range(90))]


def tokens(cluster):
    """What each prompt gives: tokens and their log-probabilities."""
    answers = []
    for prompt in PROMPTS:
        result = cluster.lamina("generate", "--tokens", prompt, "--max-tokens", "12", "--temperature", "0",
                                "--ignore-eos", "--logprobs", "1", "--n", "2", "--json")
        if result.returncode != 0:
            raise AssertionError(result.stderr + cluster.logs())
        lines = sorted(json_lines(result.stdout), key=lambda line: line["index"])
        answers.append([(line["token_ids"], line["logprobs"]) for line in lines])
    return answers


def cluster_over(transport, memory_nodes=2, **keys):
    return Cluster(model=MODEL, memory_nodes=memory_nodes, capacity="16MiB", transport=transport,
                   prefill={"chunk_tokens": 32}, token="the-secret-of-the-guest", **keys)


def few_tokens(**keys):
    """Keys of a cluster for short sequences, few at once, in two lanes."""
    return {"limits": {"sequence_tokens_max": 256, "running_max": 8}, "pipeline": {"lanes": 2}, **keys}


class VerbsClusterTest(unittest.TestCase):
    """Few clusters: they start slowly on emulated processors."""

    @classmethod
    def setUpClass(cls):
        with cluster_over("shm") as cluster:
            cls.wanted = tokens(cluster)

    def test_two_compute_nodes(self):
        """Replicas that take turns, and stages, which put to each other too: none fails on the way."""
        for compute in ([{"name": "c0"}, {"name": "c1"}],
                        [{"name": f"c{i}", "replica": "r0", "stage": i} for i in range(2)]):
            with cluster_over("verbs", memory_nodes=1, compute=compute) as cluster:
                require_same_answer(self, tokens(cluster), self.wanted, f"with {compute}")
                status = cluster.status()
            self.assertEqual(status["epoch"], 1, compute)
            self.assertEqual({link["path"] for link in status["links"]}, {"verbs rxe0"})
            print(f"guest: two compute nodes, {len(status['links'])} links", flush=True)

    def test_data_keeps_to_the_network_of_the_file(self):
        """By rule verbs takes rxe0; the network of the cluster file is that of rxe1."""
        with cluster_over("verbs", memory_nodes=1, network="198.51.100.0/24") as cluster:
            require_same_answer(self, tokens(cluster), self.wanted)
            links = cluster.status()["links"]
        self.assertEqual({link["path"] for link in links}, {"verbs rxe1"}, links)

    def test_k_and_v_that_are_fetched(self):
        """By few windows of K and V, which are used over and over."""
        with cluster_over("verbs", policy="fetch_heads", fetch={"window": "256KiB"},
                          limits={"sequence_tokens_max": 256}) as cluster:
            require_same_answer(self, tokens(cluster), self.wanted)
            status = cluster.status()
        self.assertEqual((status["policy"], status["epoch"]), ("fetch_heads", 1))
        self.assertEqual({link["path"] for link in status["links"]}, {"verbs rxe0"})

    def fetched(self, wanted, **keys):
        """The status of a cluster whose windows hold little more than its longest sequence needs of a layer, after the wanted answers."""
        with cluster_over("verbs", **few_tokens(**keys)) as cluster:
            require_same_answer(self, tokens(cluster), wanted, f"with {keys}")
            status = cluster.status()
        self.assertEqual((status["policy"], status["epoch"]), (keys["policy"], 1))
        self.assertEqual({link["path"] for link in status["links"]}, {"verbs rxe0"})
        return status

    def test_activations_that_are_fetched(self):
        """K and V of half of the tokens are made again from what comes; those of the others come as they are."""
        status = self.fetched(self.wanted, policy="fetch_recompute", fetch={"window": "1MiB", "recompute_percent": 50})
        self.assertIn("50% of tokens recomputed", status["fetch_choice"])

    def test_tokens_that_the_compute_node_names(self):
        """Sets of tokens go to the memory nodes, and all tokens are in them: answers are exact."""
        status = self.fetched(self.wanted, policy="fetch_sparse", fetch={"window": "1MiB", "caching_ratio": 1})
        self.assertIn("fetch_sparse-1-window_sums", status["fetch_choice"])

    def test_int8_that_is_fetched(self):
        """Blocks of 64 tokens with their scales, and open ones; by the plan, and by sets of tokens."""
        with cluster_over("shm", **few_tokens(kv="int8")) as cluster:
            wanted = tokens(cluster)
        for policy, fetch in (("fetch_heads", {}), ("fetch_sparse", {"caching_ratio": 1})):
            with self.subTest(policy=policy):
                self.fetched(wanted, kv="int8", policy=policy, fetch={"window": "1MiB", **fetch})

    def test_same_tokens_as_over_shared_memory_and_after_a_node_was_killed(self):
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

        require_same_answer(self, got, self.wanted)
        require_same_answer(self, again, self.wanted, "after the loss of m0")
        self.assertTrue(all(len(ids) == 12 for answer in self.wanted for ids, _ in answer))
        self.assertEqual(before["warnings"], [])
        self.assertEqual({node["windows"] for node in before["nodes"] if node["role"] != "coordinator"}, {"host memory"})
        self.assertEqual({link["path"] for link in before["links"]}, {"verbs rxe0"})
        self.assertEqual({f"{link['from']} {link['to']}" for link in before["links"]}, {"c0 m0", "c0 m1"})


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""How KV is spread over memory nodes: what is refused before serving, and what status says."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import harness


class PartitionTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def refused(self, **keys):
        """What the coordinator says when it refuses the cluster file. It must not listen."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.yaml"
            file.write_text(harness.cluster_file(model=harness.MODEL, **keys))
            result = harness.run("--cluster", file, program="lamina-coordinator")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertNotIn("listening", result.stderr)
        return result.stderr

    def check_explanation(self, cluster):
        """`lamina explain` says what status says, in words and in JSON, with what it was chosen by."""
        status = cluster.status()
        choices = {choice["what"]: choice
                   for choice in json.loads(cluster.lamina("explain", "--json").stdout)}
        self.assertEqual(choices["policy"]["chosen"], "attend_remote")
        self.assertEqual(choices["KV"]["chosen"], status["partition"])
        slots = [f"{node['name']}: room for {node['slots_total']} tokens"
                 for node in status["nodes"] if node["role"] == "memory"]
        self.assertEqual([figure.split(", reads")[0] for figure in choices["KV"]["figures"]], slots)
        self.assertEqual(choices["transport"]["chosen"], "shm")
        self.assertIn("c0 to m0 by shm", "".join(choices["transport"]["figures"]))
        text = cluster.lamina("explain").stdout
        self.assertRegex(text, r"(?m)^policy: +attend_remote$")
        for choice in choices.values():
            self.assertIn(choice["chosen"], text)

    def test_a_memory_node_without_its_device_says_what_was_looked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.yaml"
            file.write_text(harness.cluster_file(memory_nodes=1))
            result = harness.run("--cluster", file, "--name", "m0", "--set", "memory.0.device=cuda:63",
                                 "--coordinator", "127.0.0.1:7400", program="lamina-memory")
        self.assertEqual(result.returncode, 1, result.stderr)
        for part in ("device cuda:63", "CUDA kernels in this program", "libcuda.so.1",
                     "/dev/nvidia63: not found", "device: cpu"):
            self.assertIn(part, result.stderr)

    def test_more_memory_nodes_than_kv_heads(self):
        error = self.refused(memory_nodes=4, partition="head")
        self.assertIn("4 memory nodes, but the model has 3 KV heads", error)

    def test_a_memory_node_too_small_for_its_share(self):
        memory = [{"name": "big", "capacity": "1GiB"}, {"name": "small", "capacity": "4MiB"}]
        error = self.refused(memory=memory, partition="head")
        self.assertIn("memory node small has 4.0 MiB, too little for its share", error)
        self.assertIn("limits.sequence_tokens_max", error)

    def test_memory_nodes_too_small_together(self):
        # A head of 8192 tokens takes 60 MiB: each has room for one, of three.
        error = self.refused(memory_nodes=2, capacity="100MiB", partition="head")
        self.assertIn("room for 2 of 3 KV heads", error)

    def test_a_memory_node_too_small_for_a_span(self):
        memory = [{"name": "big", "capacity": "1GiB"}, {"name": "small", "capacity": "4MiB"}]
        error = self.refused(memory=memory, partition="token_range")
        self.assertRegex(error, "memory node small has room for [0-9]+ tokens, too little")

    def test_too_little_room_for_the_spans_of_one_request(self):
        error = self.refused(memory_nodes=2, capacity="64MiB", partition="token_range")
        self.assertIn("in spans of 1024, but one request may have 8192", error)

    def test_auto_says_what_it_chose_and_why(self):
        with harness.Cluster(model=harness.MODEL, memory_nodes=2, partition="auto", capacity="512MiB") as cluster:
            self.assertIn("request; chosen because every memory node has room for",
                          cluster.status()["partition"])
            self.check_explanation(cluster)
        with harness.Cluster(model=harness.MODEL, memory_nodes=2, partition="auto", capacity="160MiB") as cluster:
            self.assertRegex(cluster.status()["partition"],
                             "^(head|token_range): .*; chosen because a request of 8192 tokens does "
                             "not fit into every memory node")
            answer = cluster.lamina("generate", "--prompt", "The capital of France is",
                                    "--max-tokens", "6", "--temperature", "0")
            self.assertIn("Paris", answer.stdout)

    def test_auto_says_why_nothing_can_be_served(self):
        error = self.refused(memory_nodes=2, capacity="64MiB", partition="auto")
        self.assertIn("no partition can be served: partition request: memory node m0", error)
        self.assertIn("partition head:", error)
        self.assertIn("partition token_range:", error)

    def start_requests(self, cluster):
        """Two long prompts, each with some tokens of its answer when this returns."""
        prompts = [" ".join(f"{word} {i}" for i in range(150)) for word in ("apple", "stone")]
        before = cluster.status()
        processes = [cluster.popen("generate", "--prompt", prompt, "--ignore-eos", "--temperature", "0", "--max-tokens", "200",
                                   "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for prompt in prompts]
        for process in processes:
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)

        def decoding():
            status = cluster.status()
            return (status["running"] == len(prompts) and status["tokens_generated"] > before["tokens_generated"] + 20
                    or any(process.poll() is not None for process in processes))

        cluster.await_true(decoding, "running requests")
        self.assertTrue(all(process.poll() is None for process in processes), "they ended too early to tell anything")
        return processes

    def answers_of(self, cluster, processes):
        answers = []
        for process in processes:
            out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
            self.assertEqual(process.returncode, 0, error + cluster.logs())
            answers.append(json.loads(out)["token_ids"])
        return answers

    def test_a_lost_node_costs_the_tokens_that_lay_there(self):
        # Spans of 256 tokens.
        with harness.Cluster(model=harness.MODEL, memory_nodes=3, partition="token_range", limits={"sequence_tokens_max": 2048}) as cluster:
            wanted = self.answers_of(cluster, self.start_requests(cluster))

            processes = self.start_requests(cluster)
            before = cluster.status()
            slots = {node["name"]: node["slots_used"] for node in before["nodes"] if node["role"] == "memory"}
            # Spans are shared out by what nodes read at start, which others may have slowed down.
            lost = max(slots, key=slots.get)
            self.assertGreater(slots[lost], 200, slots)
            cluster.kill(lost)
            self.assertEqual(self.answers_of(cluster, processes), wanted)
            computed = cluster.status()["tokens_prefilled"] - before["tokens_prefilled"]
            self.assertGreaterEqual(computed, slots[lost] - 2 * 8)
            self.assertLess(computed, slots[lost] + 2 * 60)  # They went on between.

            processes = self.start_requests(cluster)
            before = cluster.status()
            cluster.start(lost)
            cluster.await_state("serving")
            self.assertEqual(self.answers_of(cluster, processes), wanted)
            computed = cluster.status()["tokens_prefilled"] - before["tokens_prefilled"]
            self.assertEqual(computed, 0)  # That from which the next one is sampled is its answer's.

    def test_status_shows_the_shares(self):
        with harness.Cluster(model=harness.MODEL, memory_nodes=2, partition="head") as cluster:
            words = cluster.lamina("status").stdout
            self.assertRegex(words, r"KV: +by head: m0 [12], m1 [12] of 3 KV heads; the slowest takes "
                                    r"\d+\.\d\d times an even split's time")
            status = cluster.status()
            self.assertIn("of 3 KV heads", status["partition"])
            slots = {node["slots_total"] for node in status["nodes"] if node["role"] == "memory"}
            self.assertEqual(len(slots), 1)


if __name__ == "__main__":
    unittest.main()

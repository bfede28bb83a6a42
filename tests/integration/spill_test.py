#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""K and V that go to a file and come back, with real programs: the same tokens as with room for all, and nothing left behind."""

import json
import os
import subprocess
import tempfile
import unittest

import harness

REQUESTS = 8
TOKENS = 128
PROMPT = "Tell me the story of the number {}, from its childhood to its old age, and leave nothing out of it, please."
LIMITS = {"sequence_tokens_max": 512, "running_max": 16}


class SpillTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)
        self.folder = tempfile.TemporaryDirectory(prefix="lamina-spill-test-")
        self.addCleanup(self.folder.cleanup)

    def cluster(self, nodes=1, capacity="4MiB", spills=True, **keys):
        spill = {"spill": {"path": self.folder.name, "capacity": "256MiB"}} if spills else {}
        memory = [{"name": f"m{i}", "capacity": capacity, **spill} for i in range(nodes)]
        return harness.Cluster(memory=memory, limits=LIMITS, **keys)

    def generate(self, cluster):
        """Token ids of all requests, greedy and sampled ones, at once."""
        running = []
        for i in range(REQUESTS):
            sampling = ["--temperature", "0"] if i % 2 == 0 else ["--temperature", "1", "--seed", str(i)]
            running.append(cluster.popen("generate", "--json", "--ignore-eos", "--max-tokens", str(TOKENS), "--prompt",
                                         PROMPT.format(i), *sampling, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        answers = []
        for process in running:
            out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
            self.assertEqual(process.returncode, 0, error)
            answers.append(json.loads(out)["token_ids"])
        return answers

    def spills_of(self, cluster):
        return [node["spill"] for node in cluster.status()["nodes"] if node["role"] == "memory"]

    def with_room(self, **keys):
        with self.cluster(capacity="256MiB", spills=False, **keys) as cluster:
            self.assertEqual(self.spills_of(cluster), [None])
            return self.generate(cluster)

    def check(self, cluster, expected):
        self.assertEqual(self.generate(cluster), expected)
        # Nodes say twice a second what they have counted.
        cluster.await_true(lambda: all(spill["sequences_out"] > 0 and spill["bytes_in"] > 0 for spill in self.spills_of(cluster)),
                           "sequences that went out and came back")
        self.assertEqual([spill["failures"] for spill in self.spills_of(cluster)], [0] * len(self.spills_of(cluster)))

    def test_tokens_are_those_of_a_cluster_with_room(self):
        expected = self.with_room()
        for nodes, keys in ((1, {}), (2, {"partition": "head"})):
            with self.subTest(nodes=nodes), self.cluster(nodes, capacity=f"{4 // nodes}MiB", **keys) as cluster:
                self.check(cluster, expected)
                self.assertIn("spill:    m0 ", cluster.lamina("status").stdout)
                self.assertEqual(os.listdir(self.folder.name), [])
                cluster.kill("m0")
                self.assertEqual(os.listdir(self.folder.name), [], "nothing is left of a process that was killed")

    def test_tokens_are_those_of_a_cluster_with_room_where_kv_is_int8(self):
        expected = self.with_room(kv="int8")
        # Open blocks of sixteen take 4.5 of them.
        with self.cluster(kv="int8", capacity="6656KiB") as cluster:
            self.check(cluster, expected)

    def test_tokens_are_those_of_a_cluster_with_room_where_kv_is_fetched(self):
        expected = self.with_room(policy="fetch_heads")
        with self.cluster(policy="fetch_heads") as cluster:
            self.check(cluster, expected)

    def converse(self, cluster):
        """Answers to five people one after the other, and to the first again, with the tokens that each found."""
        answers, found = [], []
        for person in (0, 1, 2, 3, 4, 0):
            words = f"Person {person}. " + " ".join(f"Item {k} of the list." for k in range(30))
            done = cluster.lamina("generate", "--json", "--temperature", "0", "--ignore-eos", "--max-tokens", "24", "--prompt", words)
            self.assertEqual(done.returncode, 0, done.stderr)
            answer = json.loads(done.stdout)
            answers.append(answer["token_ids"])
            found.append(answer["cached_tokens"])
        return answers, found

    def test_who_comes_back_has_blocks_read_that_lost_their_slots(self):
        with self.cluster(capacity="256MiB", spills=False) as cluster:
            expected, in_slots = self.converse(cluster)
        with self.cluster(spills=False) as cluster:
            answers, found = self.converse(cluster)
            self.assertEqual(answers, expected)
            self.assertEqual(found[-1], 0, "there was room for all")
        with self.cluster() as cluster:
            answers, found = self.converse(cluster)
            self.assertEqual(answers, expected)
            cluster.await_true(lambda: self.spills_of(cluster)[0]["cached_tokens_in"] >= 64, "tokens that were read back")
            (spill,) = self.spills_of(cluster)
        self.assertGreater(found[-1], 64)
        self.assertLessEqual(found[-1], in_slots[-1])
        self.assertGreaterEqual(spill["cached_tokens_out"], spill["cached_tokens_in"])
        self.assertEqual(spill["failures"], 0)

    def test_a_folder_that_is_not_there_is_told_at_start(self):
        spill = {"path": f"{self.folder.name}/nowhere", "capacity": "1MiB"}
        memory = [{"name": "m0", "capacity": "4MiB", "spill": spill}]
        with self.assertRaisesRegex(harness.ClusterError, "nowhere: no file can be made there"):
            with harness.Cluster(memory=memory, limits=LIMITS):
                pass

    def test_settings_that_are_not_served_are_refused_by_name(self):
        for key, value in (("policy", "fetch_recompute"), ("policy", "fetch_hybrid")):
            with self.subTest(key=key), self.assertRaisesRegex(harness.ClusterError, f"memory.N.spill is not served.*{value}"):
                self.cluster(**{key: value})


if __name__ == "__main__":
    unittest.main()

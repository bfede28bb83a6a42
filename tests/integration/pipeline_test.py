# SPDX-License-Identifier: Apache-2.0
"""Lanes and partitions of running clusters: what is chosen, what is refused, and what a lost node takes with it."""

import json
import subprocess
import unittest

import harness

# Never gets to its end before it is looked at, even on the fastest machine.
ENDLESS = ["--max-tokens", "6000", "--ignore-eos"]
SOON_SECONDS = 60


class SmallFiles(harness.Cluster):
    """A cluster whose m0 may make no file, nor shared memory, of more than 64 KiB; writing more is an error, not a signal."""

    def prefix(self, name):
        return ["env", "--ignore-signal=XFSZ", "prlimit", "--fsize=65536"] if name == "m0" else []


def slots_of_m0(cluster):
    return next(node["slots_used"] for node in cluster.status()["nodes"] if node["name"] == "m0")


class PipelineTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def start(self, cluster, prompt):
        process = cluster.popen("generate", "--prompt", prompt, *ENDLESS, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.communicate()

    def tokens(self, cluster, prompt):
        result = cluster.lamina("generate", "--prompt", prompt, "--max-tokens", "6", "--temperature", "0",
                                "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["token_ids"]

    def test_lanes_are_chosen_by_what_was_measured(self):
        with harness.Cluster() as cluster:
            one = self.start(cluster, "Once upon a time")
            cluster.await_true(lambda: cluster.status()["lane_choice"].startswith("1 of 2 lanes: 1 row,"),
                               "one lane for one row")
            others = [self.start(cluster, f"Once upon a time, {i}") for i in range(5)]

            def settled():
                status = cluster.status()
                choice = status["lane_choice"]
                busy = sum(lane["rows"] > 0 for lane in status["lanes"])
                return "6 rows, a layer takes" in choice and busy == int(choice.split()[0])

            cluster.await_true(settled, "as many lanes with rows as were chosen by measured times")
            for process in [one, *others]:
                self.end(process)

    def test_a_given_number_of_lanes_is_kept(self):
        with harness.Cluster(pipeline={"mode": "rotational", "lanes": 2, "chunks": 2}) as cluster:
            processes = [self.start(cluster, f"Once upon a time, {i}") for i in range(2)]

            def settled():
                status = cluster.status()
                return (status["lane_choice"] == "2, as configured"
                        and status["chunk_choice"].startswith("2 of KV heads, 2 as configured")
                        and [lane["rows"] for lane in status["lanes"]] == [1, 1])

            cluster.await_true(settled, "a row in each lane")
            for process in processes:
                self.end(process)

    def test_a_request_with_a_span_on_a_lost_node_goes_on_elsewhere(self):
        # About 1500 tokens: two spans of 1024, the second on the node that has none yet.
        long = " ".join(f"Item {i} of the list." for i in range(240))
        with harness.Cluster(partition="token_range") as cluster:
            first = self.tokens(cluster, "The capital of France is")
            self.assertIn("spans of 1024", cluster.status()["partition"])
            process = self.start(cluster, long)
            cluster.await_true(lambda: all(node["slots_used"] > 0 for node in cluster.status()["nodes"]
                                           if node["role"] == "memory"), "a span on each node")
            cluster.kill("m1")
            cluster.await_true(lambda: "without m1" in cluster.status()["state"], "the loss of m1")
            cluster.await_true(lambda: cluster.status()["running"] == 1 and slots_of_m0(cluster) > 1024,
                               "all of it on m0")
            self.end(process)
            self.assertEqual(self.tokens(cluster, "The capital of France is"), first)
            cluster.start("m1")
            cluster.await_state("serving")
            self.assertEqual(self.tokens(cluster, "The capital of France is"), first)

    def test_a_node_without_room_for_its_windows_says_so_before_serving(self):
        with SmallFiles(memory_nodes=1, wait=False) as cluster:
            cluster.await_true(lambda: "m0 failed" in cluster.status()["state"], "the problem of m0")
            state = cluster.status()["state"]
            self.assertRegex(state, "(ftruncate|posix_fallocate): File too large")
            self.assertNotIn("serving", state)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Greedy and seeded output is the same to the bit, however the cluster is made and loaded."""

import json
import subprocess
import threading
import unittest

import harness

# The longest prompt takes several chunks of 16, and spans two blocks of attention.
TEXTS = ["The capital of France is", "1, 2, 3,", "def f(x):\n  return", "Once upon a time"]
ITEMS = (0, 1, 2, 4, 6, 9, 14, 36)  # Of each prompt; 36 are more than 256 tokens.
REQUESTS = len(ITEMS)
TOKENS = 24


def prompt(index):
    text = TEXTS[index % len(TEXTS)]
    return (" ".join(f"Item {i} of list {index}." for i in range(ITEMS[index])) + " " + text).strip()


class DeterminismTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def answers(self, cluster, at_once):
        """Token ids and log-probabilities of all requests; odd ones are sampled with a seed."""
        commands = []
        for i in range(REQUESTS):
            sampling = ["--temperature", "0.9", "--top-p", "0.95", "--seed", str(i)] if i % 2 else [
                "--temperature", "0"]
            commands.append(["generate", "--prompt", prompt(i), "--max-tokens", str(TOKENS),
                             "--ignore-eos", "--logprobs", "1", "--json", *sampling])
        if at_once:
            running = [cluster.popen(*c, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                       for c in commands]
            outputs = [(p.communicate(timeout=harness.COMMAND_SECONDS), p.returncode)
                       for p in running]
            texts = []
            for (out, error), code in outputs:
                self.assertEqual(code, 0, error)
                texts.append(out)
        else:
            texts = []
            for command in commands:
                result = cluster.lamina(*command)
                self.assertEqual(result.returncode, 0, result.stderr)
                texts.append(result.stdout)
        parsed = [json.loads(text) for text in texts]
        return [(answer["token_ids"], answer["logprobs"]) for answer in parsed]

    def check(self, at_once=True, meanwhile=(), until=None, **keys):
        """`meanwhile`: commands that run at the same time, again and again, until `until(status)` holds."""
        with harness.Cluster(**keys) as cluster:
            enough = threading.Event()
            others = [threading.Thread(target=self.repeat, args=(cluster, command, enough))
                      for command in meanwhile]
            try:
                for other in others:
                    other.start()
                found = self.answers(cluster, at_once)
                if until is not None:
                    cluster.await_true(lambda: until(cluster.status()), "what is asked for meanwhile")
            finally:
                enough.set()
                for other in others:
                    other.join()
            status = cluster.status()
        for i, (one, other) in enumerate(zip(self.reference(), found)):
            self.assertEqual(one, other, f"request {i} differs with {keys}")
        return status

    def repeat(self, cluster, command, enough):
        while not enough.is_set():
            process = cluster.popen(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while process.poll() is None and not enough.wait(0.1):
                pass
            process.kill()
            process.wait()

    @classmethod
    def reference(cls):
        """One request at a time on the default cluster."""
        if not hasattr(cls, "reference_"):
            with harness.Cluster() as cluster:
                cls.reference_ = cls().answers(cluster, at_once=False)
        return cls.reference_

    def runTest(self):
        pass

    def test_in_a_batch_of_mixed_lengths(self):
        self.check()

    def test_one_memory_node_and_one_lane(self):
        self.check(memory_nodes=1, pipeline={"mode": "sequential"})

    def test_three_memory_nodes_and_small_chunks(self):
        self.check(memory_nodes=3, prefill={"chunk_tokens": 16})

    def test_two_replicas_and_three_lanes(self):
        status = self.check(compute=[{"name": "c0"}, {"name": "c1"}])
        self.assertEqual(len(status["lanes"]), 3)

    def test_prompts_on_nodes_of_their_own(self):
        status = self.check(compute=[{"name": "c0"}, {"name": "p0", "role": "prefill"},
                                     {"name": "p1", "role": "prefill"}],
                            prefill={"mode": "dedicated", "chunk_tokens": 64})
        self.assertEqual(status["prefill"], "dedicated: p0, p1")
        self.assertEqual([node["role"] for node in status["nodes"][:3]], ["compute", "prefill", "prefill"])
        self.assertEqual([lane["prefill"] for lane in status["lanes"]], [False, False, True, True])

    def test_prompts_on_a_replica_in_stages(self):
        stages = [{"name": f"p{i}", "role": "prefill", "replica": "q", "stage": i} for i in range(2)]
        status = self.check(compute=[{"name": "c0"}, *stages], prefill={"mode": "dedicated", "chunk_tokens": 64})
        self.assertEqual(status["prefill"], "dedicated: p0+p1")
        self.assertEqual([lane["prefill"] for lane in status["lanes"]], [False, False, True, True])
        self.assertEqual(status["warnings"], [])

    def test_two_stages(self):
        stages = [{"name": "c0", "replica": "r0", "stage": 0}, {"name": "c1", "replica": "r0", "stage": 1}]
        status = self.check(compute=stages)
        # Each loads its own layers only, as many as are fastest by what both have measured.
        self.assertRegex(status["stages"], "^r0: c0 0-[0-9]+, c1 [0-9]+-5, by cost and measured speed")
        first, last = [node for node in status["nodes"] if node["replica"] == "r0"]
        self.assertEqual(int(first["layers"].split("-")[1]) + 1, int(last["layers"].split("-")[0]))
        self.assertTrue(first["units"] > 0 and last["units"] > 0)

    def test_heads_over_two_and_three_memory_nodes(self):
        for nodes in (2, 3):
            status = self.check(memory_nodes=nodes, partition="head")
            self.assertIn("of 3 KV heads", status["partition"])

    def test_token_ranges_over_three_memory_nodes(self):
        # Spans of 256 tokens; the longest prompt has more.
        status = self.check(memory_nodes=3, partition="token_range",
                            limits={"sequence_tokens_max": 2048})
        self.assertIn("spans of 256 tokens", status["partition"])

    def test_rows_in_chunks_over_a_slow_link(self):
        # Other partitions and numbers: local_cluster_bits_test.cc.
        status = self.check(partition="token_range", limits={"sequence_tokens_max": 2048},
                            pipeline={"mode": "rotational", "chunks": 3},
                            transport="throttle(bandwidth=50MB,latency=50us)+shm")
        self.assertLess(status["links"][0]["bytes_per_second"], 60e6)
        self.assertRegex(status["chunk_choice"], "^3(,| of KV heads, 3) as configured")

    def test_one_row_in_groups_of_heads_over_a_slow_link(self):
        # Each request by itself: its row has three KV heads, which leave one after the other.
        status = self.check(at_once=False, memory_nodes=1,
                            pipeline={"mode": "rotational", "chunks": 3, "query_first": "always"},
                            transport="throttle(bandwidth=50MB,latency=50us)+shm")
        self.assertEqual(status["chunk_choice"], "3 of KV heads, 3 as configured, queries first")

    def test_over_ucx(self):
        status = self.check(transport="ucx")
        self.assertEqual({node["transport"].split()[0] for node in status["nodes"]}, {"ucx"})

    def test_two_threads_in_every_node(self):
        self.check(compute=[{"name": "c0", "threads": 2}],
                   memory=[{"name": "m0", "capacity": "256MiB", "threads": 2}])

    def test_with_preemption(self):
        # Room for one sequence of the limit and a little. Four others are let in while they are short
        # and grow to twice of what there is.
        limits = {"sequence_tokens_max": 512}
        growing = ["generate", "--prompt", "Once upon a time", "--max-tokens", "400", "--ignore-eos",
                   "--json"]
        self.check(meanwhile=[growing] * 4, until=lambda status: status["preemptions"] > 0, memory_nodes=1,
                   capacity="3600KiB", limits=limits)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`lamina node`: a memory node that the cluster file does not name joins, and one leaves for good, while requests run."""

import json
import subprocess
import unittest

import harness

TOKEN = "the-secret-of-this-cluster"
PROMPTS = ["Once upon a time", "The capital of France is", "Water boils when", "A list of colours:"]
TOKENS = 320
WAIT_SECONDS = 300


class NodeCommandTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def node(self, cluster, *words, token=True):
        return cluster.lamina("node", *words, *(["--cluster-token-file", str(cluster.token_file)] if token else []))

    def changes(self, cluster, *words):
        done = self.node(cluster, *words)
        self.assertEqual(done.returncode, 0, done.stderr + cluster.logs())
        return done.stdout

    def refuses(self, cluster, *words, says, token=True):
        done = self.node(cluster, *words, token=token)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertRegex(done.stderr, says)

    def start_requests(self, cluster):
        """All prompts, each with some tokens when this returns."""
        processes = [cluster.popen("generate", "--prompt", prompt, "--ignore-eos", "--temperature", "0.8", "--seed", "7", "--max-tokens", str(TOKENS),
                                   "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) for prompt in 2 * PROMPTS]
        for process in processes:
            self.addCleanup(process.communicate)
            self.addCleanup(process.kill)
        before = cluster.status()["tokens_generated"]
        cluster.await_true(lambda: (status := cluster.status())["running"] == 2 * len(PROMPTS) and status["tokens_generated"] > before + 40
                           or any(process.poll() is not None for process in processes), "running requests")
        self.assertTrue(all(process.poll() is None for process in processes), "they ended too early to tell anything")
        return processes

    def tokens_of(self, cluster, processes):
        answers = []
        for process in processes:
            out, error = process.communicate(timeout=WAIT_SECONDS)
            self.assertEqual(process.returncode, 0, error + cluster.logs())
            answers.append(json.loads(out)["token_ids"])
        return answers

    def nodes(self, cluster):
        return {node["name"]: node for node in cluster.status()["nodes"]}

    def requests_on(self, cluster, name, wanted):
        """Running requests, some of whose K and V are on the node. It has as many as its share of the bandwidth that nodes measured when
        they started, which next to other tests may be none."""
        for _ in range(5):
            running = self.start_requests(cluster)
            cluster.await_true(lambda: self.nodes(cluster)[name]["slots_used"] > 0 or any(process.poll() is not None for process in running),
                               "K and V on the added node")
            if all(process.poll() is None for process in running):
                return running
            self.assertEqual(self.tokens_of(cluster, running), wanted)
        return self.fail(f"{name} has K and V of none")

    def start_added(self, cluster, name):
        """Starts a memory node that the coordinator's file did not name when it started."""
        config = json.loads(cluster.file.read_text())
        config["memory"].append({"name": name, "capacity": config["memory"][0]["capacity"]})
        cluster.file.write_text(json.dumps(config))
        cluster.roles[name] = "memory"
        cluster.start(name)

    def add_and_drain_while_requests_run(self, after=lambda cluster: None, **keys):
        with harness.Cluster(token=TOKEN, **keys) as cluster:
            wanted = self.tokens_of(cluster, self.start_requests(cluster))

            running = self.start_requests(cluster)
            advice = self.changes(cluster, "add", "m2", "--capacity", "64MiB")
            self.assertIn("- {name: m2, host: localhost, capacity: 64MiB}", advice)
            self.assertIn(f"--name m2 --coordinator {cluster.server} --cluster-token-file {cluster.token_file}\n", advice)
            cluster.await_true(lambda: cluster.status()["state"] == "serving; without m2", "the cluster to know of m2")
            self.start_added(cluster, "m2")
            cluster.await_state("serving")
            self.assertEqual(self.tokens_of(cluster, running), wanted)

            running = self.requests_on(cluster, "m2", wanted)
            failed = cluster.status()["requests_failed"]
            self.assertIn("m0 is drained", self.changes(cluster, "drain", "m0"))
            self.assertEqual(cluster.processes["m0"].wait(WAIT_SECONDS), 0, cluster.log("m0"))
            self.assertIn("drained: this node leaves the cluster for good", cluster.log("m0"))
            self.assertEqual(self.tokens_of(cluster, running), wanted)
            self.assertIn("m0 was drained already", self.changes(cluster, "drain", "m0"))

            status = cluster.status()
            self.assertEqual(status["state"], "serving")
            self.assertEqual([node["name"] for node in status["nodes"]], ["c0", "m1", "m2"])
            self.assertEqual(status["requests_failed"], failed)
            self.assertRegex(" ".join(status["warnings"]), "m2 is not in the cluster file.*m0 was drained and is still in the cluster file")
            cluster.await_true(lambda: all(node["slots_used"] == 0 for node in self.nodes(cluster).values()), "no slot held")
            after(cluster)

    def refusals(self, cluster):
        """What a cluster of c0, m1 and m2, from which m0 was drained, refuses."""
        self.refuses(cluster, "drain", "m7", says="there is no memory node m7; there are m1, m2")
        self.refuses(cluster, "drain", "c0", says="c0 is a compute node.*SIGTERM")
        self.refuses(cluster, "add", "c0", says="c0 is a compute node")
        self.refuses(cluster, "drain", "m1", says="this command has none", token=False)
        harness.write_token(cluster.directory / "other.token", "another-secret-altogether")
        wrong = cluster.lamina("node", "drain", "m1", "--cluster-token-file", str(cluster.directory / "other.token"))
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("did not prove that it knows the cluster's secret", wrong.stderr)
        self.assertEqual(cluster.status()["state"], "serving")

        # A supervisor starts it again: it is told why it may not join, and how it may.
        cluster.start("m0")
        self.assertEqual(cluster.processes["m0"].wait(WAIT_SECONDS), 1)
        self.assertIn("m0 was drained; `lamina node add m0` lets it join again", cluster.log("m0"))
        port = cluster.server.rpartition(":")[2]
        self.assertIn(f"--name m0 --coordinator HOST_OF_THE_COORDINATOR:{port} ", self.changes(cluster, "add", "m0", "--host", "b.example"))
        cluster.start("m0")
        cluster.await_state("serving")

    def test_sequences_are_placed_on_an_added_node_and_leave_a_drained_one(self):
        self.add_and_drain_while_requests_run(self.refusals)

    def test_heads_are_spread_anew(self):
        self.add_and_drain_while_requests_run(partition="head")

    def test_spans_are_spread_anew(self):
        self.add_and_drain_while_requests_run(partition="token_range")

    def test_what_cannot_work_is_refused_by_name(self):
        with harness.Cluster(memory_nodes=3, partition="head") as cluster:
            self.refuses(cluster, "add", "m3", says="4 memory nodes, but the model has 3 KV heads", token=False)
            for name in ("m0", "m1"):
                self.assertEqual(self.node(cluster, "drain", name, token=False).returncode, 0)
                self.assertEqual(cluster.processes[name].wait(WAIT_SECONDS), 0)
                cluster.await_true(lambda: cluster.status()["state"] == "serving", "the epoch of the others")
            self.refuses(cluster, "drain", "m2", says="m2 is the last memory node", token=False)
            self.assertEqual(cluster.lamina("generate", "--prompt", "Hello", "--max-tokens", "2").returncode, 0)


if __name__ == "__main__":
    unittest.main()

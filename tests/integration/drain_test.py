#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Leaving in peace: what is told to stop finishes what runs, alone or all at once, for as long as drain_seconds."""

import json
import signal
import subprocess
import unittest

import harness

PROMPT = ["--prompt", "Once upon a time", "--ignore-eos", "--temperature", "0"]
TOKENS = 200
# Enough to outlast the second in which the coordinator waits for others who ask to leave.
MANY_TOKENS = 300
# Of whole clusters: more than a request takes on a busy machine.
DRAIN = {"drain_seconds": 300}
WAIT_SECONDS = 300


class DrainTest(unittest.TestCase):

    undisturbed = []  # Shorter answers are its beginning.

    def setUp(self):
        harness.require_model(self)

    def wanted(self, cluster, tokens=TOKENS):
        if not self.undisturbed:
            done = cluster.lamina("generate", *PROMPT, "--max-tokens", str(MANY_TOKENS), "--json")
            self.undisturbed.extend(json.loads(done.stdout)["token_ids"])
        return self.undisturbed[:tokens]

    def start(self, cluster, tokens=TOKENS):
        """A request that runs when this returns."""
        process = cluster.popen("generate", *PROMPT, "--max-tokens", str(tokens), "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        cluster.await_true(lambda: cluster.status().get("running", 0) > 0 or process.poll() is not None, "a running request")
        self.assertIsNone(process.poll(), "it ended too early to tell anything")
        return process

    def tokens_of(self, cluster, process):
        out, error = process.communicate(timeout=WAIT_SECONDS)
        self.assertEqual(process.returncode, 0, error + cluster.logs())
        return json.loads(out)["token_ids"]

    def ends(self, cluster, name):
        self.assertEqual(cluster.processes[name].wait(WAIT_SECONDS), 0, cluster.log(name))

    def test_all_told_at_once_finish_what_runs(self):
        with harness.Cluster(model=harness.MODEL, gateway={"listen": "127.0.0.1:0"}, **DRAIN) as cluster:
            wanted = self.wanted(cluster)
            running = self.start(cluster)
            for process in cluster.processes.values():
                process.send_signal(signal.SIGTERM)
            self.assertEqual(self.tokens_of(cluster, running), wanted)
            for name in cluster.roles:
                self.ends(cluster, name)

    def test_a_node_that_others_can_do_without_goes_and_takes_no_request_with_it(self):
        with harness.Cluster(model=harness.MODEL, **DRAIN) as cluster:
            wanted = self.wanted(cluster)
            running = self.start(cluster)
            for name in ("m0", "m1"):  # One of them has its K and V.
                cluster.processes[name].send_signal(signal.SIGTERM)
                self.ends(cluster, name)
                self.assertIn("was told to stop, and asks to be let go", cluster.log("coordinator"))
                if name == "m0":
                    cluster.start(name)
                    cluster.await_state("serving")
            self.assertEqual(self.tokens_of(cluster, running), wanted)

    def test_a_node_that_is_needed_finishes_what_runs_and_lets_nothing_in(self):
        with harness.Cluster(model=harness.MODEL, **DRAIN) as cluster:
            wanted = self.wanted(cluster, MANY_TOKENS)
            running = self.start(cluster, MANY_TOKENS)
            cluster.processes["c0"].send_signal(signal.SIGTERM)
            cluster.await_true(lambda: "cannot serve without c0" in cluster.log("coordinator"), "the coordinator's answer")
            refused = cluster.lamina("generate", "--prompt", "Hello", "--max-tokens", "1")
            self.assertEqual(refused.returncode, 1)
            self.assertRegex(refused.stderr, "the cluster is stopping: c0 leave")
            self.assertEqual(self.tokens_of(cluster, running), wanted)
            self.ends(cluster, "c0")
            cluster.start("c0")
            cluster.await_state("serving")

    def test_grace_has_an_end(self):
        with harness.Cluster(model=harness.MODEL, drain_seconds=1) as cluster:
            running = self.start(cluster, tokens=8000)
            cluster.processes["c0"].send_signal(signal.SIGTERM)
            self.ends(cluster, "c0")
            self.assertIn("did not let this node go in time; leaving", cluster.log("c0"))
            out, error = running.communicate(timeout=WAIT_SECONDS)
            self.assertEqual(running.returncode, 1, out)
            self.assertIn("c0", error)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""What happens when processes die, stop, or ask for too much: clear errors, nothing lost, serving goes on."""

import json
import signal
import subprocess
import time
import unittest

import harness

LONG = ["--prompt", "Once upon a time", "--max-tokens", "600", "--ignore-eos", "--json"]
# For requests that never get to their end: long enough for the fastest machine.
ENDLESS = ["--prompt", "Once upon a time", "--max-tokens", "8000", "--ignore-eos", "--json"]
SOON_SECONDS = 60  # For what happens at once on a machine that may be busy.


class FailureTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def start_long(self, cluster, count, request=ENDLESS):
        """Requests that are all decoding when this returns."""
        running = [cluster.popen("generate", *request, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                   for _ in range(count)]
        for process in running:
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
        cluster.await_true(lambda: cluster.status().get("running", 0) >= count, "running requests")
        return running

    def start_long_on_both_nodes(self, cluster):
        """Where a request goes depends on the bandwidths that were measured: starts more if need be."""
        running = self.start_long(cluster, 6, LONG)
        while not all(self.slots_by_node(cluster)[name] > 0 for name in ("m0", "m1")):
            self.assertLess(len(running), 64, cluster.logs())
            running += self.start_long(cluster, 1, LONG)
        return running

    def slots_by_node(self, cluster):
        return {node["name"]: node["slots_used"] for node in cluster.status()["nodes"]}

    def slots_used(self, cluster):
        return sum(self.slots_by_node(cluster).values())

    def short(self, cluster):
        result = cluster.lamina("generate", "--prompt", "The capital of France is", "--max-tokens", "4",
                                "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["token_ids"]

    def test_a_killed_memory_node_takes_only_its_own_requests(self):
        with harness.Cluster() as cluster:
            wanted = cluster.lamina("generate", *LONG)
            running = self.start_long_on_both_nodes(cluster)
            cluster.kill("m0")
            outputs = [(p.communicate(timeout=harness.COMMAND_SECONDS), p.returncode) for p in running]
            codes = [code for _, code in outputs]
            self.assertIn(1, codes, "requests of the dead node end with an error")
            self.assertIn(0, codes, "requests of the other node go on")
            for (out, error), code in outputs:
                if code == 0:
                    self.assertEqual(json.loads(out)["token_ids"],
                                     json.loads(wanted.stdout)["token_ids"])
                else:
                    self.assertIn("m0 was lost", error)
            first = self.short(cluster)  # Served by the node that is left.
            cluster.start("m0")
            cluster.await_state("serving")
            self.assertEqual(self.short(cluster), first)

    def test_a_killed_compute_node_ends_requests_at_once_and_serves_again_when_back(self):
        with harness.Cluster() as cluster:
            first = self.short(cluster)
            running = self.start_long(cluster, 2)
            cluster.kill("c0")
            for process in running:
                _, error = process.communicate(timeout=SOON_SECONDS)
                self.assertEqual(process.returncode, 1)
                self.assertIn("c0", error)
            refused = cluster.lamina("generate", "--prompt", "Hello", "--max-tokens", "1")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("waiting for c0", refused.stderr)
            cluster.start("c0")
            cluster.await_state("serving")
            self.assertEqual(self.short(cluster), first)

    def test_a_killed_replica_takes_no_request_with_it(self):
        two = [{"name": "c0"}, {"name": "c1"}]
        with harness.Cluster(compute=two) as cluster:
            first = self.short(cluster)
            wanted = json.loads(cluster.lamina("generate", *LONG).stdout)["token_ids"]
            running = self.start_long(cluster, 3, LONG)
            cluster.kill("c1")
            for process in running:
                out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
                self.assertEqual(process.returncode, 0, error)
                self.assertEqual(json.loads(out)["token_ids"], wanted)
            self.assertIn("without c1", cluster.status()["state"])
            cluster.start("c1")
            cluster.await_state("serving")
            self.assertEqual(self.short(cluster), first)

    def test_a_stopped_node_is_taken_for_dead_and_comes_back(self):
        with harness.Cluster() as cluster:
            first = self.short(cluster)
            cluster.processes["m1"].send_signal(signal.SIGSTOP)
            try:
                cluster.await_true(lambda: "without m1" in cluster.status()["state"], "the loss of m1")
                self.assertEqual(self.short(cluster), first)
            finally:
                cluster.processes["m1"].send_signal(signal.SIGCONT)
            cluster.await_state("serving")
            self.assertEqual(self.short(cluster), first)

    def test_a_client_that_is_gone_frees_its_slots(self):
        with harness.Cluster() as cluster:
            running = self.start_long(cluster, 3)
            for process in running:
                process.kill()
                process.communicate()
            cluster.await_true(lambda: self.slots_used(cluster) == 0, "free slots", seconds=SOON_SECONDS)
            self.assertEqual(cluster.status()["running"], 0)
            self.short(cluster)

    def test_a_full_queue_is_refused_with_the_limit(self):
        limits = {"running_max": 2, "waiting_max": 2}
        with harness.Cluster(limits=limits, pipeline={"mode": "sequential"}) as cluster:
            running = self.start_long(cluster, 2)
            waiting = [cluster.popen("generate", *ENDLESS, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL) for _ in range(2)]
            cluster.await_true(lambda: cluster.status()["waiting"] == 2, "a full queue")
            refused = cluster.lamina("generate", *ENDLESS)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("the queue is full: 2", refused.stderr)
            for process in running + waiting:
                process.terminate()
                process.communicate()

    def test_a_memory_node_too_small_for_one_request_says_how_much_it_needs(self):
        with harness.Cluster(memory_nodes=1, capacity="1MiB", wait=False) as cluster:
            self.assertEqual(cluster.processes["m0"].wait(harness.START_SECONDS), 1)
            log = cluster.log("m0")
            self.assertIn("room for 45 tokens", log)
            self.assertIn("8192", log)

    def test_a_port_in_use_is_named(self):
        with harness.Cluster() as cluster:
            other = harness.run("--cluster", cluster.file, "--set",
                                f"coordinator.listen={cluster.server}", program="lamina-coordinator")
            self.assertEqual(other.returncode, 1)
            self.assertIn(cluster.server, other.stderr)
            self.short(cluster)

    def test_a_second_node_of_a_name_is_refused(self):
        with harness.Cluster() as cluster:
            other = harness.run("--cluster", cluster.file, "--name", "m0", "--coordinator",
                                cluster.server, program="lamina-memory")
            self.assertEqual(other.returncode, 1)
            self.assertIn("already part of this cluster", other.stderr)
            self.short(cluster)

    def test_nodes_may_come_before_the_coordinator(self):
        with harness.Cluster() as cluster:
            first = self.short(cluster)
            cluster.kill("coordinator")
            time.sleep(0.5)
            cluster.start("coordinator")
            cluster.await_state("serving")
            self.assertEqual(self.short(cluster), first)


if __name__ == "__main__":
    unittest.main()

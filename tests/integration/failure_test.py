# SPDX-License-Identifier: Apache-2.0
"""What happens when processes die, stop, or ask for too much: clear errors, nothing lost, serving goes on."""

import json
import signal
import subprocess
import threading
import time
import unittest

import harness

PROMPT = ["--prompt", "Once upon a time", "--ignore-eos"]
# For requests that never get to their end: long enough for the fastest machine.
ENDLESS = [*PROMPT, "--max-tokens", "8000"]
# What an endless answer is compared with.
WANTED = [*PROMPT, "--max-tokens", "120"]
CHARACTERS_ON_THE_WAY = 400
SOON_SECONDS = 60  # For what happens at once on a machine that may be busy.


class Answer:
    """An endless request whose text is read as it comes."""

    def __init__(self, cluster):
        self.process = cluster.popen("generate", *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.text = ""
        self.error = ""
        self._threads = [threading.Thread(target=self._read_text), threading.Thread(target=self._read_error)]
        for thread in self._threads:
            thread.start()

    def _read_text(self):
        for piece in iter(lambda: self.process.stdout.read(16), ""):
            self.text += piece

    def _read_error(self):
        self.error = self.process.stderr.read()

    def ended(self):
        return self.process.poll() is not None

    def wait(self, seconds):
        """The exit status; text and error are complete then."""
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(seconds)
        return code

    def end(self):
        self.process.kill()
        self.wait(SOON_SECONDS)
        self.process.stdout.close()
        self.process.stderr.close()


class FailureTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def start_endless(self, cluster, count):
        """Requests that are all running when this returns."""
        before = cluster.status().get("running", 0)
        answers = [Answer(cluster) for _ in range(count)]
        for answer in answers:
            self.addCleanup(answer.end)
        cluster.await_true(lambda: cluster.status().get("running", 0) >= before + count, "running requests")
        return answers

    def start_endless_on_both_nodes(self, cluster):
        """Where a request goes depends on the bandwidths that were measured: starts more if need be."""
        answers = self.start_endless(cluster, 4)
        while not all(self.slots_by_node(cluster)[name] > 0 for name in ("m0", "m1")):
            self.assertLess(len(answers), 64, cluster.logs())
            answers += self.start_endless(cluster, 1)
        return answers

    def goes_on(self, cluster, answer, wanted):
        """Waits until the answer has ended (false), or has grown by more than was still on its way (true)."""
        enough = max(len(wanted), len(answer.text) + CHARACTERS_ON_THE_WAY)
        cluster.await_true(lambda: answer.ended() or len(answer.text) >= enough, "more of an answer",
                           seconds=harness.COMMAND_SECONDS)
        grown = len(answer.text) >= enough
        text = answer.text.rstrip("\n")  # A failed command ends its line.
        length = min(len(wanted), len(text))
        harness.require_same_answer(self, text[:length], wanted[:length])
        return grown

    def wanted(self, cluster):
        result = cluster.lamina("generate", *WANTED)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.rstrip("\n")

    def slots_by_node(self, cluster):
        return {node["name"]: node["slots_used"] for node in cluster.status()["nodes"]}

    def slots_used(self, cluster):
        return sum(self.slots_by_node(cluster).values())

    def short(self, cluster):
        result = cluster.lamina("generate", "--prompt", "The capital of France is", "--max-tokens", "4",
                                "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["token_ids"]

    def test_a_killed_memory_node_takes_no_request_with_it(self):
        with harness.Cluster() as cluster:
            wanted = self.wanted(cluster)
            answers = self.start_endless_on_both_nodes(cluster)
            cluster.kill("m0")
            cluster.await_true(lambda: "without m0" in cluster.status()["state"], "the loss of m0")
            for answer in answers:
                self.assertTrue(self.goes_on(cluster, answer, wanted), answer.error)
                answer.end()
            first = self.short(cluster)  # Served by the node that is left.
            cluster.start("m0")
            cluster.await_state("serving")
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_killed_compute_node_ends_requests_at_once_and_serves_again_when_back(self):
        with harness.Cluster() as cluster:
            first = self.short(cluster)
            answers = self.start_endless(cluster, 2)
            cluster.kill("c0")
            for answer in answers:
                self.assertEqual(answer.wait(SOON_SECONDS), 1)
                self.assertIn("c0", answer.error)
            refused = cluster.lamina("generate", "--prompt", "Hello", "--max-tokens", "1")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("waiting for c0", refused.stderr)
            cluster.start("c0")
            cluster.await_state("serving")
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_killed_replica_takes_no_request_with_it(self):
        two = [{"name": "c0"}, {"name": "c1"}]
        with harness.Cluster(compute=two) as cluster:
            first = self.short(cluster)
            wanted = self.wanted(cluster)
            answers = self.start_endless(cluster, 3)
            cluster.kill("c1")
            cluster.await_true(lambda: "without c1" in cluster.status()["state"], "the loss of c1")
            for answer in answers:
                self.assertTrue(self.goes_on(cluster, answer, wanted), answer.error)
                answer.end()
            cluster.start("c1")
            cluster.await_state("serving")
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_killed_prefill_node_takes_no_request_with_it(self):
        nodes = [{"name": "c0"}, {"name": "p0", "role": "prefill"}]
        with harness.Cluster(compute=nodes, prefill={"mode": "dedicated", "chunk_tokens": 64}) as cluster:
            first = self.short(cluster)
            wanted = self.wanted(cluster)
            answers = self.start_endless(cluster, 2)
            cluster.await_true(lambda: all(answer.text for answer in answers), "text of all")
            # A prompt of about 1300 tokens, on its way.
            long = cluster.popen("generate", "--prompt", " ".join(f"Item {i} of the list." for i in range(150)),
                                 "--max-tokens", "4", "--ignore-eos", "--json", stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
            self.addCleanup(long.communicate)
            self.addCleanup(long.kill)
            cluster.await_true(lambda: cluster.status()["running"] > 2 or long.poll() is not None, "a prompt on p0")
            cluster.kill("p0")
            cluster.await_true(lambda: "without p0" in cluster.status()["state"], "the loss of p0")
            status = cluster.status()
            self.assertIn("no prefill node is there", status["prefill"])
            self.assertIn("no prefill node is there", " ".join(status["warnings"]))
            for answer in answers:
                self.assertTrue(self.goes_on(cluster, answer, wanted), answer.error)
                answer.end()
            cluster.start("p0")
            cluster.await_state("serving")
            self.assertEqual(cluster.status()["prefill"], "dedicated: p0")
            out, error = long.communicate(timeout=harness.COMMAND_SECONDS)
            self.assertEqual(long.returncode, 0, error)
            self.assertEqual(len(json.loads(out)["token_ids"]), 4)
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_killed_stage_takes_its_replica_out_and_no_request_with_it(self):
        compute = [{"name": "c0", "replica": "r0", "stage": 0, "layers": "0-2"},
                   {"name": "c1", "replica": "r0", "stage": 1, "layers": "3-5"}, {"name": "c2"}]
        with harness.Cluster(compute=compute) as cluster:
            first = self.short(cluster)
            wanted = self.wanted(cluster)
            answers = self.start_endless(cluster, 2)
            cluster.kill("c1")
            cluster.await_true(lambda: "c0 waits for the other nodes" in cluster.status()["state"],
                               "the loss of c1")
            for answer in answers:
                self.assertTrue(self.goes_on(cluster, answer, wanted), answer.error)
                answer.end()
            cluster.start("c1")
            cluster.await_state("serving")
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_stopped_node_is_taken_for_dead_and_comes_back(self):
        with harness.Cluster() as cluster:
            first = self.short(cluster)
            cluster.processes["m1"].send_signal(signal.SIGSTOP)
            try:
                cluster.await_true(lambda: "without m1" in cluster.status()["state"], "the loss of m1")
                harness.require_same_answer(self, self.short(cluster), first)
            finally:
                cluster.processes["m1"].send_signal(signal.SIGCONT)
            cluster.await_state("serving")
            harness.require_same_answer(self, self.short(cluster), first)

    def test_a_client_that_is_gone_frees_its_slots(self):
        with harness.Cluster() as cluster:
            for answer in self.start_endless(cluster, 3):
                answer.end()
            cluster.await_true(lambda: self.slots_used(cluster) == 0, "free slots", seconds=SOON_SECONDS)
            self.assertEqual(cluster.status()["running"], 0)
            self.short(cluster)

    def test_a_full_queue_is_refused_with_the_limit(self):
        limits = {"running_max": 2, "waiting_max": 2}
        with harness.Cluster(limits=limits, pipeline={"mode": "sequential"}) as cluster:
            answers = self.start_endless(cluster, 2)
            waiting = [cluster.popen("generate", *ENDLESS, stdout=subprocess.DEVNULL,
                                     stderr=subprocess.DEVNULL) for _ in range(2)]
            cluster.await_true(lambda: cluster.status()["waiting"] == 2, "a full queue")
            refused = cluster.lamina("generate", *ENDLESS)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("the queue is full: 2", refused.stderr)
            for process in waiting:
                process.terminate()
                process.communicate()
            for answer in answers:
                answer.end()

    def test_a_memory_node_too_small_for_one_request_says_how_much_it_needs(self):
        with harness.Cluster(model=harness.MODEL, memory_nodes=1, capacity="1MiB", wait=False) as cluster:
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
            harness.require_same_answer(self, self.short(cluster), first)


if __name__ == "__main__":
    unittest.main()

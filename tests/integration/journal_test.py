#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that is killed and comes back goes on with the requests of its journal (coordinator.journal)."""

import http.client
import json
import os
import stat
import threading
import unittest

import harness

MODEL = "smollm2-135m-instruct"
PROMPT = "Once upon a time"
TOKENS = 160
FIRST_EVENTS = 12  # So many have come when the coordinator is killed.
WAYS = {"greedy": {"temperature": 0}, "sampled": {"temperature": 0.9, "seed": 7, "logprobs": 2}}


class StreamedAnswer:
    """A streamed completion over HTTP, read by a thread of its own."""

    def __init__(self, cluster, **keys):
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, **keys}
        self.events = []
        self.error = None
        self._connection = http.client.HTTPConnection(cluster.gateway, timeout=harness.COMMAND_SECONDS)
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        try:
            for line in self._connection.getresponse():
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    self.events.append(json.loads(line[len(b"data: "):]))
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.error = error

    def join(self):
        self._thread.join(harness.COMMAND_SECONDS)
        self._connection.close()

    def choices(self):
        return [event["choices"][0] for event in self.events if event.get("choices")]

    def text(self):
        return "".join(choice["text"] for choice in self.choices())

    def logprobs(self):
        return [value for choice in self.choices() if choice.get("logprobs")
                for value in choice["logprobs"]["token_logprobs"]]

    def finish(self):
        return self.choices()[-1]["finish_reason"] if self.choices() else None


class JournalTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def cluster_of(self, journal=True):
        cluster = harness.Cluster(model=harness.MODEL, gateway={"listen": "127.0.0.1:0"})
        self.path = cluster.directory / "journal"
        if journal:
            cluster.overrides += ["--set", f"coordinator.journal={self.path}"]
        cluster.__enter__()
        self.addCleanup(cluster.__exit__)
        return cluster

    def start(self, cluster, **keys):
        answer = StreamedAnswer(cluster, **keys)
        self.addCleanup(answer.join)
        return answer

    def await_first_events(self, cluster, answers):
        cluster.await_true(lambda: all(len(answer.events) >= FIRST_EVENTS for answer in answers), "first events")

    def test_answers_go_on_as_if_nothing_had_happened(self):
        cluster = self.cluster_of()
        wanted = {}
        for name, keys in WAYS.items():
            undisturbed = self.start(cluster, **keys)
            undisturbed.join()
            self.assertEqual(undisturbed.finish(), "length", undisturbed.events[-1:])
            wanted[name] = undisturbed

        answers = {name: self.start(cluster, **keys) for name, keys in WAYS.items()}
        self.await_first_events(cluster, answers.values())
        cluster.kill("coordinator")
        before = {name: len(answer.events) for name, answer in answers.items()}
        cluster.start("coordinator")
        for name, answer in answers.items():
            answer.join()
            self.assertIsNone(answer.error)
            self.assertLess(before[name], TOKENS, "the answer was over before the coordinator was")
            self.assertEqual(answer.finish(), "length", cluster.logs())
            harness.require_same_answer(self, answer.text(), wanted[name].text(), name)
            harness.require_same_answer(self, answer.logprobs(), wanted[name].logprobs(), name)

        self.assertEqual(stat.S_IMODE(os.stat(self.path).st_mode), 0o600)
        self.assertIn("2 requests of the coordinator before go on", cluster.log("coordinator"))
        cluster.await_true(lambda: cluster.status()["running"] == 0, "the end of both")

    def test_killed_twice_it_still_goes_on(self):
        cluster = self.cluster_of()
        undisturbed = self.start(cluster, temperature=0)
        undisturbed.join()
        answer = self.start(cluster, temperature=0)
        self.await_first_events(cluster, [answer])
        for _ in range(2):
            cluster.kill("coordinator")
            events = len(answer.events)
            cluster.start("coordinator")
            cluster.await_true(lambda: len(answer.events) > events + 5 or answer.finish() is not None, "more of the answer")
        answer.join()
        harness.require_same_answer(self, answer.text(), undisturbed.text())

    def test_without_a_journal_the_answer_breaks_off_with_an_error(self):
        cluster = self.cluster_of(journal=False)
        answer = self.start(cluster, temperature=0)
        self.await_first_events(cluster, [answer])
        cluster.kill("coordinator")
        answer.join()
        self.assertIn("error", answer.events[-1])
        cluster.start("coordinator")
        cluster.await_state("serving")
        self.assertFalse(self.path.exists())

    def test_several_choices_end_with_the_coordinator(self):
        cluster = self.cluster_of()
        answer = self.start(cluster, n=2, temperature=0.9, seed=7)
        self.await_first_events(cluster, [answer])
        cluster.kill("coordinator")
        answer.join()
        self.assertIn("error", answer.events[-1])
        cluster.start("coordinator")
        cluster.await_state("serving")
        self.assertNotIn("go on once", cluster.log("coordinator"))

    def test_a_file_that_cannot_be_written_is_named_at_the_start(self):
        with harness.Cluster(wait=False) as cluster:
            other = harness.run("--cluster", cluster.file, "--set", "coordinator.listen=127.0.0.1:0", "--set",
                                "coordinator.journal=/nonexistent/journal", program="lamina-coordinator")
            self.assertEqual(other.returncode, 1)
            self.assertIn("coordinator.journal", other.stderr)
            self.assertIn("/nonexistent/journal", other.stderr)


if __name__ == "__main__":
    unittest.main()

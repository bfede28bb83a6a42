#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that is killed and comes back goes on with the requests of its journal (coordinator.journal)."""

import http.client
import json
import os
import stat
import subprocess
import threading
import time
import unittest

import harness

MODEL = "smollm2-135m-instruct"
PROMPT = "Once upon a time"
TOKENS = 160
FIRST_EVENTS = 12  # So many have come when the coordinator is killed,
FIRST_BYTES = 40  # or so much text of a command.
SAMPLED = ("--temperature", "0.9", "--seed", "7", "--ignore-eos", "--max-tokens", str(TOKENS))
NOTE = "lamina: the coordinator is gone; its journal has what runs"
SCORED = [100 + i * 7 % 1000 for i in range(300)]  # Each a decode step.
ECHOED = [100 + i * 7 % 1000 for i in range(3000)]
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

    def text(self, index=0):
        return "".join(choice["text"] for choice in self.choices() if choice["index"] == index)

    def logprobs(self):
        return [value for choice in self.choices() if choice.get("logprobs")
                for value in choice["logprobs"]["token_logprobs"]]

    def finish(self):
        return self.choices()[-1]["finish_reason"] if self.choices() else None


class RunningCommand:
    """A `lamina` command; what it prints is read by a thread of its own."""

    def __init__(self, cluster, *arguments, stdin=""):
        self.printed = b""
        self.error = ""
        self._command = cluster.popen(*arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._command.stdin.write(stdin)
        self._command.stdin.close()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while piece := os.read(self._command.stdout.fileno(), 4096):
            self.printed += piece
        self.error = self._command.stderr.read()

    def runs(self):
        return self._command.poll() is None

    def join(self):
        """Its exit status."""
        try:
            status = self._command.wait(harness.COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._command.kill()
            status = self._command.wait()
        self._thread.join()
        self._command.stdout.close()
        self._command.stderr.close()
        return status


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

    def test_several_choices_go_on(self):
        cluster = self.cluster_of()
        several = {"n": 2, "temperature": 0.9, "seed": 7}
        undisturbed = self.start(cluster, **several)
        undisturbed.join()
        answer = self.start(cluster, **several)
        self.await_first_events(cluster, [answer])
        cluster.kill("coordinator")
        cluster.start("coordinator")
        answer.join()
        self.assertIsNone(answer.error)
        for index in range(2):
            harness.require_same_answer(self, answer.text(index), undisturbed.text(index), f"choice {index}")
        self.assertNotEqual(answer.text(0), answer.text(1))
        ends = [choice["index"] for choice in answer.choices() if choice["finish_reason"]]
        self.assertEqual(sorted(ends), [0, 1], cluster.logs())
        self.assertIn("1 requests of the coordinator before go on", cluster.log("coordinator"))

    def await_running(self, cluster, has_ended):
        """Waits until a request runs and is in the file, or has ended."""
        cluster.await_true(lambda: cluster.status()["running"] > 0 or has_ended(), "the request")
        time.sleep(0.2)  # The file follows.

    def check_begins_anew(self, *arguments):
        """Kills the coordinator before there is anything of a command's answer, and starts it again."""
        cluster = self.cluster_of()
        undisturbed = cluster.lamina(*arguments)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        command = RunningCommand(cluster, *arguments)
        self.await_running(cluster, lambda: not command.runs())
        cluster.kill("coordinator")
        self.assertTrue(command.runs(), "the answer was over before the coordinator was")
        cluster.start("coordinator")
        status = command.join()
        self.assertEqual(status, 0, command.error + cluster.logs())
        self.assertEqual(command.error.count(NOTE), 1, command.error)
        self.assertIn("1 requests of the coordinator before go on", cluster.log("coordinator"))
        harness.require_same_answer(self, command.printed.decode(), undisturbed.stdout)

    def test_a_beam_search_begins_anew(self):
        self.check_begins_anew("generate", PROMPT, "--beam-width", "2", "--ignore-eos", "--max-tokens", str(TOKENS))

    def test_a_score_begins_anew(self):
        self.check_begins_anew("score", "--tokens", ",".join(map(str, SCORED)), "--decode-from", "1", "--json")

    def test_the_score_of_a_prompt_over_http_begins_anew(self):
        cluster = self.cluster_of()
        echo = {"prompt": ECHOED, "echo": True, "logprobs": 1, "max_tokens": 2, "temperature": 0}
        undisturbed = self.start(cluster, **echo)
        undisturbed.join()
        self.assertEqual(undisturbed.finish(), "length", undisturbed.events[-1:])
        answer = self.start(cluster, **echo)
        self.await_running(cluster, lambda: answer.events)
        cluster.kill("coordinator")
        self.assertEqual(answer.events, [], "the score was over before the coordinator was")
        cluster.start("coordinator")
        answer.join()
        self.assertIsNone(answer.error)
        self.assertIn("1 requests of the coordinator before go on", cluster.log("coordinator"))
        self.assertEqual(answer.finish(), "length", cluster.logs())
        harness.require_same_answer(self, answer.text(), undisturbed.text())
        harness.require_same_answer(self, answer.logprobs(), undisturbed.logprobs())

    def test_without_a_journal_a_score_ends_at_once(self):
        cluster = self.cluster_of(journal=False)
        command = RunningCommand(cluster, "score", "--tokens", ",".join(map(str, SCORED)), "--decode-from", "1")
        self.await_running(cluster, lambda: not command.runs())
        cluster.kill("coordinator")
        self.assertEqual(command.join(), 1)
        self.assertNotIn(NOTE, command.error)
        self.assertIn("lamina: error: ", command.error)

    def disturb(self, cluster, command):
        """Kills the coordinator once the command has printed some of its answer, and starts it again."""
        cluster.await_true(lambda: len(command.printed) >= FIRST_BYTES or not command.runs(), "text of the command")
        self.assertTrue(command.runs(), command.error)
        cluster.kill("coordinator")
        self.assertTrue(command.runs(), "the answer was over before the coordinator was")
        cluster.start("coordinator")
        status = command.join()
        self.assertEqual(status, 0, command.error + cluster.logs())
        self.assertEqual(command.error.count(NOTE), 1, command.error)

    def test_generate_goes_on(self):
        cluster = self.cluster_of()
        arguments = ("generate", PROMPT, *SAMPLED)
        undisturbed = cluster.lamina(*arguments)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        command = RunningCommand(cluster, *arguments)
        self.disturb(cluster, command)
        harness.require_same_answer(self, command.printed.decode(), undisturbed.stdout)

    def test_a_conversation_goes_on(self):
        cluster = self.cluster_of()
        question = "Tell me a long story.\n"
        undisturbed = cluster.lamina("chat", *SAMPLED, stdin=question)
        self.assertEqual(undisturbed.returncode, 0, undisturbed.stderr)
        command = RunningCommand(cluster, "chat", *SAMPLED, stdin=question)
        self.disturb(cluster, command)
        harness.require_same_answer(self, command.printed.decode(), undisturbed.stdout)

    def test_a_batch_goes_on(self):
        cluster = self.cluster_of()
        requests = cluster.directory / "requests.jsonl"
        requests.write_text("".join(
            json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions",
                        "body": {"model": MODEL, "prompt": f"{PROMPT} a {name}", "max_tokens": TOKENS,
                                 "temperature": 0.9, "seed": 7, "n": 2}}) + "\n"
            for name in ("king", "frog")))

        def texts(path):
            results = harness.json_lines(path.read_text())
            return {result["custom_id"]: [choice["text"] for choice in result["response"]["body"]["choices"]]
                    for result in results}

        undisturbed, disturbed = cluster.directory / "undisturbed.jsonl", cluster.directory / "disturbed.jsonl"
        first = cluster.lamina("batch", "--input", str(requests), "--output", str(undisturbed))
        self.assertEqual(first.returncode, 0, first.stderr)
        begun = cluster.status()["tokens_generated"]
        command = RunningCommand(cluster, "batch", "--input", str(requests), "--output", str(disturbed))
        cluster.await_true(lambda: cluster.status()["tokens_generated"] >= begun + 4 or not command.runs(), "first tokens")
        cluster.kill("coordinator")
        self.assertTrue(command.runs(), "the answers were over before the coordinator was")
        cluster.start("coordinator")
        self.assertEqual(command.join(), 0, command.error + cluster.logs())
        self.assertEqual(command.error.count(NOTE), 1, command.error)
        harness.require_same_answer(self, texts(disturbed), texts(undisturbed))

    def test_without_a_journal_a_command_ends_at_once(self):
        cluster = self.cluster_of(journal=False)
        command = RunningCommand(cluster, "generate", PROMPT, *SAMPLED)
        cluster.await_true(lambda: len(command.printed) >= FIRST_BYTES, "text of the command")
        cluster.kill("coordinator")
        killed = time.monotonic()
        self.assertEqual(command.join(), 1)
        self.assertLess(time.monotonic() - killed, 15, "it waited for a coordinator")
        self.assertNotIn(NOTE, command.error)
        self.assertIn("lamina: error: ", command.error)

    def test_a_file_that_cannot_be_written_is_named_at_the_start(self):
        with harness.Cluster(wait=False) as cluster:
            other = harness.run("--cluster", cluster.file, "--set", "coordinator.listen=127.0.0.1:0", "--set",
                                "coordinator.journal=/nonexistent/journal", program="lamina-coordinator")
            self.assertEqual(other.returncode, 1)
            self.assertIn("coordinator.journal", other.stderr)
            self.assertIn("/nonexistent/journal", other.stderr)


if __name__ == "__main__":
    unittest.main()

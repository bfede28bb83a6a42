#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real cluster that serves the quick start's model: the command against real daemons."""

import errno
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import unittest

from harness import COMMAND_SECONDS, Cluster, json_lines, require_model


class WithoutFile(Cluster):
    """Daemons that read no cluster file: each key is a --set."""

    def configuration(self):
        keys = json.loads(self.file.read_text())
        return [word for key, value in keys.items() for word in ("--set", f"{key}={json.dumps(value)}")]


class SettingsTest(unittest.TestCase):
    def test_a_cluster_serves_from_settings_alone(self):
        require_model(self)
        with WithoutFile(memory_nodes=1, gateway={"listen": "127.0.0.1:0"}) as cluster:
            result = cluster.lamina("generate", "--prompt", "Dogs", "--max-tokens", "4", "--ignore-eos", "--json")
            self.assertEqual(result.returncode, 0, result.stderr + cluster.logs())
            self.assertEqual(json_lines(result.stdout)[0]["completion_tokens"], 4)


class ServingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_status_names_every_node"))
        cls.cluster = Cluster(memory_nodes=2)
        cls.cluster.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def ok(self, *arguments, **keys):
        result = self.cluster.lamina(*arguments, **keys)
        self.assertEqual(result.returncode, 0, result.stderr + self.cluster.logs())
        return result.stdout

    def test_status_names_every_node(self):
        status = json.loads(self.ok("status", "--json"))
        self.assertEqual(status["state"], "serving")
        nodes = {node["name"]: node for node in status["nodes"]}
        for name in ("c0", "m0", "m1"):
            self.assertEqual(nodes[name]["state"], "ready")
            self.assertEqual(nodes[name]["windows"], "host memory")
        self.assertGreater(nodes["m0"]["slots_total"], 0)
        self.assertIn("windows: host memory: c0, m0, m1\n", self.ok("status"))

    def test_generate_writes_one_line_per_choice(self):
        lines = json_lines(self.ok("generate", "--prompt", "The capital of France is", "--n", "2",
                                   "--max-tokens", "8", "--logprobs", "2", "--json"))
        self.assertEqual(sorted(line["index"] for line in lines), [0, 1])
        for line in lines:
            self.assertLessEqual(line["completion_tokens"], 8)
            self.assertEqual(len(line["token_ids"]), line["completion_tokens"])
            self.assertEqual(len(line["logprobs"]), line["completion_tokens"])
            self.assertIn(line["finish_reason"], ("stop", "length"))
        self.assertEqual(lines[0]["text"], lines[1]["text"], "greedy choices are alike")

    def test_people_and_programs_get_the_same_text(self):
        arguments = ["generate", "--prompt", "Once upon a time", "--max-tokens", "12"]
        human = self.ok(*arguments)
        self.assertEqual(human, json_lines(self.ok(*arguments, "--json"))[0]["text"] + "\n")

    def test_the_same_seed_gives_the_same_text(self):
        arguments = ["generate", "--prompt", "Dogs", "--temperature", "1", "--seed", "5",
                     "--max-tokens", "12"]
        self.assertEqual(self.ok(*arguments), self.ok(*arguments))

    def test_a_chat_is_rendered_with_the_models_template(self):
        # SmolLM2's template puts a system message in front where there is none.
        own = json_lines(self.ok("generate", "--chat", "--prompt", "Hi", "--max-tokens", "4", "--json"))
        text = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
                "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
        written = json_lines(self.ok("generate", "--prompt", text, "--max-tokens", "4", "--json"))
        self.assertEqual(own[0]["text"], written[0]["text"])
        self.assertEqual(own[0]["prompt_tokens"], written[0]["prompt_tokens"])

    def test_top_draws_pictures_of_eighty_columns(self):
        view = self.ok("top", "--frames", "2", "--interval", "50ms")
        self.assertEqual(view.count("epoch"), 2)
        self.assertIn("c0", view)
        self.assertLessEqual(max(map(len, view.splitlines())), 80)
        self.assertNotIn("\033", view)
        frames = json_lines(self.ok("top", "--frames", "2", "--interval", "50ms", "--json"))
        self.assertEqual([frame["state"] for frame in frames], ["serving"] * 2)
        self.assertEqual(self.cluster.lamina("top", "--interval", "soon").returncode, 2)

    def test_top_fits_a_small_terminal_and_q_leaves_it(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 40, 0, 0))
        before = termios.tcgetattr(theirs)
        process = self.cluster.popen("top", "--interval", "50ms", stdin=theirs, stdout=theirs, stderr=theirs)
        seen = b""
        while seen.count(b"epoch") < 2:
            seen += os.read(ours, 4096)
        os.write(ours, b"q")
        while process.poll() is None:  # What is still written must be read.
            if select.select([ours], [], [], 0.05)[0]:
                seen += os.read(ours, 4096)
        self.assertEqual(process.returncode, 0)
        self.assertEqual(termios.tcgetattr(theirs), before)
        os.close(theirs)
        picture = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", seen.decode().split("\x1b[H")[1])
        lines = picture.splitlines()
        self.assertLessEqual(max(map(len, lines)), 40, lines)
        self.assertLessEqual(len(lines), 8)
        self.assertIn("more lines", lines[-2])
        self.assertIn("tokens/s ", lines[-1])

    def test_top_that_is_ended_leaves_the_terminal_as_it_was(self):
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        self.addCleanup(os.close, theirs)
        before = termios.tcgetattr(theirs)
        process = self.cluster.popen("top", "--interval", "50ms", stdin=theirs, stdout=theirs, stderr=theirs)
        seen = b""
        while b"epoch" not in seen:
            seen += os.read(ours, 4096)
        self.assertNotEqual(termios.tcgetattr(theirs), before)
        process.terminate()
        while process.poll() is None:  # What is still written must be read.
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 4096)
        self.assertEqual(process.returncode, -signal.SIGTERM)
        self.assertEqual(termios.tcgetattr(theirs), before)

    def on_a_terminal(self, *arguments):
        """What a command that reports to a file writes to a terminal, as errors."""
        ours, theirs = pty.openpty()
        self.addCleanup(os.close, ours)
        process = self.cluster.popen(*arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # The other end is closed.
                break
            if not piece:
                break
            seen += piece
        self.assertEqual(process.wait(COMMAND_SECONDS), 0, seen)
        return seen.decode()

    def assert_progress(self, of_one_report, *arguments):
        """Reports on the way say what is done and how long the rest will take; to a pipe there are none."""
        reports = self.on_a_terminal(*arguments).split("\r")
        self.assertGreater(sum(re.search(of_one_report, report) is not None for report in reports), 1, reports)
        self.assertTrue(any(re.search(of_one_report + r",? +[0-9]+ s left", report) for report in reports), reports)
        piped = self.cluster.lamina(*arguments)
        self.assertEqual(piped.returncode, 0, piped.stderr)
        self.assertNotRegex(piped.stderr, of_one_report)

    def test_bench_and_batch_say_on_a_terminal_how_far_they_are(self):
        self.assert_progress(r"[0-9]+/12 finished, 0 failed, [0-9]+ in flight, [0-9.]+ tokens/s",
                             "bench", "--requests", "12", "--input-tokens", "16", "--output-tokens", "32")
        given = self.cluster.directory / "many.jsonl"
        given.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                                             "body": {"prompt": "Once", "temperature": 0, "max_tokens": 64}}) + "\n" for i in range(8)))
        results = self.cluster.directory / "many_results.jsonl"
        batch = ["batch", "--input", str(given), "--output", str(results), "--concurrency", "1"]
        self.assert_progress(r"\[#+\.*\] [1-8]/8  [0-9.]+ tokens/s", *batch)
        self.assertEqual(len(json_lines(results.read_text())), 8)

    def test_a_batch_goes_on_where_it_stopped(self):
        def request(name, **body):
            return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
                    "body": {"messages": [{"role": "user", "content": f"Say {name}."}],
                             "temperature": 0, "max_tokens": 4, **body}}

        requests = [request("one"), request("two", n=2), request("three", bogus=1), request("four")]
        given = self.cluster.directory / "requests.jsonl"
        given.write_text("".join(json.dumps(r) + "\n" for r in requests))
        results = self.cluster.directory / "results.jsonl"
        arguments = ["batch", "--input", str(given), "--output", str(results), "--json"]
        first = json.loads(self.ok(*arguments))
        self.assertEqual((first["results"], first["refused"], first["resumed"]), (4, 1, 0))
        lines = {line["custom_id"]: line for line in json_lines(results.read_text())}
        self.assertEqual(set(lines), {"one", "two", "three", "four"})
        self.assertEqual(lines["three"]["response"]["status_code"], 400)
        self.assertIn("bogus", lines["three"]["response"]["body"]["error"]["message"])
        self.assertEqual(len(lines["two"]["response"]["body"]["choices"]), 2)
        body = lines["one"]["response"]["body"]
        alone = json_lines(self.ok("generate", "--chat", "--prompt", "Say one.", "--max-tokens", "4",
                                   "--temperature", "0", "--json"))[0]
        self.assertEqual(body["choices"][0]["message"]["content"], alone["text"])
        self.assertEqual(body["usage"]["prompt_tokens"], alone["prompt_tokens"])
        # Cut off within a line, as by a crash: that request is asked again, the others are not.
        whole = results.read_text().splitlines(keepends=True)
        results.write_text("".join(whole[:3]) + whole[3][:20])
        second = json.loads(self.ok(*arguments))
        self.assertEqual((second["results"], second["resumed"]), (1, 3))
        self.assertEqual(len(json_lines(results.read_text())), 4)

    def test_tokens_there_and_back(self):
        tokens = self.ok("tokenize", "--prompt", "Hello, world")
        self.assertEqual(self.ok("detokenize", "--tokens", "-", stdin=tokens), "Hello, world\n")

    def test_text_is_printed_whole_also_behind_a_zero(self):
        given = self.cluster.directory / "zero.txt"
        given.write_bytes(b"one\0two")
        tokens = self.ok("tokenize", "--prompt-file", str(given))
        self.assertEqual(self.ok("detokenize", "--tokens", "-", stdin=tokens), "one\0two\n")

    def test_score_gives_one_logprob_fewer_than_tokens(self):
        score = json.loads(self.ok("score", "--prompt", "The sky is blue today", "--json"))
        self.assertEqual(len(score["logprobs"]), len(score["tokens"]) - 1)
        self.assertAlmostEqual(score["nll_sum"], -sum(score["logprobs"]), places=2)

    def test_chat_answers_each_piped_line(self):
        answers = json_lines(self.ok("chat", "--max-tokens", "8", "--json",
                                     stdin="Name a river.\n/reset\nName a river.\n/quit\nno\n"))
        self.assertEqual(len(answers), 2)
        self.assertEqual(answers[0]["text"], answers[1]["text"], "/reset forgets the first")

    def test_ctrl_c_ends_a_piped_chat_between_its_answers(self):
        chat = self.cluster.popen("chat", "--max-tokens", "2", "--json", stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        chat.stdin.write("Hi\n")
        chat.stdin.flush()
        json.loads(chat.stdout.readline())

        def ends():
            # The answer is out before it counts as ended: a signal in between changes nothing, a later one does.
            chat.send_signal(signal.SIGINT)
            return chat.poll() is not None

        self.addCleanup(chat.kill)
        self.cluster.await_true(ends, "the chat to end", seconds=30)
        output, _ = chat.communicate(timeout=60)
        self.assertEqual(chat.returncode, 130)
        self.assertEqual(output, "")

    def test_bench_counts_what_it_asked_for(self):
        report = json.loads(self.ok("bench", "--concurrency", "4", "--requests", "8",
                                    "--input-tokens", "16", "--output-tokens", "4", "--seed", "3", "--prompt-seed", "9", "--json"))
        self.assertEqual((report["requests"], report["failed"]), (8, 0))
        self.assertEqual((report["load"]["seed"], report["load"]["prompt_seed"]), (3, 9))
        self.assertEqual((report["input_tokens"], report["output_tokens"]), (128, 32))
        self.assertGreater(report["ttft_ms"]["p50"], 0)
        self.assertIn("m1", [node["name"] for node in report["nodes"]])

    def test_ctrl_c_ends_a_bench_that_still_prepares_its_dialogues(self):
        path = self.cluster.directory / "dialogues.fifo"
        os.mkfifo(path)
        process = self.cluster.popen("bench", "--sharegpt", str(path), "--requests", "20000", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        opened = []

        def reads():  # Its handler is set by then.
            try:
                opened.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError as error:
                self.assertEqual(error.errno, errno.ENXIO)
            return opened

        self.cluster.await_true(reads, "a reader of the dialogues")
        process.send_signal(signal.SIGINT)
        os.set_blocking(opened[0], True)
        turns = {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "So."}]}
        with os.fdopen(opened[0], "w", encoding="utf-8") as dialogues:
            json.dump([turns] * 20000, dialogues)
        output, errors = process.communicate(timeout=COMMAND_SECONDS)
        self.assertEqual((process.returncode, output), (130, ""), errors)

    def test_an_empty_prompt_is_refused_and_the_cluster_goes_on(self):
        result = self.cluster.lamina("generate", "--prompt", "")
        self.assertEqual(result.returncode, 1)
        self.assertIn("empty", result.stderr)
        self.test_status_names_every_node()

    def test_a_prompt_beyond_the_limit_is_refused_with_both_numbers(self):
        result = self.cluster.lamina("generate", "--tokens", ",".join(["5"] * 9000))
        self.assertEqual(result.returncode, 1)
        self.assertIn("9000", result.stderr)
        self.assertIn("8192", result.stderr)

    def test_an_answer_that_cannot_be_written_is_cancelled(self):
        before = json.loads(self.ok("status", "--json"))["tokens_generated"]
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = self.cluster.popen("generate", "--prompt", "Once upon a time", "--ignore-eos",
                                         "--max-tokens", "4000", stdout=full, stderr=subprocess.PIPE)
            errors = process.communicate(timeout=COMMAND_SECONDS)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("the output could not be written", errors)
        self.cluster.await_true(lambda: self.cluster.status()["running"] == 0, "the end of the request")
        self.assertLess(self.cluster.status()["tokens_generated"] - before, 4000)

    def test_top_ends_when_nobody_reads_on(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = self.cluster.popen("top", "--interval", "50ms", stdout=full, stderr=subprocess.PIPE)
            self.addCleanup(process.kill)
            errors = process.communicate(timeout=COMMAND_SECONDS)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("the output could not be written", errors)

    def test_ctrl_c_cancels_the_request_and_exits_with_130(self):
        process = self.cluster.popen("generate", "--prompt", "Once", "--max-tokens", "6000",
                                     "--ignore-eos", stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE)
        self.assertNotEqual(process.stdout.read(1), "", "it streams")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)
        self.cluster.await_true(self.nothing_held, "the request's slots to be free", seconds=20)

    def test_cancel_ends_the_request_of_an_id_that_logs_have(self):
        process = self.cluster.popen("generate", "--prompt", "Once", "--max-tokens", "6000",
                                     "--ignore-eos", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertNotEqual(process.stdout.read(1), "", "it streams")
        admitted = []

        def known():
            admitted[:] = re.findall(r" admitted request_id \S+ id (\S+) ", self.cluster.log("coordinator"))
            return admitted and self.cluster.status()["running"] == 1

        self.cluster.await_true(known, "its line in the log")
        self.assertEqual(self.ok("cancel", admitted[-1]), f"cancelled {admitted[-1]}\n")
        error = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("cancelled by its id", error)
        self.cluster.await_true(self.nothing_held, "the request's slots to be free", seconds=20)
        gone = self.cluster.lamina("cancel", admitted[-1])
        self.assertEqual(gone.returncode, 1)
        self.assertIn(f"no request {admitted[-1]} is running or waiting", gone.stderr)

    def test_status_waits_for_a_cluster_that_serves(self):
        self.assertIn("serving", self.ok("status", "--wait", "60s"))

    def nothing_held(self):
        status = self.cluster.status()
        return status["running"] == 0 and all(node["slots_used"] == 0 for node in status["nodes"])


class FaultTest(unittest.TestCase):
    def test_a_killed_memory_node_ends_its_requests_at_once(self):
        require_model(self)
        with Cluster(memory_nodes=1) as cluster:
            process = cluster.popen("generate", "--prompt", "Once", "--max-tokens", "6000",
                                    "--ignore-eos", stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE)
            self.assertNotEqual(process.stdout.read(1), "")
            cluster.kill("m0")
            _, error = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 1, error)
            self.assertTrue(error.startswith("lamina: error: "), error)
            cluster.start("m0")
            cluster.await_state("serving")
            again = cluster.lamina("generate", "--prompt", "Once", "--max-tokens", "4")
            self.assertEqual(again.returncode, 0, again.stderr + cluster.logs())


if __name__ == "__main__":
    unittest.main()

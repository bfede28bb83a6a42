#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lamina command without a cluster: usage, messages, exit statuses, local commands."""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import BIN, MODEL, REPO, cluster_file, require_model, run, write_token

COMMANDS = ["generate", "chat", "score", "tokenize", "detokenize", "status", "explain", "top", "cancel", "node", "trace", "bench", "batch",
            "split", "inspect", "config", "plan", "simulate", "calibrate", "experiment", "doctor", "version", "completion", "help"]


def unused_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def blocks_interrupts(pid):
    """Whether the process takes Ctrl-C by itself, in a thread that waits for it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigBlk:"):
            return int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1 == 1
    return False


class UsageTest(unittest.TestCase):
    def assert_fails(self, result, status, *words):
        self.assertEqual(result.returncode, status, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertTrue(result.stderr.startswith("lamina: error: "), result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)

    def test_every_command_teaches_and_takes_json(self):
        main = run("--help")
        self.assertEqual(main.returncode, 0)
        for command in COMMANDS:
            self.assertIn(f"  {command} ", main.stdout)
            result = run(command, "--help")
            self.assertEqual(result.returncode, 0, command)
            self.assertIn("Examples:", result.stdout, command)
            if command != "chat":
                self.assertIn("--json", result.stdout, command)

    def test_help_has_one_style(self):
        main = run("--help").stdout
        listed = re.findall(r"^  ([a-z]+) +[A-Z]", main.partition("Subcommands:")[2], re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(COMMANDS))
        for command in COMMANDS:
            text = run(command, "--help").stdout
            flags = text.partition("Options:")[2].partition("Examples:")[0]
            for line in flags.splitlines():
                # A default stands in the words, never behind the value's name.
                self.assertNotRegex(line, r"Excludes:|^  --[a-z-]+ [A-Z][A-Z=:/]*=\S*[a-z0-9]", command)
                self.assertNotRegex(line, r"(?<!\()default:", command)
                self.assertNotRegex(line, r" (UINT|INT|FLOAT)\b", command)

    def test_help_is_that_of_the_command(self):
        self.assertEqual(run("help").stdout, run("--help").stdout)
        self.assertEqual(run("help", "generate").stdout, run("generate", "--help").stdout)
        self.assertIn("Examples:", json.loads(run("help", "top", "--json").stdout)["help"])
        self.assert_fails(run("help", "generat"), 2, "did you mean 'generate'?")

    def test_completion_knows_commands_and_flags(self):
        script = run("completion", "bash").stdout

        def completed(*words):
            source = (f"{script}\nCOMP_WORDS=(lamina {' '.join(words)}); COMP_CWORD={len(words)}\n"
                      "_lamina\nprintf '%s\\n' \"${COMPREPLY[@]}\"")
            return subprocess.run(["bash", "-c", source], capture_output=True, text=True, check=True).stdout.split()

        self.assertEqual(completed("gen"), ["generate"])
        self.assertEqual(completed("help", "det"), ["detokenize"])
        self.assertEqual(completed("generate", "--prompt"), ["--prompt", "--prompt-file"])
        self.assertEqual(completed("completion", "z"), ["zsh"])
        zsh = run("completion", "zsh").stdout
        self.assertTrue(zsh.startswith("#compdef lamina\n"))
        self.assertIn("'generate:Generate text for a prompt, streamed'", zsh)
        self.assertIn("'--prompt-file:", zsh)
        autoloaded = "if [[ $funcstack[1] == _lamina ]]; then\n  _lamina \"$@\"\nelse\n  compdef _lamina lamina\nfi\n"
        self.assertTrue(zsh.endswith(autoloaded), "a file of $fpath completes at the first TAB")
        self.assert_fails(run("completion", "fish"), 2, "neither bash nor zsh")

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^lamina \d+\.\d+\.\d+\n$")
        self.assertEqual("lamina " + json.loads(run("version", "--json").stdout)["version"] + "\n",
                         run("version").stdout)

    def test_wrong_usage_exits_with_2_and_names_the_nearest(self):
        self.assert_fails(run(), 2, "no command given")
        self.assert_fails(run("generat"), 2, "did you mean 'generate'?")
        self.assert_fails(run("generate", "--promt", "x"), 2, "'--promt'", "did you mean '--prompt'?",
                          "lamina generate --help")
        self.assert_fails(run("generate"), 2, "no prompt")
        self.assert_fails(run("generate", "--prompt", "x", "--tokens", "1"), 2, "more than one")
        self.assert_fails(run("generate", "x", "--tokens", "1"), 2, "more than one")
        self.assert_fails(run("generate", "x", "--prompt", "x"), 2, "--prompt")
        self.assert_fails(run("generate", "--tokens", "1", "--chat"), 2, "--chat")
        self.assert_fails(run("generate", "--prompt", "x", "--temperature", "-1"), 2, "--temperature")
        self.assert_fails(run("generate", "--prompt", "x", "--n", "129"), 2, "[1, 128]")
        self.assert_fails(run("generate", "--prompt", "x", "--max-tokens", "0"), 2, "--max-tokens")
        self.assert_fails(run("bench", "--rate", "1", "--concurrency", "2"), 2, "only one of")
        for flag in ("--requests", "--input-tokens", "--output-tokens"):
            self.assert_fails(run("bench", "--trace", "-", flag, "2"), 2, flag, "excludes", "--trace")
        for flag in ("--input-tokens", "--output-tokens"):
            self.assert_fails(run("bench", "--sharegpt", "f", flag, "2"), 2, flag, "excludes", "--sharegpt")
        self.assert_fails(run("score", "--prompt", "x", "--decode-from", "010x"), 2, "--decode-from", "whole number")
        self.assert_fails(run("score", "--prompt", "x", "--decode-from", "-1"), 2, "--decode-from", "whole number")
        self.assert_fails(run("cancel"), 2, "ID")
        self.assert_fails(run("status", "--wait", "soon"), 2, "--wait soon", "like 120s")
        self.assert_fails(run("detokenize"), 2, "--tokens")
        self.assert_fails(run("split"), 2, "MODEL")
        self.assert_fails(run("config"), 2, "--cluster")

    def test_no_color_leaves_a_terminal_plain(self):
        def error(no_color):
            ours, theirs = pty.openpty()
            self.addCleanup(os.close, ours)
            self.addCleanup(os.close, theirs)
            subprocess.run([BIN / "lamina", "bogus"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
                           env={**os.environ, "NO_COLOR": no_color}, timeout=60, check=False)
            return os.read(ours, 65536).decode()

        self.assertTrue(error("").startswith("\x1b[31mlamina: error:"))
        plain = error("1")
        self.assertTrue(plain.startswith("lamina: error: "), plain)
        self.assertNotIn("\x1b", plain)

    def test_bad_input_exits_with_1_and_names_it(self):
        self.assert_fails(run("generate", "--tokens", "1,x"), 2, "'x' is not a token id")
        self.assert_fails(run("generate", "--prompt-file", "/nonexistent/p"), 1, "/nonexistent/p")
        self.assert_fails(run("bench", "--trace", "/nonexistent/t", server=f"127.0.0.1:{unused_port()}"),
                          1, "not running")

    def test_output_that_cannot_be_written_is_a_failure(self):
        for arguments in (["version", "--json"], ["--help"],
                          ["config", "--cluster", str(REPO / "deploy/clusters/local.yaml")]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([str(BIN / "lamina"), *arguments], stdout=full, text=True,
                                        stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn("the output could not be written", result.stderr)

    def test_closed_streams_are_not_taken_for_others(self):
        result = subprocess.run(["bash", "-c", '"$0" generate --prompt - <&-', str(BIN / "lamina")],
                                capture_output=True, text=True, timeout=60)
        self.assert_fails(result, 1, "cannot read '-': Bad file descriptor")

    def test_an_address_without_a_port_is_refused(self):
        for server in ("host", ":7400", "host:", "host:x", "host:0", "host:65536"):
            self.assert_fails(run("status", server=server), 2, f"'{server}' is not an address")

    def test_server_that_is_not_running(self):
        server = f"127.0.0.1:{unused_port()}"
        for arguments in (["status"], ["status", "--wait", "1ms"], ["explain"], ["cancel", "x"], ["generate", "--prompt", "x"], ["chat"], ["bench"],
                          ["score", "--tokens", "1,2"], ["tokenize", "--prompt", "x"],
                          ["detokenize", "--tokens", "1"]):
            started = time.monotonic()
            result = run(*arguments, server=server)
            self.assert_fails(result, 1, f"server not running at {server}",
                              "deploy/cluster.sh up")
            self.assertLess(time.monotonic() - started, 30, "an answer at once, not a timeout")

    def test_results_of_a_batch_go_to_what_is_no_file_too(self):
        server = f"127.0.0.1:{unused_port()}"
        with tempfile.TemporaryDirectory() as folder:
            requests = Path(folder) / "requests.jsonl"
            requests.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
            batch = ["batch", "--input", str(requests), "--output"]
            self.assert_fails(run(*batch, "/dev/null", server=server), 1, "not running")
            self.assert_fails(run(*batch, folder, server=server), 1, folder, "Is a directory")

    def test_a_batch_may_be_large_and_one_at_a_time_writes(self):
        server = f"127.0.0.1:{unused_port()}"
        with tempfile.TemporaryDirectory() as folder:
            requests, results = Path(folder) / "requests.jsonl", Path(folder) / "results.jsonl"
            requests.write_text(" " * (70 << 20) + '\n{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
            batch = ["batch", "--input", str(requests), "--output", str(results)]
            self.assert_fails(run(*batch, server=server), 1, "not running")
            half = '{"id":"batch_req_a","cus'  # Of a line that another command writes just now.
            results.write_text(half)
            with open(results, encoding="ascii") as other:
                fcntl.flock(other, fcntl.LOCK_EX)
                self.assert_fails(run(*batch, server=server), 1, str(results), "another command writes there")
            self.assertEqual(results.read_text(), half)
            self.assert_fails(run(*batch, server=server), 1, "not running")
            self.assertEqual(results.read_text(), "")

    def test_the_environment_names_the_server_and_the_flag_wins(self):
        env = {"LAMINA_SERVER": f"127.0.0.1:{unused_port()}"}
        self.assert_fails(run("status", env=env), 1, env["LAMINA_SERVER"])
        flag = f"127.0.0.1:{unused_port()}"
        self.assert_fails(run("status", env=env, server=flag), 1, flag)

    def test_a_server_that_says_nothing_is_given_up(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            result = run("status", server=f"127.0.0.1:{port}", timeout=60)
        self.assert_fails(result, 1, f"127.0.0.1:{port}")

    def test_ctrl_c_exits_with_130(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            server = f"127.0.0.1:{silent.getsockname()[1]}"
            for arguments in (["status"], ["generate", "--prompt", "-"]):
                process = subprocess.Popen([str(BIN / "lamina"), *arguments, "--server", server],
                                           stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE)
                # Its handler is up once it sleeps in a system call of its own threads.
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline and not blocks_interrupts(process.pid):
                    time.sleep(0.01)
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=30)
                self.assertEqual(process.returncode, 130, arguments)


class DoctorTest(unittest.TestCase):
    def test_one_that_serves_at_all_addresses_says_what_another_host_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            token = write_token(f"{folder}/cluster.token", "the-secret-of-both-doctors")
            process = subprocess.Popen([str(BIN / "lamina"), "doctor", "--serve", "0.0.0.0:0", "--cluster-token-file", token],
                                       stdout=subprocess.PIPE, text=True)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.kill)
            line = process.stdout.readline()
        host = re.escape(socket.gethostname())
        self.assertRegex(line, rf"^serving at 0\.0\.0\.0:(\d+); .* --peer {host}:\1 --cluster-token-file {re.escape(token)}$")

    def test_a_secret_that_cannot_be_read_is_said(self):
        """Not only that the other doctor wants one."""
        missing = "/nonexistent/cluster.token"
        for more in ([], ["--only-peer"]):
            result = run("doctor", "--peer", f"127.0.0.1:{unused_port()}", "--cluster-token-file", missing, "--json", *more)
            findings = {finding["check"]: finding for finding in json.loads(result.stdout)}
            self.assertEqual((result.returncode, findings["secret"]["state"]), (1, "fail"), result.stdout)
            self.assertIn(missing, findings["secret"]["found"])


class DaemonTest(unittest.TestCase):
    def test_a_node_that_the_file_has_not_is_told_which_it_has(self):
        result = run("--cluster", REPO / "deploy/clusters/local.yaml", "--name", "m9", program="lamina-memory")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("no memory node named 'm9'; it has m0, m1", result.stderr)

    def test_a_port_that_the_system_picks_is_not_guessed(self):
        result = run("--cluster", REPO / "deploy/clusters/local.yaml", "--name", "m0", "--set",
                     "coordinator.listen=127.0.0.1:0", program="lamina-memory", timeout=30)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("--coordinator HOST:PORT", result.stderr)

    def test_an_address_without_a_port_is_refused(self):
        # Else the node would try it for ever.
        for address in ("localhost", "10.0.0.1:", "10.0.0.1:x", "::1", "10.0.0.1:0"):
            result = run("--cluster", REPO / "deploy/clusters/local.yaml", "--name", "m0", "--coordinator", address,
                         program="lamina-memory", timeout=30)
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(f"'{address}' is not an address like 127.0.0.1:7400", result.stderr)

    def test_closed_streams_stay_closed(self):
        # The first files of the process would be its standard streams.
        shell = ["bash", "-c", 'exec "$@" 1>&- 2>&-', "bash"]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.yaml"
            os.mkfifo(file)
            process = subprocess.Popen([*shell, str(BIN / "lamina-memory"), "--cluster", str(file), "--name", "m0"])
            self.addCleanup(process.kill)
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not blocks_interrupts(process.pid):
                time.sleep(0.01)
            streams = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in (1, 2)]
            process.terminate()
            process.wait(30)
        self.assertEqual(streams, ["/dev/null", "/dev/null"])

    def test_a_coordinator_without_a_port_is_refused(self):
        result = run("--cluster", REPO / "deploy/clusters/local.yaml", "--name", "m0", "--coordinator", "10.0.0.1",
                     program="lamina-memory", timeout=30)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("'10.0.0.1' is not an address like 127.0.0.1:7400", result.stderr)

    def test_one_that_still_starts_ends_when_asked(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.yaml"
            os.mkfifo(file)  # Nobody writes: reading it takes as long as the daemon lives.
            for daemon in ("coordinator", "compute", "memory", "gateway"):
                for number in (signal.SIGTERM, signal.SIGINT):
                    process = subprocess.Popen([str(BIN / f"lamina-{daemon}"), "--cluster", str(file),
                                                "--name", daemon], stderr=subprocess.PIPE, text=True)
                    self.addCleanup(process.kill)
                    deadline = time.monotonic() + 30
                    while time.monotonic() < deadline and not blocks_interrupts(process.pid):
                        time.sleep(0.01)
                    process.send_signal(number)
                    log = process.communicate(timeout=30)[1]
                    self.assertEqual(process.returncode, 0, log)
                    self.assertIn(f"signal {number.value} before it serves", log)

    def test_a_hangup_ends_no_daemon(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cluster.yaml"
            os.mkfifo(file)  # As above: it still starts.
            for daemon in ("coordinator", "compute", "memory", "gateway"):
                process = subprocess.Popen([str(BIN / f"lamina-{daemon}"), "--cluster", str(file),
                                            "--name", daemon], stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline and not blocks_interrupts(process.pid):
                    time.sleep(0.01)
                process.send_signal(signal.SIGHUP)
                process.send_signal(signal.SIGTERM)  # The one of the lower number is delivered first.
                log = process.communicate(timeout=30)[1]
                self.assertEqual(process.returncode, 0, log)
                self.assertIn("SIGHUP: nothing is read again", log)

    def test_the_coordinator_is_looked_for_where_it_advertises(self):
        with tempfile.TemporaryDirectory() as folder:
            for settings, found in ((["--set", "coordinator.advertise=127.0.0.2:7400"], "127.0.0.2:7400"), ([], "127.0.0.1:7400")):
                ready = Path(folder) / "ready"
                process = subprocess.Popen([str(BIN / "lamina-gateway"), "--cluster", str(REPO / "deploy/clusters/local.yaml"),
                                            "--set", "gateway.listen=127.0.0.1:0", "--set", "coordinator.listen=0.0.0.0:7400",
                                            *settings, "--ready-file", str(ready)], stderr=subprocess.PIPE, text=True)
                self.addCleanup(process.kill)
                deadline = time.monotonic() + 30
                while time.monotonic() < deadline and process.poll() is None and not ready.exists():
                    time.sleep(0.01)
                process.terminate()
                log = process.communicate(timeout=30)[1]
                self.assertIn(f" coordinator {found}\n", log)
                ready.unlink()


class ConfigTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.file = Path(directory.name) / "cluster.yaml"

    def config(self, text, *arguments):
        self.file.write_text(text)
        return run("config", "--cluster", self.file, *arguments)

    def test_lists_the_daemons_for_scripts(self):
        result = run("config", "--cluster", REPO / "deploy/clusters/local.yaml", "--list",
                     "--set", "gateway.cores=5-6")
        self.assertEqual(result.stdout, "coordinator coordinator 127.0.0.1 - 127.0.0.1:7400\n"
                                        "gateway gateway 127.0.0.1 5,6 127.0.0.1:8000\n"
                                        "compute c0 localhost 0 -\n"
                                        "memory m0 localhost 1 -\n"
                                        "memory m1 localhost 1 -\n")

    def test_prints_a_file_that_reads_back_as_the_same(self):
        first = self.config(cluster_file(), "--set", "pipeline.lanes=3")
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertIn("lanes: 3", first.stdout)
        self.assertEqual(self.config(first.stdout).stdout, first.stdout)

    def test_an_unknown_key_is_named_with_its_line(self):
        result = self.config("model: m\npolcy: attend_remote\n")
        self.assertEqual(result.returncode, 1)
        self.assertIn(f"{self.file}:2", result.stderr)
        self.assertIn("did you mean 'policy'?", result.stderr)

    def test_what_is_not_served_says_what_is(self):
        result = self.config(cluster_file(policy="fetch_heads", partition="token_range", fetch={"streaming_heads": "heads.json"}))
        self.assertEqual(result.returncode, 1)
        self.assertIn("it serves request, head and auto", result.stderr)

    def test_a_missing_file_is_named(self):
        result = run("config", "--cluster", "/nonexistent/c.yaml")
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nonexistent/c.yaml", result.stderr)


class ModelFilesTest(unittest.TestCase):
    def test_a_missing_model_is_named(self):
        for command in ("split", "inspect"):
            result = run(command, "/nonexistent/model.gguf")
            self.assertEqual(result.returncode, 1)
            self.assertIn("/nonexistent/model.gguf", result.stderr)

    def test_a_pipe_is_no_model_and_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = Path(folder) / "model.gguf"
            os.mkfifo(pipe)
            result = run("inspect", pipe, timeout=30)
            self.assertEqual(result.returncode, 1)
            self.assertIn("model.gguf is not a regular file", result.stderr)

    def test_what_is_no_model_is_refused(self):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(b"GGUF" + os.urandom(100))
            file.flush()
            for command in ("split", "inspect"):
                result = run(command, file.name)
                self.assertEqual(result.returncode, 1)
                self.assertTrue(result.stderr.startswith("lamina: error: "), result.stderr)

    def test_smollm2_is_cut_at_the_residual_stream(self):
        require_model(self)
        split = json.loads(run("split", MODEL, "--json").stdout)
        self.assertEqual((split["layers"], split["slices"]), (30, 31))
        self.assertEqual(len(split["context"]), 30)
        for cut in split["context"]:
            self.assertEqual(len(cut["edges"]), 1, "the residual stream alone")
            self.assertEqual(cut["bytes_per_token"], 576 * 4)
            self.assertEqual(cut["edges"][0]["bytes_per_token"], cut["bytes_per_token"])

    def test_smollm2_tokenizes_without_a_server(self):
        require_model(self)
        tokens = run("tokenize", "--model", MODEL, "--prompt", "Hello, world", "--json", "--pieces")
        self.assertEqual(tokens.returncode, 0, tokens.stderr)
        self.assertEqual(json.loads(tokens.stdout), {"tokens": [19556, 28, 905],
                                                     "pieces": ["Hello", ",", "\u0120world"]})

    def test_smollm2_is_described(self):
        require_model(self)
        info = json.loads(run("inspect", MODEL, "--json").stdout)
        self.assertEqual(info["architecture"], "llama")
        self.assertEqual([info[k] for k in ("layers", "width", "query_heads", "kv_heads", "head_dim",
                                            "vocabulary")], [30, 576, 9, 3, 64, 49152])
        self.assertEqual(info["kv_bytes_per_token"], 30 * 2 * 3 * 64 * 2)
        human = run("inspect", MODEL)
        self.assertIn("22.5 KiB per token", human.stdout)


if __name__ == "__main__":
    unittest.main()

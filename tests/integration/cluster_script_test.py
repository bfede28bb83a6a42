#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/cluster.sh with daemons that only pretend: what it says and leaves behind when they fail.

The pretenders are shell scripts in a folder of their own; `lamina config` is the real one.
"""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from harness import BIN, REPO, cluster_file

ASCII_ONLY = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # What programs write is UTF-8 there, too.
# Takes the real command for all but status, which says what the file `state` says; not to who would speak TLS.
LAMINA = """#!/bin/bash
if [[ $1 == status ]]; then
  [[ -f {dir}/state && -z ${{LAMINA_TLS_CA:-}} ]] || exit 1
  echo "{{\\"epoch\\":1,\\"state\\":\\"$(cat {dir}/state)\\",\\"model\\":\\"m\\"}}"
else
  exec {bin}/lamina "$@"
fi
"""

# Becomes ready and waits for SIGTERM; or does what the file `NAME.fault` says. What it says as it exits is not all UTF-8.
DAEMON = """#!/bin/bash
while (($#)); do
  case $1 in
    --name) name=$2 ;;
    --ready-file) ready=$2 ;;
  esac
  shift
done
echo "$name begins"
fault=$(cat {dir}/$name.fault 2> /dev/null)
if [[ $fault == exit ]]; then
  printf '%s: no such device, or it is called \\xe9\\n' "$name"
  exit 1
fi
if [[ $fault == deaf ]]; then
  trap '' TERM
else
  trap 'echo "$name ends"; exit 0' TERM
fi
[[ $fault == loads ]] && echo "2026-11-25 c0 loading weights 40% 12 s left"
[[ $fault == slow ]] || {{ cat {dir}/address 2> /dev/null || echo 127.0.0.1:7999; }} > "$ready"
while :; do sleep 0.05; done
"""

# The same of the gateway, whose /health is 503 while the file `unhealthy` is there.
GATEWAY = """#!/usr/bin/env python3
import http.server, os, pathlib, signal, sys
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked = pathlib.Path("{dir}/asked")
        asked.write_text(asked.read_text() + self.path if asked.exists() else self.path)
        self.send_response(503 if os.path.exists("{dir}/unhealthy") else 200)
        self.end_headers()
    def log_message(self, *_):
        pass
def end(*_):
    print("gateway ends", flush=True)
    os._exit(0)
print("gateway begins", flush=True)
signal.signal(signal.SIGTERM, end)
server = http.server.HTTPServer(("127.0.0.1", 0), Pages)
pathlib.Path(sys.argv[sys.argv.index("--ready-file") + 1]).write_text("127.0.0.1:%d" % server.server_port)
server.serve_forever()
"""


class ClusterScriptTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-script-")
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.state = self.directory / "run"
        self.bin = self.directory / "bin"
        self.bin.mkdir()
        for program in ("lamina-coordinator", "lamina-compute", "lamina-memory"):
            self.write(self.bin / program, DAEMON.format(dir=self.directory))
        self.write(self.bin / "lamina-gateway", GATEWAY.format(dir=self.directory))
        self.write(self.bin / "lamina", LAMINA.format(dir=self.directory, bin=BIN))
        self.model = self.directory / "model.gguf"
        self.model.write_text("")
        self.file = self.directory / "test.yaml"
        self.file.write_text(cluster_file(model="model.gguf"))
        (self.directory / "state").write_text("serving")
        self.addCleanup(self.script, "down", "--grace", "1")

    @staticmethod
    def write(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def command(self, *arguments, state=None, binaries=None):
        return [str(REPO / "deploy/cluster.sh"), *arguments, "--cluster", str(self.file),
                "--state", str(state or self.state), "--bin", str(binaries or self.bin)]

    def script(self, *arguments, state=None, binaries=None, **keys):
        keys = {"capture_output": True, "text": True, "cwd": self.directory, "timeout": 120, **keys}
        return subprocess.run(self.command(*arguments, state=state, binaries=binaries), **keys)

    def pids(self):
        return {path.stem: int(path.read_text()) for path in self.state.glob("*.pid")}

    @staticmethod
    def lives(pid):
        try:
            return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return False

    def test_up_starts_what_the_file_names_and_down_stops_it(self):
        result = self.script("up")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("serves at 127.0.0.1:7999", result.stderr)
        pids = self.pids()
        self.assertEqual(sorted(pids), ["c0", "coordinator", "m0", "m1"])
        self.assertTrue(all(self.lives(pid) for pid in pids.values()))

        result = self.script("down")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse(any(self.lives(pid) for pid in pids.values()))
        self.assertEqual(self.pids(), {})
        self.assertIn("m0 ends", (self.state / "m0.log").read_text(), "it was let drain")

    def test_the_ca_of_another_cluster_is_not_asked(self):
        result = self.script("up", "--wait", "20", env={**os.environ, "LAMINA_TLS_CA": "/nonexistent/of_another_cluster.pem"})
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_node_that_cannot_serve_is_not_waited_for(self):
        for state, shown in (("m1 failed: no room for its windows in /données", "m1"),
                             ("cannot serve: 4 memory nodes for 3 KV heads", "coordinator")):
            with self.subTest(state):
                (self.directory / "state").write_text(state)
                result = self.script("up", "--wait", "100", env=ASCII_ONLY)
                self.assertEqual(result.returncode, 1)
                self.assertIn(state, result.stderr)
                self.assertIn(f"end of {self.state}/{shown}.log", result.stderr)
                self.assertEqual(self.pids(), {}, "what it started is stopped")

    def test_the_model_is_found_from_here_and_handed_on_as_an_absolute_path(self):
        self.assertEqual(self.script("up").returncode, 0)
        self.assertIn(f"model: {self.model}\n", (self.state / "cluster.yaml").read_text())

    def test_files_of_the_coordinator_and_the_gateway_stay_where_they_were(self):
        """A restart that is typed in another folder finds the same journal."""
        self.file.write_text(cluster_file(model="model.gguf", chat_template="it's.jinja",
                                          coordinator={"listen": "127.0.0.1:0", "journal": "live/journal", "spans": "/dev/null"},
                                          gateway={"listen": "127.0.0.1:0", "api_keys_file": "link/../keys"}))
        self.assertEqual(self.script("up").returncode, 0)
        written = subprocess.check_output([str(BIN / "lamina"), "config", "--json", "--cluster", str(self.state / "cluster.yaml")])
        self.assertEqual(json.loads(written)["files"], {
            "chat_template": f"{self.directory}/it's.jinja", "coordinator.spans": "/dev/null",
            "coordinator.journal": f"{self.directory}/live/journal", "gateway.api_keys_file": f"{self.directory}/link/../keys"})

    def test_other_hosts_are_told_an_address_that_they_can_reach(self):
        self.file.write_text(cluster_file(
            model="model.gguf", transport="ucx", coordinator={"listen": "0.0.0.0:0"},
            memory=[{"name": "m0", "capacity": "256MiB", "host": "192.0.2.7"}]))
        (self.directory / "address").write_text("0.0.0.0:7999")

        result = self.script("up", "--no-ssh")

        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("serves at 127.0.0.1:7999", result.stderr)
        told = re.search(rf"on 192\.0\.2\.7, .* and of {self.state}/cluster\.token .* --cluster-token-file cluster\.token .*"
                         r" --coordinator (\S+):7999\n", result.stderr)
        self.assertIsNotNone(told, result.stderr)
        self.assertNotIn(told[1], ("0.0.0.0", "127.0.0.1", ""))

    def test_up_draws_a_secret_once_and_tells_it_nobody(self):
        result = self.script("up")
        self.assertEqual(result.returncode, 0, result.stderr)
        path = self.state / "cluster.token"
        token = path.read_text()
        self.assertRegex(token, "^[0-9a-f]{64}$")
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        self.assertIn(f"cluster_token_file: {path}\n", (self.state / "cluster.yaml").read_text())
        shown = [result.stdout + result.stderr, *(log.read_text() for log in self.state.glob("*.log"))]
        shown += [Path(f"/proc/{pid}/cmdline").read_text() for pid in self.pids().values()]
        self.assertFalse([text for text in shown if token in text])

        self.script("down")
        self.assertEqual(self.script("up").returncode, 0)
        self.assertEqual(path.read_text(), token)

    def test_up_takes_the_secret_that_the_cluster_file_names_and_draws_it_where_it_is_missing(self):
        own = self.directory / "own secret"
        result = self.script("up", "--set", "cluster_token_file=own secret")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(own.stat().st_mode & 0o777, 0o600)
        self.assertIn(f"cluster_token_file: {own}\n", (self.state / "cluster.yaml").read_text())
        self.assertFalse((self.state / "cluster.token").exists())

        self.script("down")
        own.write_text("one-that-was-there")
        result = self.script("up", "--set", f"cluster_token_file='{own}'")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(own.read_text(), "one-that-was-there")

    def test_up_twice_starts_nothing_twice_and_mends_what_has_died(self):
        self.script("up")
        pids = self.pids()
        again = self.script("up")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("up already", again.stderr)
        self.assertEqual(self.pids(), pids)

        os.kill(pids["m0"], signal.SIGKILL)
        mended = self.script("up")
        self.assertEqual(mended.returncode, 0, mended.stderr)
        self.assertNotEqual(self.pids()["m0"], pids["m0"])
        self.assertEqual(self.pids()["m1"], pids["m1"])

    def test_mending_that_fails_leaves_what_runs(self):
        self.script("up")
        pids = self.pids()
        os.kill(pids["m0"], signal.SIGKILL)
        (self.directory / "m0.fault").write_text("exit")
        (self.directory / "state").write_text("serving; without m0")
        result = self.script("up")
        self.assertEqual(result.returncode, 1)
        self.assertIn("m0: no such device", result.stderr)
        del pids["m0"]
        self.assertEqual(self.pids(), pids)
        self.assertTrue(all(self.lives(pid) for pid in pids.values()))

    def test_what_ends_a_waiting_up_ends_what_it_started(self):
        (self.directory / "state").write_text("waiting for m1")
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
            # Tests may run where an interrupt is ignored, which programs take over.
            up = subprocess.Popen(self.command("up"), cwd=self.directory, stderr=subprocess.PIPE,
                                  text=True, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
            lines = []
            while not any("waiting for m1" in line for line in lines):
                lines.append(up.stderr.readline())
                self.assertTrue(lines[-1], lines)
            pids = self.pids()
            self.assertEqual(len(pids), 4)
            up.send_signal(number)
            _, rest = up.communicate(timeout=60)
            self.assertEqual(up.returncode, status, rest)
            self.assertIn("interrupted", rest)
            self.assertFalse(any(self.lives(pid) for pid in pids.values()))
            self.assertEqual(self.pids(), {})

    def test_up_with_other_settings_wants_down_first(self):
        self.script("up")
        result = self.script("up", "--set", "pipeline.lanes=1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("other settings", result.stderr)
        self.assertEqual(self.script("down").returncode, 0)
        self.assertEqual(self.script("up", "--set", "pipeline.lanes=1").returncode, 0)

    def test_up_from_a_folder_with_other_files_says_which(self):
        self.file.write_text(cluster_file(model=self.model, coordinator={"listen": "127.0.0.1:0", "journal": "live/journal"}))
        self.assertEqual(self.script("up").returncode, 0)
        elsewhere = self.script("up", cwd="/")
        self.assertEqual(elsewhere.returncode, 1)
        self.assertIn(f"other settings (coordinator.journal: {self.directory}/live/journal there, /live/journal here; relative", elsewhere.stderr)
        self.assertEqual(self.script("up").returncode, 0, "it mends from where it was started")

    def test_memory_nodes_that_join_and_leave_need_no_down(self):
        def name_in_file(*names):
            self.file.write_text(cluster_file(model="model.gguf", memory=[{"name": name, "capacity": "256MiB"} for name in names]))

        self.script("up")
        before = self.pids()
        name_in_file("m0", "m1", "m2")
        added = self.script("up")
        self.assertEqual(added.returncode, 0, added.stderr)
        self.assertIn("m2 begins", self.script("logs", "m2").stdout)
        self.assertEqual({name: pid for name, pid in self.pids().items() if name != "m2"}, before)

        name_in_file("m1", "m2")
        early = self.script("up")
        self.assertEqual(early.returncode, 1)
        self.assertIn("m0: in the cluster file no more, and still running; `lamina node drain NAME`", early.stderr)
        os.kill(before["m0"], signal.SIGTERM)
        end = time.monotonic() + 60
        while self.lives(before["m0"]):
            self.assertLess(time.monotonic(), end, "m0 does not end")
            time.sleep(0.05)
        drained = self.script("up")
        self.assertEqual(drained.returncode, 0, drained.stderr)
        status = self.script("status").stdout
        self.assertNotIn("m0", status)
        self.assertIn(f"m2           pid {self.pids()['m2']}", status)

        self.file.write_text(cluster_file(model="model.gguf", memory=[{"name": "m1", "capacity": "128MiB"}]))
        self.assertIn("other settings", self.script("up").stderr, "m1 would have another capacity")

    def test_a_daemon_that_ends_is_named_with_its_log_and_nothing_is_left(self):
        for name in ("m1", "coordinator"):
            (self.directory / "state").write_text("waiting for m1")
            fault = self.directory / f"{name}.fault"
            fault.write_text("exit")
            result = self.script("up")
            fault.unlink()
            self.assertEqual(result.returncode, 1, name)
            self.assertIn(f"{name} ended", result.stderr)
            self.assertIn(f"{name}: no such device, or it is called \\xe9", result.stderr)
            self.assertEqual(self.pids(), {}, "what was started is stopped")

    def test_a_cluster_that_does_not_serve_in_time_says_what_it_waits_for(self):
        (self.directory / "state").write_text("waiting for m1")
        result = self.script("up", "--wait", "1")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, "does not serve after 1 s: waiting for m1\n")
        self.assertIn("m1 begins", result.stderr)
        self.assertEqual(self.pids(), {})

    def test_up_tells_how_far_a_node_is_with_its_weights(self):
        (self.directory / "state").write_text("waiting for c0, m1")
        (self.directory / "c0.fault").write_text("loads")
        result = self.script("up", "--wait", "4")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr.count("c0 loads weights: 40% 12 s left"), 1, result.stderr)
        self.assertNotIn("m1 loads", result.stderr)
        self.assertIn("does not serve after 4 s: waiting for c0, m1; weights are still loaded by c0 (40% 12 s left): "
                      "give it more time with --wait 600", result.stderr)

    def test_a_coordinator_that_is_not_ready_in_time(self):
        (self.directory / "coordinator.fault").write_text("slow")
        result = self.script("up", "--wait", "1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("the coordinator is not ready after 1 s", result.stderr)

    def test_all_ports_in_use_are_named(self):
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = [taken.getsockname()[1] for taken in (one, other)]
            taken = ("--set", f"coordinator.listen=127.0.0.1:{ports[0]}", "--set", f"memory.m1.http=127.0.0.1:{ports[1]}")
            result = self.script("up", *taken)
            self.assertIn(f"port {ports[0]} of 127.0.0.1 and port {ports[1]} of 127.0.0.1 are in use by another program; stop it, or take others: "
                          "--set coordinator.listen=127.0.0.1:0 --set memory.m1.http=127.0.0.1:0", result.stderr)
            self.assertEqual((result.returncode, self.pids()), (1, {}))

    def test_the_gateway_is_started_and_its_address_told(self):
        result = self.script("up", "--set", "gateway.listen=127.0.0.1:0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, "OpenAI's API is at http://127.0.0.1:[0-9]+/v1")
        self.assertIn("gateway begins", (self.state / "gateway.log").read_text())
        self.assertEqual(self.script("down").returncode, 0)
        self.assertIn("gateway ends", (self.state / "gateway.log").read_text())

    def test_up_and_restart_return_when_the_gateway_serves(self):
        self.assertEqual(self.script("up", "--set", "gateway.listen=127.0.0.1:0").returncode, 0)
        self.assertIn("/health", (self.directory / "asked").read_text())
        (self.directory / "unhealthy").touch()
        for action in (["restart", "coordinator"], ["up", "--set", "gateway.listen=127.0.0.1:0"]):
            result = self.script(*action, "--wait", "1")
            self.assertEqual(result.returncode, 1, action)
            self.assertIn("the gateway's /health is not 200 after 1 s", result.stderr)
        (self.directory / "unhealthy").unlink()
        self.assertEqual(self.script("restart", "coordinator").returncode, 0)

    def test_a_cluster_that_serves_without_a_node_is_left_so(self):
        (self.directory / "state").write_text("serving; m0 failed: capacity of 9 TiB: no such memory")
        result = self.script("up")
        self.assertEqual(result.returncode, 1)
        self.assertIn("serves at 127.0.0.1:7999 without m0", result.stderr)
        self.assertIn("no such memory", result.stderr)
        self.assertEqual(sorted(self.pids()), ["c0", "coordinator", "m1"])
        self.assertTrue(all(self.lives(pid) for pid in self.pids().values()))

    def test_advice_names_the_flags_that_were_given(self):
        self.script("up")
        result = self.script("up", "--set", "pipeline.lanes=1")
        for flag in (f"--cluster {self.file}", f"--state {self.state}", f"--bin {self.bin}"):
            self.assertIn(flag, result.stderr)
        self.assertNotIn("--set", result.stderr, "down needs none")

    def test_advice_to_start_a_cluster_has_its_ssh_and_its_overrides(self):
        result = self.script("status", "--ssh", "ssh -F my.conf", "--set", "pipeline.lanes=1")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"deploy/cluster\.sh up --cluster .* --ssh 'ssh -F my\.conf' --set pipeline\.lanes=1")

    def test_what_runs_on_is_said_with_keep_going(self):
        (self.directory / "state").write_text("waiting for m1")
        (self.directory / "m1.fault").write_text("exit")
        result = self.script("up", "--keep-going")
        self.assertEqual(result.returncode, 1)
        self.assertIn("runs on (--keep-going)", result.stderr)
        self.assertTrue(self.lives(self.pids()["m0"]))

    def test_a_port_of_the_gateway_that_is_in_use_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = self.script("up", "--set", f"gateway.listen=127.0.0.1:{port}")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--set gateway.listen=127.0.0.1:0", result.stderr)

    def test_a_missing_model_says_how_to_get_it(self):
        self.file.write_text(cluster_file(model="modèle.gguf"))
        result = self.script("up", env=ASCII_ONLY)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the model 'modèle.gguf' is not there", result.stderr)
        self.assertIn("deploy/get_model.sh", result.stderr)

    def test_a_wrong_key_is_named(self):
        result = self.script("up", "--set", "polcy=x")
        self.assertEqual(result.returncode, 1)
        self.assertIn("did you mean 'policy'?", result.stderr)

    def test_down_kills_what_does_not_listen(self):
        (self.directory / "m0.fault").write_text("deaf")
        self.script("up")
        pid = self.pids()["m0"]
        result = self.script("down", "--grace", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("m0", result.stderr)
        self.assertFalse(self.lives(pid))

    def test_down_leaves_processes_alone_that_are_not_ours(self):
        self.script("up")
        stranger = subprocess.Popen(["sleep", "60"])
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)
        old = self.pids()["m0"]
        (self.state / "m0.pid").write_text(str(stranger.pid))
        self.assertEqual(self.script("down", "--grace", "1").returncode, 0)
        self.assertIsNone(stranger.poll())
        os.kill(old, signal.SIGKILL)  # Ours, which the script could not know of any more.

    def test_down_needs_no_programs(self):
        self.script("up")
        pids = self.pids()
        result = self.script("down", "--grace", "1", binaries=self.directory / "nowhere")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse(any(self.lives(pid) for pid in pids.values()))

    def test_the_state_folder_may_be_written_in_any_way(self):
        (self.directory / "real").mkdir()
        (self.directory / "link").symlink_to("real")
        self.script("up", state=self.directory / "link/run")
        for way in ("link/run/", "./real/../real/run", self.directory / "real/run"):
            self.assertEqual(self.script("status", state=way).returncode, 0, way)
        pids = [int(path.read_text()) for path in (self.directory / "real/run").glob("*.pid")]
        self.assertEqual(self.script("down", "--grace", "1", state="real/run/").returncode, 0)
        self.assertFalse(any(self.lives(pid) for pid in pids))

    def test_restart_needs_no_other_daemon_that_is_gone(self):
        self.script("up")
        before = self.pids()
        os.kill(before["m1"], signal.SIGKILL)
        (self.directory / "state").write_text("serving; without m1")
        result = self.script("restart", "m0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotEqual(self.pids()["m0"], before["m0"])
        missing = self.script("restart", "m1", "--wait", "1")
        self.assertEqual(missing.returncode, 1, "it does not serve with m1")
        self.assertIn("serving; without m1", missing.stderr)
        self.assertTrue(self.lives(before["c0"]))

    def test_a_restart_that_fails_leaves_the_others(self):
        self.script("up")
        before = self.pids()
        (self.directory / "m0.fault").write_text("exit")
        (self.directory / "state").write_text("serving; without m0")
        result = self.script("restart", "m0")
        self.assertEqual(result.returncode, 1)
        self.assertIn("m0 ended", result.stderr)
        self.assertTrue(all(self.lives(before[name]) for name in ("coordinator", "c0", "m1")))

    def test_restart_replaces_one_daemon(self):
        self.script("up")
        before = self.pids()
        result = self.script("restart", "m1")
        self.assertEqual(result.returncode, 0, result.stderr)
        after = self.pids()
        self.assertNotEqual(before["m1"], after["m1"])
        self.assertEqual(before["m0"], after["m0"])
        self.assertIn("m1 ends", (self.state / "m1.log.previous").read_text())

        wrong = self.script("restart", "m9")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("coordinator c0 m0 m1", wrong.stderr)

    def test_logs_and_status(self):
        self.assertEqual(self.script("logs").returncode, 1)
        self.script("up")
        self.assertIn("m0 begins", self.script("logs", "m0").stdout)
        status = self.script("status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn(f"m1           pid {self.pids()['m1']}", status.stdout)

    def test_what_reads_the_output_may_go(self):
        self.script("up")
        for action in (["logs", "m0"], ["logs"], ["status"], ["--help"]):
            read, write = os.pipe()
            os.close(read)
            result = self.script(*action, capture_output=False, stdout=write, stderr=subprocess.PIPE)
            os.close(write)
            self.assertEqual((result.returncode, result.stderr), (128 + signal.SIGPIPE, ""), action)

    def test_a_full_disk_leaves_what_was_written_before(self):
        self.script("up")
        before = (self.state / "cluster.yaml").read_text()
        self.file.write_text(cluster_file(model="model.gguf", memory=[{"name": f"m{i}", "capacity": "256MiB"} for i in range(3)]))
        full = self.script("up", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        self.assertEqual(full.returncode, 1, full.stderr)
        self.assertIn(f"{self.state}/cluster.yaml: File too large; pid files and logs go to {self.state}", full.stderr)
        self.assertEqual((self.state / "cluster.yaml").read_text(), before)
        self.assertEqual(list(self.state.glob("*.partial")), [])

    def test_a_daemon_whose_pid_cannot_be_written_down_is_ended(self):
        self.state.mkdir()
        (self.state / "m1.pid").symlink_to("/nonexistent/m1.pid")
        (self.directory / "state").write_text("waiting for m1")
        result = self.script("up")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, "m1 cannot be started: localhost: .*m1.pid")
        self.assertNotIn("could not be stopped", result.stderr)
        self.assertEqual(self.pids(), {}, "nor do the others run on")

        end, file = time.monotonic() + 60, str(self.state / "cluster.yaml").encode()
        while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if file in self.command_line(path).split(b"\0")]:
            self.assertLess(time.monotonic(), end, left)
            time.sleep(0.05)

    @staticmethod
    def command_line(path):
        try:
            return path.read_bytes()
        except OSError:  # It has ended.
            return b""

    def test_what_the_system_refuses_is_said_with_what_to_do(self):
        def fails(*arguments, says, status=1, **keys):
            result = self.script(*arguments, **keys)
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertIn(says, result.stderr)
            self.assertNotIn("Traceback", result.stderr)

        nowhere = self.directory / "nowhere"
        self.assertEqual(self.script("up").returncode, 0)
        for action in (["up"], ["status"], ["logs"], ["restart", "m0"], ["doctor"]):
            fails(*action, says=f"{nowhere}/lamina is not there; build it", binaries=nowhere)
        self.assertEqual(self.script("down").returncode, 0)

        fails("up", says=f"Not a directory; pid files and logs go to {self.model}: let this user write there", state=self.model)
        fails("status", "--ssh", "ssh -F 'my", says="--ssh or LAMINA_SSH is no command line: ssh -F 'my (No closing quotation)", status=2)
        fails("status", "--ssh", " ", says="--ssh or LAMINA_SSH is empty", status=2)
        self.write(self.bin / "lamina", "#!/bin/sh\necho '{\"yaml\": \"\"}'\n")
        fails("up", says=f"{self.bin}/lamina is of another version than this script; build it")

    def test_nothing_is_restarted_in_a_cluster_that_is_down(self):
        self.assertEqual(self.script("up").returncode, 0)
        before = self.pids()
        os.kill(before["coordinator"], signal.SIGKILL)
        orphan = self.script("restart", "m0", "--wait", "1")
        self.assertEqual(orphan.returncode, 1)
        self.assertRegex(orphan.stderr, "the coordinator does not run, .*restart coordinator --cluster")
        self.assertTrue(self.lives(before["m0"]), "it is left as it is")
        self.assertEqual(self.script("restart", "coordinator").returncode, 0)

        self.assertEqual(self.script("down").returncode, 0)
        for name in ("m0", "coordinator"):
            down = self.script("restart", name, "--wait", "1")
            self.assertEqual(down.returncode, 1)
            self.assertRegex(down.stderr, "the cluster is down, .*cluster.sh up --cluster")
        self.assertEqual(self.pids(), {})

    def test_a_log_may_be_cut_while_its_daemon_writes(self):
        self.assertEqual(self.script("up").returncode, 0)
        log = self.state / "m0.log"
        end = time.monotonic() + 60
        while log.read_text() != "m0 begins\n":
            self.assertLess(time.monotonic(), end, log.read_text())
            time.sleep(0.05)
        os.truncate(log, 0)
        self.assertEqual(self.script("down").returncode, 0)
        self.assertEqual(log.read_text(), "m0 ends\n")

    def test_wrong_usage_exits_with_2(self):
        for arguments in ([], ["upp"], ["up", "--sett", "x"], ["up", "--wait", "soon"],
                          ["restart"], ["up", "m0"], ["down", "m0"], ["status", "m0"],
                          ["restart", "m0", "--set", "memory.m0.capacity=1GiB"]):
            if arguments == ["restart"]:
                self.script("up")
            result = self.script(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("--help", result.stderr)
        self.assertTrue(all(self.lives(pid) for pid in self.pids().values()), "down m0 is not down")


if __name__ == "__main__":
    unittest.main()

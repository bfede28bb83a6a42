#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/systemd: the units are right, by systemd-analyze; and daemons speak the notify protocol, to a socket of ours."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import harness
from machines import leave_out_without

sys.path.insert(0, str(harness.REPO / "tests/hostile"))
from frozen_thread_test import FrozenThread, data_thread  # noqa: E402

UNITS = sorted((harness.REPO / "deploy/systemd").glob("*.service"))
# `systemd-analyze security`, times ten; docs/clusters.md states them.
SCORES = {"lamina-compute@.service": 22, "lamina-coordinator@.service": 20, "lamina-gateway@.service": 20,
          "lamina-memory@.service": 22}
WAIT_SECONDS = 60


class UnitsTest(unittest.TestCase):

    def test_units_are_what_systemd_takes(self):
        self.assertEqual({unit.name for unit in UNITS}, set(SCORES))
        with tempfile.TemporaryDirectory() as folder:
            for unit in UNITS:
                copy = Path(folder) / unit.name
                copy.write_text(unit.read_text().replace("/opt/lamina/bin", str(harness.BIN)))
                done = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)], capture_output=True,
                                      text=True)
                self.assertEqual((done.returncode, done.stderr), (0, ""), unit.name)
                copy.write_text(copy.read_text().replace("WatchdogSec", "WatchdocSec"))
                wrong = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)], capture_output=True,
                                       text=True)
                self.assertIn("WatchdocSec", wrong.stderr, "the test can fail")

    def test_exposure_is_as_stated(self):
        for unit in UNITS:
            done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", f"--threshold={SCORES[unit.name]}",
                                   str(unit)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout[-400:])

    def test_the_coordinator_has_a_folder_for_its_spans(self):
        """That of the example in docs/clusters.md; all else is read-only, or goes with the unit."""
        example = re.search("coordinator.spans: (/[a-z/]+)/[a-z]+[.]jsonl", (harness.REPO / "docs/clusters.md").read_text())[1]
        for unit in UNITS:
            text = unit.read_text()
            self.assertIn("\nProtectSystem=strict\n", text, unit.name)
            folders = ["/var/lib/" + name for name in re.findall("(?m)^StateDirectory=(.*)$", text)]
            self.assertEqual(folders, [example] if "coordinator" in unit.name else [], unit.name)

    def test_stopping_takes_longer_than_draining(self):
        for unit in UNITS:
            seconds = int(re.search("TimeoutStopSec=([0-9]+)", unit.read_text())[1])
            self.assertGreater(seconds, 30, "drain_seconds of a cluster file that says nothing")


class NotifiedCluster(harness.Cluster):
    """Each daemon with a socket of its own to tell, and with a log that it takes for the journal."""

    def __init__(self, **keys):
        self.sockets = {}
        super().__init__(**keys)

    def prefix(self, name):
        if not name:
            return []
        path = self.directory / f"{name}.notify"
        path.unlink(missing_ok=True)
        self.sockets[name] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sockets[name].bind(str(path))
        self.sockets[name].settimeout(WAIT_SECONDS)
        log = self.directory / f"{name}.log"
        log.touch()
        stream = f"{log.stat().st_dev}:{log.stat().st_ino}"
        return ["env", f"NOTIFY_SOCKET={path}", "WATCHDOG_USEC=600000", f"JOURNAL_STREAM={stream}"]

    def await_word(self, name, pattern):
        """Reads until a datagram matches; returns those before it."""
        before = []
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            before.append(self.sockets[name].recv(4096).decode())
            if re.fullmatch(pattern, before[-1]):
                return before
        raise AssertionError(f"{name} never said {pattern}: {before}")


class NotifyTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_daemons_tell_what_they_do(self):
        with NotifiedCluster(gateway={"listen": "127.0.0.1:0"}) as cluster:
            self.addCleanup(lambda: [s.close() for s in cluster.sockets.values()])
            for name in cluster.roles:
                cluster.await_word(name, "READY=1")
                cluster.await_word(name, "WATCHDOG=1")
            cluster.await_word("coordinator", r"STATUS=serving; epoch 1; 0 of [0-9]+ slots; 0 running, 0 waiting")

            for name in cluster.roles:
                self.assertNotRegex(cluster.log(name), r"[0-9]{2}:[0-9]{2}:[0-9]{2}", "the journal has times of its own")

            # One whose data thread stands still is not said to live, though all else of it does.
            try:
                frozen = FrozenThread(data_thread(cluster.processes["m0"]))
            except OSError as refused:
                print(f"the watchdog was not tried: {refused}")
            else:
                self.addCleanup(frozen.thaw)
                time.sleep(0.5)
                self.sockets_empty(cluster, "m0")
                with self.assertRaises(TimeoutError):
                    cluster.sockets["m0"].settimeout(1)
                    cluster.sockets["m0"].recv(100)
                frozen.thaw()
                cluster.sockets["m0"].settimeout(WAIT_SECONDS)
                cluster.await_word("m0", "WATCHDOG=1")

            for name in ("m0", "coordinator"):
                cluster.processes[name].terminate()
                cluster.await_word(name, "STOPPING=1")
                self.assertEqual(cluster.processes[name].wait(WAIT_SECONDS), 0, cluster.log(name))

    @staticmethod
    def sockets_empty(cluster, name):
        cluster.sockets[name].setblocking(False)
        try:
            while cluster.sockets[name].recv(4096):
                pass
        except BlockingIOError:
            pass
        cluster.sockets[name].setblocking(True)


if __name__ == "__main__":
    os.environ.setdefault("SYSTEMD_PAGER", "")
    leave_out_without("systemd-analyze")
    unittest.main()

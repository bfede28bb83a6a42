#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_serve.py with real daemons: on the CPU, where it serves, and where there is no device."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BIN, COMMAND_SECONDS, MODEL, REPO, require_model

NO_DEVICE = "cuda:63"  # On no machine that runs tests.


class GpuServeTest(unittest.TestCase):
    def setUp(self):
        require_model(self)
        temporary = tempfile.TemporaryDirectory(prefix="lamina-serve-")
        self.addCleanup(temporary.cleanup)
        self.out = Path(temporary.name) / "serve.json"

    def serve(self, *arguments):
        command = [sys.executable, "-B", REPO / "deploy/gpu_serve.py", "--out", self.out, "--bin", BIN,
                   "--limit", COMMAND_SECONDS, "--stretch", 0.2, "--capacity", "256MiB", *arguments]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=2 * COMMAND_SECONDS)

    def test_it_serves_asks_and_measures_in_each_part(self):
        done = self.serve("--device", "cpu", "--points", "1x16,2x32")

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = json.loads(self.out.read_text())
        self.assertEqual((results["model"], results["device"]), (MODEL.name, "cpu"))
        self.assertEqual([part["part"] for part in results["parts"]], ["pool", "device", "mixed", "both"])
        self.assertEqual([part["memory"] for part in results["parts"]], [[], ["cpu"], ["cpu"], ["cpu", "cpu"]])
        for part in results["parts"]:
            self.assertIn("Paris", part["answer"])
            self.assertEqual([(p["rows"], p["context"]) for p in part["points"]], [(1, 16), (2, 32)])
            self.assertTrue(all(p["tokens_per_s"] > 0 for p in part["points"]))
            self.assertEqual((part["left"], part["error"]), ([], None))
        self.assertIn("The capital of France is Paris", done.stdout)

    def test_a_daemon_that_ends_is_named_with_its_log(self):
        done = self.serve("--device", NO_DEVICE, "--points", "1x16", "--part", "mixed")

        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        part = json.loads(self.out.read_text())["parts"][0]
        self.assertIn("c0 ended with status", part["error"])
        self.assertIn("cuda", part["error"].split("--- c0")[1])
        self.assertEqual((part["points"], part["left"]), ([], [[1, 16]]))

    def test_when_the_time_is_up_points_are_left(self):
        done = self.serve("--device", "cpu", "--points", "1x16,1x32", "--part", "device", "--stretch",
                          COMMAND_SECONDS, "--limit", 20)

        self.assertEqual(done.returncode, 124, done.stdout + done.stderr)
        part = json.loads(self.out.read_text())["parts"][0]
        self.assertEqual(part["left"], [[1, 16], [1, 32]])
        self.assertTrue(part["error"].startswith("time up"), part["error"])

    def test_wrong_points_are_wrong_usage(self):
        for points in ("16", "1x0", "0x16", "1x9999", "65x16"):
            self.assertEqual(self.serve("--points", points).returncode, 2, points)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Daemons that are told what cannot be: they end with an error that says so, and leave alone what is not theirs."""

import os
import stat
import tempfile
import unittest
from pathlib import Path

import harness

NOBODY = "127.0.0.1:1"  # A coordinator that is not there.
NODES = [("lamina-compute", "c0", "compute.0"), ("lamina-memory", "m0", "memory.0")]


class RefusedStartsTest(unittest.TestCase):

    def setUp(self):
        self.directory = tempfile.TemporaryDirectory(prefix="lamina-test-")
        self.addCleanup(self.directory.cleanup)
        self.file = Path(self.directory.name) / "cluster.yaml"
        self.file.write_text(harness.cluster_file(gateway={"listen": "127.0.0.1:0"}))

    def start(self, program, name, *arguments):
        return harness.run("--cluster", self.file, "--name", name, "--coordinator", NOBODY, *arguments, program=program)

    def test_a_ready_file_replaces_no_pipe_and_no_device(self):
        pipe = Path(self.directory.name) / "pipe"
        os.mkfifo(pipe)
        for program, name in [(program, name) for program, name, _ in NODES] + [("lamina-gateway", "gateway"),
                                                                                ("lamina-coordinator", "coordinator")]:
            ended = self.start(program, name, "--ready-file", pipe)
            self.assertEqual(ended.returncode, 2, program)
            self.assertIn("is no regular file", ended.stderr)
            self.assertTrue(stat.S_ISFIFO(pipe.stat().st_mode))

    def test_neither_a_cluster_file_nor_settings(self):
        for program, name in [(program, name) for program, name, _ in NODES] + [("lamina-gateway", "gateway"),
                                                                                ("lamina-coordinator", "coordinator")]:
            for words in ([], ["--cluster", ""], ["--cluster", "", "--set", "model=m"]):
                ended = harness.run("--name", name, *words, program=program)
                self.assertEqual(ended.returncode, 2, program)
                self.assertIn("--cluster is required", ended.stderr)
            ended = harness.run("--name", name, "--set", "modle=m", program=program)
            self.assertEqual(ended.returncode, 1, ended.stderr)
            self.assertIn("--set modle=m: unknown key 'modle'; did you mean 'model'?", ended.stderr)

    def test_more_threads_than_the_host_is_for(self):
        cores = len(os.sched_getaffinity(0))
        if cores >= 256:
            self.skipTest("1024 threads are not many here")
        for program, name, key in NODES:
            ended = self.start(program, name, "--set", f"{key}.threads=1024")
            self.assertEqual(ended.returncode, 1, program)
            self.assertIn(f"{name}: threads: 1024 is more than", ended.stderr)
            self.assertIn(f"the {cores} core", ended.stderr)

    def test_a_link_that_could_not_be(self):
        for program, name, _ in NODES:
            ended = self.start(program, name, "--set", "transport='throttle(bandwidth=0,latency=-1us)+shm'")
            self.assertEqual(ended.returncode, 1, program)
            self.assertIn('bandwidth cannot be "0"', ended.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`cores` in the cluster file: the threads that do the work stay on them, and no others work."""

import os
import unittest
from pathlib import Path

import harness

# A thread that has run so long, in seconds, does the node's work.
WORKS = 0.15


def threads(process):
    """[(seconds run, cores allowed)] of a process, but for its first thread: that one loads and measures."""
    found = []
    for task in Path(f"/proc/{process}/task").iterdir():
        if int(task.name) == process:
            continue
        try:
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks = int(fields[11]) + int(fields[12])
        allowed = next(line.split()[1] for line in status.splitlines()
                       if line.startswith("Cpus_allowed_list:"))
        found.append((ticks / os.sysconf("SC_CLK_TCK"), allowed))
    return found


class PinningTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)
        if not {0, 1} <= os.sched_getaffinity(0):
            self.skipTest("wants cores 0 and 1")

    def works_on(self, cluster, name, cores):
        """The threads of the node that have worked may each run on one of `cores`, and all of these have one."""
        for _ in range(20):  # A fast processor needs more of them.
            worked = [allowed for seconds, allowed in threads(cluster.processes[name].pid)
                      if seconds > WORKS]
            if len(set(worked)) >= len(cores):
                break
            self.assertEqual(cluster.lamina("generate", "--prompt", "One, two, three", "--max-tokens", "160", "--ignore-eos").returncode, 0)
        self.assertTrue(worked, threads(cluster.processes[name].pid))
        self.assertEqual(sorted(set(worked)), cores)

    def test_threads_that_work_stay_on_their_cores(self):
        compute = [{"name": "c0", "cores": "0"}]
        memory = [{"name": "m0", "cores": "1", "capacity": "256MiB"}]
        with harness.Cluster(compute=compute, memory=memory) as cluster:
            result = cluster.lamina("generate", "--prompt", "One, two, three", "--max-tokens", "160",
                                    "--ignore-eos")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.works_on(cluster, "c0", ["0"])
            self.works_on(cluster, "m0", ["1"])
            if Path("/sys/devices/system/node/node0").exists():
                # A container may forbid it.
                self.assertRegex(cluster.log("c0"), "memory of NUMA nodes 0|memory may lie far from the cores")

    def test_every_worker_has_a_core_of_its_own(self):
        compute = [{"name": "c0", "cores": "0-1"}]
        with harness.Cluster(compute=compute, memory_nodes=1) as cluster:
            result = cluster.lamina("generate", "--prompt", "One, two, three", "--max-tokens", "160",
                                    "--ignore-eos")
            self.assertEqual(result.returncode, 0, result.stderr)
            # OpenMP's threads inside the dense layers would be more, on any core.
            self.works_on(cluster, "c0", ["0", "1"])

    def test_a_core_that_is_not_there_is_named(self):
        compute = [{"name": "c0", "cores": "0,1000"}]
        memory = [{"name": "m0", "cores": "1001", "capacity": "256MiB"}]
        with harness.Cluster(compute=compute, memory=memory, wait=False) as cluster:
            for name, words in (("c0", "cores 0,1000: this process may not use 1000,"), ("m0", "cores 1001: this process may not use 1001,")):
                self.assertEqual(cluster.processes[name].wait(harness.START_SECONDS), 1)
                self.assertIn(words, cluster.log(name))


if __name__ == "__main__":
    unittest.main()

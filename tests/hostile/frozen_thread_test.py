#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The data thread of a node hangs while all its other threads live: the node is left out, and no answer is wrong, hangs or is lost.

A debugger's stop (ptrace) holds exactly that thread, as a driver, a lock or a network file system could. The node goes on answering
its coordinator, so that only the beat of the thread tells. The node's process ends with status 1, for its supervisor, when the thread
does not end within 10 s of being told to; one that gets on before that joins again.
"""

import ctypes
import os
import subprocess
import sys
import unittest
from pathlib import Path

import clients
import harness

LEFT_OUT = 77  # CTest's SKIP_RETURN_CODE.
DATA_THREAD = "lamina-data"
PROMPTS = ["Once upon a time", "The capital of France is", "A recipe for bread. " * 12]
TOKENS = 240
STUCK_AFTER = "5s"

PTRACE_DETACH = 17
PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207
WALL = 0x40000000  # __WALL of wait(2): threads too.

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.restype = ctypes.c_long
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, tid):
    if LIBC.ptrace(request, tid, None, None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"ptrace({request:#x}) of thread {tid}: {os.strerror(error)}")


class FrozenThread:
    """One thread of a child of this process, stopped until thaw() or until its process ends. Calls come from one thread."""

    def __init__(self, tid):
        self._tid = tid
        ptrace(PTRACE_SEIZE, tid)
        ptrace(PTRACE_INTERRUPT, tid)
        os.waitpid(tid, WALL)  # It has stopped.

    def thaw(self):
        if self._tid is not None and not self.reaped():
            try:
                ptrace(PTRACE_DETACH, self._tid)
            except ProcessLookupError:
                os.waitpid(self._tid, WALL)  # It is ending.
            self._tid = None

    def reaped(self):
        """Whether the thread is gone. A traced one keeps its process from ending until its tracer has seen that."""
        if self._tid is not None:
            tid, status = os.waitpid(self._tid, WALL | os.WNOHANG)
            if tid != 0 and not os.WIFSTOPPED(status):
                self._tid = None
        return self._tid is None


def data_thread(process):
    tasks = Path(f"/proc/{process.pid}/task")
    found = [int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == DATA_THREAD]
    assert len(found) == 1, f"data threads of {process.pid}: {found}"
    return found[0]


def leave_out_unless_possible():
    """Ends the test with 77, and says why, where a process may not trace its own children."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        FrozenThread(child.pid).thaw()
    except OSError as refused:
        print(f"threads cannot be frozen: {refused}")
        sys.exit(LEFT_OUT)
    finally:
        child.kill()
        child.wait()


class FrozenThreadTest(unittest.TestCase):
    wanted = []  # The answers of an undisturbed run.

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_while_nothing_runs"))
        cls.cluster = harness.Cluster(compute=[{"name": "c0"}, {"name": "c1"}], limits={"stuck_after": STUCK_AFTER})
        cls.cluster.__enter__()
        cls.coordinator = next(name for name, role in cls.cluster.roles.items() if role == "coordinator")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def setUp(self):
        self.serve_with_all()
        self.log_before = len(self.cluster.log(self.coordinator))
        if not self.wanted:
            self.wanted.extend(stream.finish() for stream in self.streams())

    def streams(self):
        return [clients.Stream(self, self.cluster, prompt, TOKENS) for prompt in PROMPTS]

    def finish(self, streams):
        harness.require_same_answer(self, [stream.finish() for stream in streams], self.wanted)

    def freeze(self, name):
        frozen = FrozenThread(data_thread(self.cluster.processes[name]))
        self.addCleanup(frozen.thaw)
        return frozen

    def assert_left_out(self, *names):
        """Those nodes since the test began, for that reason, and no other one."""

        def left_out_lines():
            return [line for line in self.cluster.log(self.coordinator)[self.log_before:].splitlines() if "left out" in line]

        self.cluster.await_true(lambda: len(left_out_lines()) >= len(names), f"{names} to be left out")
        left_out = left_out_lines()
        self.assertEqual(len(left_out), len(names), self.cluster.logs())
        for name in names:
            self.assertIn(f"left out {name}: its data thread has not moved for", "\n".join(left_out))

    def await_exit(self, name, frozen):
        """The process of the frozen thread ends with status 1."""
        process = self.cluster.processes[name]
        self.cluster.await_true(lambda: frozen.reaped() and process.poll() is not None, f"the end of {name}")
        self.assertEqual(process.returncode, 1, self.cluster.logs())
        self.assertIn("the data thread was told to stop and has not for 10 s", self.cluster.log(name))
        self.assertIn(f"the coordinator goes on without this node: left out {name}", self.cluster.log(name))

    def serve_with_all(self):
        """Starts nodes that have ended again, as their supervisor would."""

        def there():
            for name, process in list(self.cluster.processes.items()):
                if process.poll() is not None:
                    self.cluster.start(name)
            return self.cluster.status()["state"] == "serving"

        self.cluster.await_true(there, "serving with all nodes")

    def freeze_while_streams_run(self, name):
        running = self.streams()
        self.cluster.await_true(lambda: self.cluster.status()["running"] == len(running), "all of them running")
        frozen = self.freeze(name)
        self.finish(running)
        return frozen

    def test_a_node_of_each_role_while_streams_run(self):
        memory = self.freeze_while_streams_run("m1")
        self.assert_left_out("m1")
        compute = self.freeze_while_streams_run("c1")
        self.assert_left_out("m1", "c1")
        compute.thaw()  # Perhaps within its 10 s: then it joins again by itself.
        self.await_exit("m1", memory)
        self.serve_with_all()
        self.finish(self.streams())

    def test_while_nothing_runs(self):
        frozen = self.freeze("m0")
        self.cluster.await_true(lambda: "without m0" in self.cluster.status()["state"], "serving without m0")
        self.assert_left_out("m0")
        self.finish(self.streams())
        frozen.thaw()
        self.serve_with_all()
        self.finish(self.streams())

    def test_status_tells_what_the_thread_does(self):
        node = next(node for node in self.cluster.status()["nodes"] if node["name"] == "c0")
        self.assertIn(node["data_thread"], ("idle", "working"))
        self.assertGreaterEqual(node["data_thread_still_seconds"], 0)


if __name__ == "__main__":
    leave_out_unless_possible()
    unittest.main()

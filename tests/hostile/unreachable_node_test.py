#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A memory node whose shared memory nobody can open: it is set aside, tried again later, and the others serve.

It runs in a PID namespace of its own, where shm:// finds no process of the others, nor they it. Needs root.
"""

import json
import subprocess
import sys
import unittest

import harness

LEFT_OUT = 77  # CTest's SKIP_RETURN_CODE.
NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
FAR = "m1"
CLUSTERS = 2  # Who is heard first is chance.


def leave_out_unless_possible():
    """Ends the test with 77, and says why, where PID namespaces with a /proc of their own cannot be made.

    Many containers forbid that to root too, so that LAMINA_REQUIRE_NAMESPACES does not ask for it.
    """
    try:
        result = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True)
        error = result.stderr.strip() if result.returncode != 0 else ""
    except OSError as missing:
        error = str(missing)
    if error:
        print(f"PID namespaces cannot be made: {error}")
        sys.exit(LEFT_OUT)


class FarCluster(harness.Cluster):
    """Memory node m1 in a PID namespace of its own."""

    def prefix(self, name):
        return NAMESPACE if name == FAR else []

    def __exit__(self, *words):
        if FAR in self.processes:
            self.kill(FAR)  # unshare passes no SIGTERM on.
        super().__exit__(*words)


class UnreachableNodeTest(unittest.TestCase):

    def tokens(self, cluster):
        result = cluster.lamina("generate", "--prompt", "Once upon a time", "--max-tokens", "4", "--ignore-eos",
                                "--temperature", "0", "--json")
        self.assertEqual(result.returncode, 0, result.stderr + cluster.logs())
        return json.loads(result.stdout)["token_ids"]

    def test_it_is_set_aside_and_never_the_compute_node(self):
        harness.require_model(self)
        for turn in range(CLUSTERS):
            with FarCluster(wait=False) as cluster:
                cluster.await_true(lambda: cluster.status()["state"].startswith("serving"), "serving without m1")
                state = cluster.status()["state"]
                # By the words of both, or by its own where c0 came to it too late.
                self.assertRegex(state, "m1 failed: (blamed by c0|blames c0, without which nothing can serve)")
                self.assertIn("tried again after 10 s", state)
                first = self.tokens(cluster)
                if turn == 0:
                    cluster.await_true(lambda: "tried again after 20 s" in cluster.status()["state"], "a second try")
                    harness.require_same_answer(self, self.tokens(cluster), first)


if __name__ == "__main__":
    leave_out_unless_possible()
    unittest.main()

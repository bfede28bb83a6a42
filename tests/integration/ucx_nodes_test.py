#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two compute nodes of real daemons over UCX: the tokens of one over shared memory, and nobody but this host is let in.

All modes, in one process: same_bits_test.cc.
"""

import json
import os
import re
import unittest

import harness

PROMPT = "The capital of France is"
TOKENS = 24
LISTENS = "0A"  # The state in /proc/net/tcp.
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
REPLICAS = [{"name": "c0"}, {"name": "c1"}]
STAGES = [{"name": f"c{i}", "replica": "r0", "stage": i} for i in range(2)]


def listening_addresses(pid):
    """The addresses, as /proc has them, at which a process waits for TCP connections."""
    sockets = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
        if found:
            sockets.add(found[1])
    addresses = []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except FileNotFoundError:  # A host without IPv6.
            continue
        addresses += [row[1].split(":")[0] for row in rows if row[3] == LISTENS and row[9] in sockets]
    return addresses


class UcxNodesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls("test_replicas"))
        with harness.Cluster() as cluster:
            cls.wanted = cls.tokens(cluster)

    @staticmethod
    def tokens(cluster):
        """Of several sequences at once, so that both compute nodes have some."""
        result = cluster.lamina("generate", "--prompt", PROMPT, "--max-tokens", TOKENS, "--temperature", "0",
                                "--ignore-eos", "--n", "4", "--json")
        if result.returncode != 0:
            raise AssertionError(result.stderr + cluster.logs())
        return [line["token_ids"] for line in harness.json_lines(result.stdout)]

    def check(self, compute, transport):
        with harness.Cluster(transport=transport, compute=compute) as cluster:
            self.assertEqual(self.tokens(cluster), self.wanted)
            status = cluster.status()
            self.assertEqual(status["epoch"], 1, cluster.logs())  # Nothing went wrong on the way.
            self.assertTrue(all(node["transport"] == "ucx" for node in status["nodes"]
                                if node["role"] != "coordinator"), json.dumps(status))
            for name in ("c0", "c1", "m0", "m1"):
                addresses = listening_addresses(cluster.processes[name].pid)
                self.assertTrue(addresses, name)
                self.assertLessEqual(set(addresses), set(LOOPBACK), name)

    def test_replicas(self):
        self.check(REPLICAS, "ucx")

    def test_stages(self):
        self.check(STAGES, "ucx")


if __name__ == "__main__":
    unittest.main()

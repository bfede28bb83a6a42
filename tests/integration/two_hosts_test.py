#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster over several hosts gives the tokens of one on a single host over shared memory.

The hosts are namespaces (hosts.py); data goes by ucx over TCP, through links of limited bandwidth. And no request is lost
where the connections between two of them are reset.
"""

import contextlib
import json
import re
import subprocess
import tempfile
import time
import unittest

import harness
import hosts as namespaces
import short_model

# Enough that both memory nodes get some, whatever bandwidths they measured; one is several chunks long.
PROMPTS = [f"Once upon a time there were {i} little dogs who" for i in range(11)]
PROMPTS.append("They liked to run and to play in the sun. " * 12)
PREFILL = {"chunk_tokens": 64}
# Of the host with the memory nodes: a decoded token of one sequence is 90 KB on the wire.
RATE = "100mbit"
# Who listens elsewhere than at loopback asks for one.
TOKEN = "the-secret-of-two-hosts"
# Of transport_flow.cc. So many take three seconds at that rate.
MESSAGE_BYTES = 64 << 10
FLOW_MESSAGES = 600


class HostsCluster(harness.Cluster):
    """Each daemon on the host that `places` names; the client where the coordinator is."""

    def __init__(self, hosts, places, **keys):
        self._hosts = hosts
        self._places = places
        address = hosts.addresses
        compute = [{"name": n, "host": address[h]} for n, h in places.items() if n.startswith("c")
                   and n != "coordinator"]
        memory = [{"name": n, "host": address[h], "capacity": "256MiB"} for n, h in places.items()
                  if n.startswith("m")]
        super().__init__(coordinator={"listen": f"{address[places['coordinator']]}:0"}, compute=compute,
                         memory=memory, token=TOKEN, **keys)

    def prefix(self, name):
        return self._hosts.prefix(self._places[name or "coordinator"])


def tokens_of(test, cluster):
    """What the prompts give, all of them at the same time."""
    running = [cluster.popen("generate", "--prompt", prompt, "--max-tokens", "8", "--ignore-eos",
                             "--temperature", "0", "--json", stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE)
               for prompt in PROMPTS]
    answers = []
    for process in running:
        out, err = process.communicate(timeout=harness.COMMAND_SECONDS)
        test.assertEqual(process.returncode, 0, err + cluster.logs())
        answers.append(json.loads(out)["token_ids"])
    return answers


def measured(test, cluster, links):
    """Status, once every link has been measured."""
    cluster.await_true(lambda: len(cluster.status()["links"]) == links, f"{links} measured links")
    status = cluster.status()
    for link in status["links"]:
        test.assertGreater(link["latency_seconds"], 0, link)
        test.assertGreater(link["bytes_per_second"], 0, link)
    return status


class Flow:
    """One end of a flow (transport_flow.cc) on a host. Use as a context manager."""

    def __init__(self, prefix, mode, *words):
        program = harness.BIN.parent / "tests/transport_flow"
        self.process = subprocess.Popen([*prefix, str(program), mode, "ucx://", *words], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def line(self):
        return self.process.stdout.readline().strip()

    def ask(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()


class TwoHostsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_same_tokens_as_over_shared_memory(self):
        with harness.Cluster(transport="shm", prefill=PREFILL) as cluster:
            wanted = tokens_of(self, cluster)

        # Both memory nodes share the link of host b.
        places = {"coordinator": "a", "c0": "a", "m0": "b", "m1": "b"}
        with namespaces.Hosts(["a", "b"]) as hosts:
            hosts.limit("b", RATE)
            if not hosts.delay("a", "1ms"):
                print("no netem in this kernel: no delay")
            # Heads are spread: both nodes have a part in every request, whatever they measured.
            with HostsCluster(hosts, places, transport=["verbs", "ucx"], partition="head",
                              verbs={"device": "nosuchdevice"}, prefill=PREFILL) as cluster:
                status = measured(self, cluster, 2)
                before = hosts.sent("b")
                got = tokens_of(self, cluster)
                sent = hosts.sent("b") - before
                after = cluster.status()

                self.assertEqual(len(status["warnings"]), 1, status["warnings"])
                self.assertRegex(status["warnings"][0], "data goes by ucx, not by verbs")
                self.assertIn(status["warnings"][0], cluster.log("coordinator"))
                for link in status["links"]:
                    self.assertRegex(link["path"], "^ucx .*tcp")
                    self.assertLess(link["bytes_per_second"], 4 * 100e6 / 8, link)
                carried = {node["name"]: node["bytes_sent"] for node in after["nodes"]}
                self.assertGreaterEqual(sent, carried["m0"] + carried["m1"])
                self.assertGreater(carried["m0"], 0, "m0 had no part in it")
                self.assertGreater(carried["m1"], 0, "m1 had no part in it")
                self.assertIsNone(re.search("refused", cluster.log("c0")))
        harness.require_same_answer(self, got, wanted)

    def test_memory_nodes_share_a_nic_fairly(self):
        # Two processes on host b, as two memory nodes; a peer of theirs on host a. First they send, then they receive.
        with namespaces.Hosts(["a", "b"]) as hosts:
            hosts.limit("b", RATE)
            for senders, receivers in (("b", "a"), ("a", "b")):
                with self.subTest(senders=senders):
                    before = hosts.sent(senders)
                    counts = self.flows(hosts, senders, receivers)
                    self.assertGreaterEqual(hosts.sent(senders) - before, sum(counts) * MESSAGE_BYTES)
                    # Either gets 1/2 in the long run, but over seconds TCP's own pace decides: a sixth has been seen.
                    # What must not be is that one takes the link and the other waits for it.
                    self.assertGreater(min(counts), sum(counts) / 20, counts)

    def flows(self, hosts, senders, receivers):
        """How many messages came of each of two flows at the same time, each between two processes of its own."""
        flows = []
        with contextlib.ExitStack() as processes:
            for _ in range(2):
                receiver = processes.enter_context(Flow(hosts.prefix(receivers), "receive", "1"))
                sender = processes.enter_context(Flow(hosts.prefix(senders), "send", "0", receiver.line()))
                flows.append((receiver, sender))

            def counts():
                for receiver, sender in flows:
                    self.assertIsNone(receiver.process.poll())
                    self.assertIsNone(sender.process.poll())
                return [int(receiver.ask()) for receiver, _ in flows]

            end = time.monotonic() + harness.COMMAND_SECONDS
            start = counts()
            while min(start) < 16:
                self.assertLess(time.monotonic(), end, f"no data flows: {start}")
                start = counts()
            now = start
            while sum(now) - sum(start) < FLOW_MESSAGES:
                self.assertLess(time.monotonic(), end, f"data stopped: {start}, {now}")
                now = counts()
            return [n - s for n, s in zip(now, start)]

    def test_doctor_sees_what_is_between(self):
        with namespaces.Hosts(["a", "b"]) as hosts, tempfile.TemporaryDirectory() as folder:
            self.token_file = harness.write_token(f"{folder}/cluster.token", TOKEN)
            hosts.limit("b", RATE)
            listen = f"{hosts.addresses['b']}:0"
            result = harness.run("doctor", "--serve", listen, prefix=hosts.prefix("b"))
            self.assertEqual(result.returncode, 1, result.stdout)
            self.assertIn("--cluster-token-file", result.stderr)

            other = subprocess.Popen([*hosts.prefix("b"), str(harness.BIN / "lamina"), "doctor", "--serve", listen,
                                      "--cluster-token-file", self.token_file], stdout=subprocess.PIPE, text=True)
            self.addCleanup(other.stdout.close)
            self.addCleanup(other.wait)
            self.addCleanup(other.kill)
            address = re.search("serving at ([0-9.:]+);", other.stdout.readline()).group(1)

            findings = self.doctor(hosts, address)
            self.assertEqual(findings["peer"]["state"], "ok", findings)
            self.assertEqual(findings["peer.version"]["state"], "ok", findings)
            self.assertEqual(findings["peer.clock"]["state"], "ok", findings)
            self.assertRegex(findings["peer.transport.ucx"]["found"], "^ucx .*tcp.* 0.0[0-4] GB/s")
            self.assertIn("the list gives ucx", findings["peer.transport"]["found"])

            self.assertEqual(findings["peer.mtu"]["state"], "ok", findings)

            hosts.set_mtu("a", 1400)
            findings = self.doctor(hosts, address)
            self.assertEqual(findings["peer.mtu"]["state"], "warn", findings)
            self.assertRegex(findings["peer.mtu"]["fix"], "^ip link set eth0 mtu 1500 .*here")
            hosts.set_mtu("a", 1500)

            with hosts.dropping_large("b"):
                findings = self.doctor(hosts, address)
            self.assertEqual(findings["peer.mtu"]["state"], "fail", findings)
            self.assertIn("small messages cross", findings["peer.mtu"]["found"])
            self.assertNotIn("peer.transport", findings)

            with hosts.dropping("b", to="a"):
                findings = self.doctor(hosts, address)
            self.assertEqual(findings["peer"]["state"], "fail", findings)
            self.assertIn("a firewall drops the packets", findings["peer"]["found"])
            self.assertIn(f"--dport {address.split(':')[1]} -j ACCEPT", findings["peer"]["fix"])

            other.kill()
            other.wait()
            findings = self.doctor(hosts, address)
            self.assertEqual(findings["peer"]["state"], "fail", findings)
            self.assertIn("nobody listens", findings["peer"]["found"])
            self.assertIn(f"lamina doctor --serve {address}", findings["peer"]["fix"])
            self.assertNotIn("peer.clock", findings)

    def doctor(self, hosts, address):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(harness.cluster_file(transport="ucx"))
            file.flush()
            result = harness.run("doctor", "--cluster", file.name, "--peer", address, "--json",
                                 "--cluster-token-file", self.token_file, prefix=hosts.prefix("a"))
        return {finding["check"]: finding for finding in json.loads(result.stdout)}


class ResetLinkTest(unittest.TestCase):
    """Policies that fetch: the links between the compute node and memory nodes, all of which live, are reset while K and V come."""

    def setUp(self):
        harness.require_model(self)

    def check(self, policy, window="16MiB", **fetch):
        places = {"coordinator": "a", "c0": "b", "m0": "c", "m1": "c"}
        with namespaces.Hosts(["a", "b", "c"]) as hosts:
            with HostsCluster(hosts, places, transport=["ucx"], policy=policy, fetch={"window": window, **fetch},
                              limits=short_model.LONG) as cluster:
                alone = self.tokens(cluster.popen(*short_model.ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE), cluster)
                before = cluster.status()
                running = [cluster.popen(*short_model.ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
                cluster.await_true(lambda: cluster.status()["tokens_generated"] > before["tokens_generated"] + 30, "tokens")
                if hosts.reset("b", to="c") == 0:
                    for process in running:
                        process.communicate(timeout=harness.COMMAND_SECONDS)
                    self.skipTest("ss(8) ends no connections here")
                for process in running:
                    harness.require_same_answer(self, self.tokens(process, cluster), alone)
                cluster.await_state("serving")
                self.assertGreater(cluster.status()["epoch"], before["epoch"], "nobody noticed")
                again = cluster.popen(*short_model.ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                harness.require_same_answer(self, self.tokens(again, cluster), alone)

    def tokens(self, process, cluster):
        out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
        self.assertEqual(process.returncode, 0, error + cluster.logs())
        return json.loads(out)["token_ids"]

    def test_fetch_heads(self):
        self.check("fetch_heads")

    def test_fetch_recompute(self):
        self.check("fetch_recompute", recompute_percent=40)

    def test_fetch_hybrid(self):
        self.check("fetch_hybrid", activation_percent=50)

    def test_fetch_sparse(self):
        # With all tokens what is computed again is what it was.
        self.check("fetch_sparse", window="32MiB", caching_ratio=1)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where clusters of several hosts meet: networks and IPv6. Hosts are namespaces (hosts.py)."""

import json
import unittest

import harness
import hosts as namespaces

TOKEN = "the-secret-of-addresses"
SECOND = {"a": "10.78.0.1", "b": "10.78.0.2"}
V6 = {"a": "fd77::1", "b": "fd77::2"}
# A prompt and a few tokens are some megabytes of rows.
PROMPT = ["--prompt", "They liked to run and to play in the sun. " * 8, "--max-tokens", "8", "--ignore-eos", "--temperature", "0"]


class TwoHosts(harness.Cluster):
    """The coordinator and c0 on host a, m0 on host b, which are known by `addresses`."""

    def __init__(self, hosts, addresses, **keys):
        self._hosts = hosts
        at = addresses["a"]
        super().__init__(token=TOKEN, coordinator={"listen": f"[{at}]:0" if ":" in at else f"{at}:0"}, transport="ucx",
                         compute=[{"name": "c0", "host": at}], memory=[{"name": "m0", "host": addresses["b"], "capacity": "256MiB"}], **keys)

    def prefix(self, name):
        return self._hosts.prefix("b" if name == "m0" else "a")

    def tokens(self):
        done = self.lamina("generate", *PROMPT, "--json")
        if done.returncode != 0:
            raise AssertionError(done.stderr + self.logs())
        return json.loads(done.stdout)["token_ids"]


class AddressesTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def test_data_goes_over_the_network_that_is_named(self):
        with namespaces.Hosts(["a", "b"]) as hosts:
            hosts.join("eth1", 24, SECOND)
            for network, device, other in (("10.78.0.0/16", "eth1", "eth0"), ("eth0", "eth0", "eth1")):
                with self.subTest(network=network), TwoHosts(hosts, hosts.addresses, network=network) as cluster:
                    before = {each: hosts.sent("a", each) for each in (device, other)}
                    cluster.tokens()
                    sent = {each: hosts.sent("a", each) - before[each] for each in (device, other)}
                    self.assertGreater(sent[device], 10 * sent[other], sent)

    def test_a_network_that_a_host_lacks_is_named(self):
        with namespaces.Hosts(["a", "b"]) as hosts, TwoHosts(hosts, hosts.addresses, wait=False, network="10.99.0.0/16") as cluster:
            self.assertEqual(cluster.processes["m0"].wait(harness.COMMAND_SECONDS), 1)
            self.assertRegex(cluster.log("m0"), "network: no interface of this host that is up is 10.99.0.0/16; there are: .*eth0 10.77.0.2")

    def test_ipv6(self):
        with namespaces.Hosts(["a", "b"]) as hosts:
            with TwoHosts(hosts, hosts.addresses) as cluster:
                wanted = cluster.tokens()
            for name, address in V6.items():
                hosts.add_address(name, "eth0", f"{address}/64")
            with TwoHosts(hosts, V6) as cluster:
                self.assertTrue(cluster.server.startswith("[fd77::1]:"))
                self.assertEqual(cluster.tokens(), wanted)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    unittest.main()

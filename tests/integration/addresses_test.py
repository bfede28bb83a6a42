#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where clusters of several hosts meet: networks and IPv6. Hosts are namespaces (hosts.py)."""

import json
import subprocess
import sys
import tempfile
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

    def __init__(self, hosts, addresses, http=None, **keys):
        self._hosts = hosts
        at = addresses["a"]
        pages = {"http": http} if http else {}
        super().__init__(token=TOKEN, coordinator={"listen": f"[{at}]:0" if ":" in at else f"{at}:0", **pages}, transport="ucx",
                         compute=[{"name": "c0", "host": at, **pages}],
                         memory=[{"name": "m0", "host": addresses["b"], "capacity": "256MiB", **pages}], **keys)

    def prefix(self, name):
        return self._hosts.prefix("b" if name == "m0" else "a")

    def tokens(self):
        done = self.lamina("generate", *PROMPT, "--json")
        if done.returncode != 0:
            raise AssertionError(done.stderr + self.logs())
        return json.loads(done.stdout)["token_ids"]


class NamedCoordinator(harness.Cluster):
    """A coordinator that all others know by a name, which a file of hosts has; the nodes and the gateway are on host b."""

    # With mounts of its own: the rest of this machine keeps its files. Who wants a name server asks each host itself.
    WITH_FILE = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && mount --bind /dev/null /etc/resolv.conf && exec "$@"']

    def __init__(self, hosts, **keys):
        self._hosts = hosts
        self.known = tempfile.NamedTemporaryFile("w", prefix="lamina-hosts-")
        self.move("a")
        super().__init__(token=TOKEN, coordinator={"listen": "coordinator.test:0"}, gateway={"listen": "127.0.0.1:0"}, transport="ucx",
                         compute=[{"name": "c0", "host": "b"}], memory=[{"name": "m0", "host": "b", "capacity": "256MiB"}], **keys)

    def __exit__(self, *words):
        super().__exit__(*words)
        self.known.close()

    def move(self, host):
        self._at = host
        self.known.seek(0)
        self.known.truncate()
        self.known.write(f"127.0.0.1 localhost\n{self._hosts.addresses[host]} coordinator.test\n")
        self.known.flush()

    def prefix(self, name):
        return [*self._hosts.prefix(self._at if name == "coordinator" else "b"), *self.WITH_FILE, self.known.name]


class LateCoordinator(TwoHosts):
    """The nodes and the gateway look for a coordinator that comes after them, last."""

    def __enter__(self):
        self.server = f"{self._hosts.addresses['a']}:7400"
        others = [name for name, role in self.roles.items() if role != "coordinator"]
        for name in others:
            self.start(name)
        self.await_true(lambda: all("waiting for coordinator" in self.log(name) for name in ("c0", "m0")), "nodes that wait", others)
        self.start("coordinator")
        self.await_state("serving")
        return self


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

    def test_all_listen_at_the_ports_that_are_named(self):
        ports = range(23000, 23060)
        with namespaces.Hosts(["a", "b"]) as hosts:
            keys = {"ports": f"{ports[0]}-{ports[-1]}", "gateway": {"listen": "0.0.0.0:0"}}
            with TwoHosts(hosts, hosts.addresses, http="0.0.0.0:0", **keys) as cluster:
                cluster.tokens()
                for name, least in (("a", 6), ("b", 4)):  # gRPC, HTTP of daemons, two workers and a watch of each node.
                    listening = hosts.listening(name)
                    self.assertGreaterEqual(len(listening), least)
                    self.assertEqual([port for port in listening if port not in ports], [], name)

    def test_a_range_that_is_too_small_is_named(self):
        with namespaces.Hosts(["a", "b"]) as hosts, TwoHosts(hosts, hosts.addresses, wait=False, ports="23000-23001") as cluster:
            cluster.await_true(lambda: "each node needs two for each network interface" in cluster.logs(), "the reason")

    def test_a_network_that_a_host_lacks_is_named(self):
        with namespaces.Hosts(["a", "b"]) as hosts, TwoHosts(hosts, hosts.addresses, wait=False, network="10.99.0.0/16") as cluster:
            self.assertEqual(cluster.processes["m0"].wait(harness.COMMAND_SECONDS), 1)
            self.assertRegex(cluster.log("m0"), "network: no interface of this host that is up is 10.99.0.0/16; there are: .*eth0 10.77.0.2")

    def test_a_name_is_looked_up_at_each_connect(self):
        with namespaces.Hosts(["a", "b", "c"]) as hosts, NamedCoordinator(hosts) as cluster:
            cluster.kill("coordinator")
            cluster.await_true(lambda: all("is gone; trying again" in cluster.log(name) for name in ("c0", "m0")), "the loss")
            before = hosts.refused("a")
            cluster.move("c")
            cluster.start("coordinator")
            cluster.await_state("serving")
            health = [*cluster.prefix(""), sys.executable, "-c", f"import urllib.request as u; u.urlopen('http://{cluster.gateway}/health')"]
            cluster.await_true(lambda: subprocess.run(health, capture_output=True).returncode == 0, "the gateway's health")
            # Of three processes that try again and again. Who remembers an address for the library's 30 s is refused more often: 12 times.
            self.assertLess(hosts.refused("a") - before, 8)

    def test_names_of_the_hosts_file_need_no_name_server(self):
        with namespaces.Hosts(["a", "b"]) as hosts, NamedCoordinator(hosts) as cluster:
            self.assertEqual(cluster.status()["state"], "serving")
            self.assertEqual({name: hosts.unheard(name) for name in ("a", "b")}, {"a": 0, "b": 0})

    def test_hosts_start_in_any_order(self):
        with namespaces.Hosts(["a", "b"]) as hosts:
            with LateCoordinator(hosts, hosts.addresses, gateway={"listen": "127.0.0.1:0"}) as cluster:
                self.assertEqual(len(cluster.tokens()), 8)

    def test_ipv6(self):
        with namespaces.Hosts(["a", "b"]) as hosts:
            with TwoHosts(hosts, hosts.addresses) as cluster:
                wanted = cluster.tokens()
            for name, address in V6.items():
                hosts.add_address(name, "eth0", f"{address}/64")
            with TwoHosts(hosts, V6) as cluster:
                self.assertTrue(cluster.server.startswith("[fd77::1]:"))
                harness.require_same_answer(self, cluster.tokens(), wanted)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine: network and IPC namespaces, joined by a switch in a namespace of its own.

Each has an address, and a link whose bandwidth can be limited. Shared memory does not reach across, since
UCX takes processes of other IPC namespaces for those of other hosts. Needs root.
"""

import contextlib
import os
import subprocess
import sys

LEFT_OUT = 77  # CTest's SKIP_RETURN_CODE.


def _ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


def _must(*words):
    result = subprocess.run(words, capture_output=True, text=True)
    if result.returncode != 0:
        raise OSError(f"{' '.join(words)}: {result.stderr.strip()}")
    return result.stdout


class Hosts:
    """Use as a context manager. hosts.prefix("a") stands before a command that is to run on host a."""

    def __init__(self, names):
        self.names = list(names)
        # Names of interfaces have 15 letters at most; those of namespaces are seen by the whole machine.
        self._tag = f"lam{os.getpid()}"
        self.addresses = {name: f"10.77.0.{i + 1}" for i, name in enumerate(self.names)}

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.names, "switch"]:
            _ip("netns", "del", self.namespace(name))

    def namespace(self, name):
        return f"{self._tag}{name}"

    def _make(self):
        switch = self.namespace("switch")
        _must("ip", "netns", "add", switch)
        _must("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _must("ip", "-n", switch, "link", "set", "bridge", "up")
        for name in self.names:
            own = self.namespace(name)
            port = f"port{self.names.index(name)}"
            _must("ip", "netns", "add", own)
            _must("ip", "link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", port, "netns",
                  switch)
            _must("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            _must("ip", "-n", own, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            _must("ip", "-n", own, "link", "set", "eth0", "up")
            _must("ip", "-n", own, "link", "set", "lo", "up")

    def prefix(self, name):
        return ["ip", "netns", "exec", self.namespace(name), "unshare", "--ipc"]

    def limit(self, name, rate):
        """Lets a host send and receive at `rate` (like 50mbit) at most."""
        shaper = ["tbf", "rate", rate, "burst", "32kb", "latency", "200ms"]
        port = f"port{self.names.index(name)}"
        _must("tc", "-n", self.namespace(name), "qdisc", "add", "dev", "eth0", "root", *shaper)
        _must("tc", "-n", self.namespace("switch"), "qdisc", "add", "dev", port, "root", *shaper)

    def delay(self, name, time):
        """Makes what a host sends late by `time` (like 1ms). False where this kernel has no netem."""
        return subprocess.run(["tc", "-n", self.namespace(name), "qdisc", "add", "dev", "eth0", "root",
                               "netem", "delay", time], capture_output=True).returncode == 0

    def set_mtu(self, name, mtu):
        _must("ip", "-n", self.namespace(name), "link", "set", "eth0", "mtu", str(mtu))

    @contextlib.contextmanager
    def dropping(self, name, to):
        """Drops all that a host would send to another one, without a word, as a firewall does."""
        route = ["route", "add", "blackhole", f"{self.addresses[to]}/32"]
        _must("ip", "-n", self.namespace(name), *route)
        yield
        route[1] = "del"
        _must("ip", "-n", self.namespace(name), *route)

    def reset(self, name, to):
        """Ends a host's TCP connections with another one, as a firewall does that has forgotten them.

        Returns how many; 0 where this kernel cannot, or there are none.
        """
        words = ["ss", "--kill", "--tcp", "--numeric", "--no-header", "dst", self.addresses[to]]
        result = subprocess.run([*self.prefix(name)[:4], *words], capture_output=True, text=True)
        return len(result.stdout.splitlines()) if result.returncode == 0 else 0

    @contextlib.contextmanager
    def dropping_large(self, name):
        """Drops what is larger than 1400 bytes on the way to a host, without a word."""
        device = ["dev", f"port{self.names.index(name)}", "root"]
        switch = self.namespace("switch")
        _must("tc", "-n", switch, "qdisc", "replace", *device, "tbf", "rate", "1gbit", "burst", "1400", "latency", "200ms")
        yield
        _must("tc", "-n", switch, "qdisc", "del", *device)

    def join(self, device, network, addresses):
        """Another network of all hosts: `addresses` by name, with `network` bits of prefix, on a link called `device`."""
        switch = self.namespace("switch")
        _must("ip", "-n", switch, "link", "add", device, "type", "bridge")
        _must("ip", "-n", switch, "link", "set", device, "up")
        for name in self.names:
            own, port = self.namespace(name), f"{device}{self.names.index(name)}"
            _must("ip", "link", "add", device, "netns", own, "type", "veth", "peer", "name", port, "netns", switch)
            _must("ip", "-n", switch, "link", "set", port, "master", device, "up")
            self.add_address(name, device, f"{addresses[name]}/{network}")
            _must("ip", "-n", own, "link", "set", device, "up")

    def add_address(self, name, device, address):
        words = ["nodad"] if ":" in address else []  # It would be of no use for a second.
        _must("ip", "-n", self.namespace(name), "addr", "add", address, "dev", device, *words)

    def remove_address(self, name, device, address):
        _must("ip", "-n", self.namespace(name), "addr", "del", address, "dev", device)

    def listening(self, name):
        """TCP ports of a host at which somebody listens."""
        lines = _must(*self.prefix(name)[:4], "cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()
        words = [line.split() for line in lines]
        return sorted({int(fields[1].rpartition(":")[2], 16) for fields in words if fields[3] == "0A"})

    def refused(self, name):
        """Connections that a host has refused, for nobody listened."""
        lines = [line.split() for line in _must(*self.prefix(name)[:4], "cat", "/proc/net/snmp").splitlines() if line.startswith("Tcp:")]
        return int(lines[1][lines[0].index("OutRsts")])

    def unheard(self, name):
        """Datagrams that came to ports of a host at which nobody listens."""
        lines = [line.split() for line in _must(*self.prefix(name)[:4], "cat", "/proc/net/snmp").splitlines() if line.startswith("Udp:")]
        return int(lines[1][lines[0].index("NoPorts")])

    def sent(self, name, device="eth0"):
        """Bytes that a host has sent over a link of its own."""
        return int(_must(*self.prefix(name)[:4], "cat", f"/sys/class/net/{device}/statistics/tx_bytes"))


def leave_out_unless_possible():
    """Ends the test with 77, and says why, where namespaces cannot be made; as root they must be possible."""
    try:
        with Hosts(["a"]) as hosts:
            _must(*hosts.prefix("a"), "true")
    except OSError as error:
        print(f"network and IPC namespaces cannot be made: {error}")
        sys.exit(1 if os.environ.get("LAMINA_REQUIRE_NAMESPACES") == "1" else LEFT_OUT)

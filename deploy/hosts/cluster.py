# SPDX-License-Identifier: Apache-2.0
"""Cluster: the daemons of one cluster file, on this host and on others, and what is done with them.

The coordinator and the gateway run on this host. The state folder has the effective cluster file, pid files, logs,
and hosts.json: where things are on other hosts, so that `down` finds them without the cluster file and the programs.
"""

import json
import os
import shlex
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import settings as config
import watch
from host import Host, SshHost, bracketed
from output import Failure, HostFailure, own_command, say, show_log

HOSTS_AT_ONCE = 32


def on_all(hosts, work):
    """Does `work(host)` for all at the same time. Returns {host name: result} and {host name: HostFailure}."""
    results, failures = {}, {}

    def one(host):
        try:
            results[host.name] = work(host)
        except HostFailure as failure:
            failures[host.name] = failure

    if len(hosts) == 1:
        one(hosts[0])
    elif hosts:
        with ThreadPoolExecutor(min(len(hosts), HOSTS_AT_ONCE)) as pool:
            list(pool.map(one, hosts))
    return results, failures


class Cluster:
    def __init__(self, settings):
        self.settings = settings
        self.state = settings.state
        self.here = Host(self.state, settings.bin)
        self.others = {}  # By name; those that were reached.
        self.file = None  # The effective one.
        self.client = None
        self.started = []  # (host, name), by this command.

    # --- what was left by `up` ------------------------------------------------------------------------

    @property
    def effective(self):
        return self.state / "cluster.yaml"

    def load(self):
        """What runs now. Errors: Failure when nothing was started."""
        if not self.effective.is_file():
            raise Failure(f"no cluster was started from {self.settings.cluster} here ({self.state} is empty); start it with "
                          f"{own_command('up', settings=self.settings)}")
        self.file = config.ClusterFile(self.settings, self.effective)
        self.load_hosts()

    def load_hosts(self):
        for name, kept in self._kept_hosts().items():
            host = SshHost(name, self.settings.ssh)
            host.state, host.bin, host.home = kept["state"], kept["bin"], kept["home"]
            self.others[name] = host

    def _kept_hosts(self):
        try:
            return json.loads((self.state / "hosts.json").read_text())
        except FileNotFoundError:
            return {}

    def keep_hosts(self):
        kept = {h.name: {"state": h.state, "bin": h.bin, "home": h.home} for h in self.others.values()}
        write_whole(self.state / "hosts.json", json.dumps({**self._kept_hosts(), **kept}, indent=1))

    def forget_host(self, name):
        kept = self._kept_hosts()
        kept.pop(name, None)
        write_whole(self.state / "hosts.json", json.dumps(kept, indent=1))

    def host_of(self, daemon):
        """None where that host was not reached, or is another's business (--no-ssh)."""
        return self.here if config.is_here(daemon) else self.others.get(daemon.host)

    def hosts(self):
        return [self.here, *self.others.values()]

    def daemons(self):
        """Those that this command looks after, with their hosts."""
        return [(d, self.host_of(d)) for d in self.file.daemons if self.host_of(d) is not None]

    def kept_address(self):
        try:
            return (self.state / "address").read_text().strip()
        except FileNotFoundError:
            return ""

    def watch_at(self, address):
        self.client = watch.Client(self.settings.bin, address, self.file.tls["ca"])

    # --- starting -------------------------------------------------------------------------------------

    def pid(self, daemon):
        return self.host_of(daemon).pids().get(daemon.name)

    def start_coordinator(self):
        daemon = self.file.daemon("coordinator")
        listen, extra = daemon.address, []
        kept = self.kept_address()
        # A port that was picked stays: the nodes of a cluster that is mended look for it there.
        if kept and listen.endswith(":0"):
            listen = config_address(listen, kept)
            extra = ["--set", f"coordinator.listen={listen}"]
        check_ports({"coordinator.listen": listen})
        self.started.append((self.here, "coordinator"))
        self.here.start(daemon, extra)

    def await_coordinator(self):
        address = local_address(self._await_ready("coordinator"))
        write_whole(self.state / "address", address + "\n")
        self.watch_at(address)
        return address

    def _await_ready(self, name):
        """Of the coordinator or the gateway: the address in its ready file."""
        end = time.monotonic() + self.settings.wait
        ready = self.state / f"{name}.ready"
        while True:
            text = ready.read_text().split() if ready.is_file() else []
            if text:
                return text[0]
            if self.here.pids().get(name) is None:
                raise watch.GaveUp([name], f"the {name} ended; its log is above")
            if time.monotonic() >= end:
                raise watch.GaveUp([name], f"the {name} is not ready after {self.settings.wait} s")
            time.sleep(0.05)

    def start_nodes(self, daemons):
        """Starts those of several hosts at the same time, each with the address that its host reaches."""
        by_host = {}
        for daemon, host in daemons:
            self.started.append((host, daemon.name))
            by_host.setdefault(host.name, []).append(daemon)

        def start(host):
            for daemon in by_host[host.name]:
                try:
                    host.start(daemon, ["--coordinator", self.address_for(host)])
                except HostFailure as failure:
                    if not failure.answers:
                        raise
                    raise watch.GaveUp([daemon.name], f"{daemon.name} cannot be started: {failure}") from None

        hosts = [host for host in self.hosts() if host.name in by_host]
        _, failures = on_all(hosts, start)
        for failure in failures.values():
            raise watch.GaveUp([], str(failure), failure.host)

    def address_for(self, host):
        """Where that host finds the coordinator."""
        kept = self.kept_address()
        if host.is_local:
            return kept
        if self.file.advertise:
            return self.file.advertise
        listen = (self.state / "coordinator.ready").read_text().split()[0]
        at, _, port = listen.rpartition(":")
        return listen if at not in ("0.0.0.0", "[::]") else f"{own_address_towards(host.name)}:{port}"

    def await_gateway(self):
        """Returns its address; None where there is none."""
        if self.file.daemon("gateway") is None:
            return None
        address = self._await_ready("gateway")
        end = time.monotonic() + self.settings.wait
        while not watch.gateway_answers(address, self.file.gateway_tls):
            if self.here.pids().get("gateway") is None:
                raise watch.GaveUp(["gateway"], "the gateway ended; its log is above")
            if time.monotonic() >= end:
                raise watch.GaveUp(["gateway"], f"the gateway's /health is not 200 after {self.settings.wait} s")
            time.sleep(0.1)
        return address

    def dead(self, only, look_far):
        """The first daemon, of all or `only`, that was started and lives no more, and what to say; or None."""
        hosts = self.hosts() if look_far else [self.here]
        pids, failures = on_all(hosts, lambda host: host.pids())
        for failure in failures.values():
            raise watch.GaveUp([], str(failure), failure.host)
        for daemon, host in self.daemons():
            known = pids.get(host.name, {})
            if only in ("", daemon.name) and known.get(daemon.name, 0) is None:
                return daemon.name, f"{daemon.name} ended; the end of its log is above"
        return None, None

    # --- stopping -------------------------------------------------------------------------------------

    def stop(self, pairs, grace):
        """The gateway and then the coordinator first, so that requests can end while the nodes are there. Returns the
        failures of hosts."""
        failures = {}
        for first in ("gateway", "coordinator"):
            failures.update(stop_together([pair for pair in pairs if pair[1] == first], grace))
        failures.update(stop_together([pair for pair in pairs if pair[1] not in ("gateway", "coordinator")], grace))
        return failures

    def give_up(self, why):
        """Shows why, stops what this command started, and fails; what serves without the blamed daemons stays."""
        for name in why.names:
            daemon = self.file.daemon(name)
            host = self.host_of(daemon) if daemon is not None else None
            if host is not None:
                where = f"{host.state}/{name}.log"
                show_log(where if host.is_local else f"{where} on {host.name}", host.log_tail(name))
        state = self.client.state() if self.client is not None else ""
        blamed = [pair for pair in self.started if pair[1] in why.names or pair[0].name == why.host]
        if state.startswith("serving"):
            self.stop([pair for pair in blamed if pair[0].name != why.host], self.settings.grace)
            left_out = ", ".join(why.names) or f"the nodes of {why.host}"
            raise Failure(f"{why}; the cluster serves at {self.client.address} without {left_out}, and is left so")
        if self.settings.keep_going:
            raise Failure(f"{why}; what was started runs on (--keep-going)")
        self.undo(why.host)
        raise Failure(str(why))

    def undo(self, vanished=None):
        failures = self.stop([pair for pair in self.started if pair[0].name != vanished], self.settings.grace)
        if any(host.name == vanished for host, _ in self.started):
            failures[vanished] = HostFailure(vanished, "does not answer")
        for name in failures:
            say(f"{name}: what was started there could not be stopped: {own_command('down', settings=self.settings)} when it "
                "answers again")

    def forget(self):
        """Of a cluster that has stopped: all but its logs, its secret and its certificates."""
        (self.state / "address").unlink(missing_ok=True)
        (self.state / "hosts.json").unlink(missing_ok=True)


def stop_together(pairs, grace):
    """Ends (host, name)s, all at the same time. Returns the failures of hosts."""
    names = {}
    for host, name in pairs:
        names.setdefault(host.name, (host, []))[1].append(name)
    # One login for each host: sshd drops some of many that come at once (MaxStartups).
    return on_all([host for host, _ in names.values()], lambda host: tell(host.stop(names[host.name][1], grace)))[1]


def tell(words):
    for line in words:
        say(line)


def local_address(address):
    """Where this host finds who listens there."""
    host, _, port = address.rpartition(":")
    return f"{ {'0.0.0.0': '127.0.0.1', '[::]': '[::1]'}.get(host, host)}:{port}"


def config_address(listen, kept):
    """`listen` with the port of `kept`."""
    return f"{listen.rpartition(':')[0]}:{kept.rpartition(':')[2]}"


def own_address_towards(host):
    """The address of this host that packets to another one leave from."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # Sends nothing.
            own = probe.getsockname()[0]
            return bracketed(own)
    except OSError:
        return socket.gethostname()


def is_in_use(address):
    """Whether somebody of this host listens there."""
    host, _, port = local_address(address).rpartition(":")
    if port == "0":
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=2):
            return True
    except OSError:
        return False


def check_ports(addresses):
    """Of {key of the cluster file: address}. Errors: Failure that names all at which somebody listens."""
    taken = {key: address.rpartition(":") for key, address in addresses.items() if is_in_use(address)}
    if not taken:
        return
    ports = " and ".join(f"port {port} of {host}" for host, _, port in taken.values())
    others = [f"--set {shlex.quote(f'{key}={host}:0')}" for key, (host, _, _) in taken.items()]
    more = len(others) > 1
    raise Failure(f"{ports} {'are' if more else 'is'} in use by another program; stop it, or take {'others' if more else 'another port'}: "
                  f"{' '.join(others)}")


def find_model(model):
    """The absolute path of the model, looked for from here and from the repository."""
    looked = list(dict.fromkeys([os.getcwd(), str(config.REPO)]))
    for folder in looked:
        candidate = os.path.join(folder, model)
        if os.path.exists(candidate):
            return candidate
    raise Failure(f"the model '{model}' is not there" + ("" if os.path.isabs(model) else f" (looked in {' and '.join(looked)})") +
                  "; deploy/get_model.sh gets the quick start's, --set model=PATH names another")


def write_whole(path, text):
    """Whole or not at all: where the disk is full, what was there stays, and `down` finds what runs by it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # Another command writes its own.
    try:
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def make_token(path):
    """Draws the secret of the cluster, unless it is there. On no command line, and whole or not at all."""
    path = Path(path)
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex())
    try:
        os.link(partial, path)  # Fails where another `up` was there first.
        say(f"drew the cluster's secret: {path}")
    except FileExistsError:
        pass
    partial.unlink()



# SPDX-License-Identifier: Apache-2.0
"""`cluster.sh doctor`: what is between every two hosts of a cluster file, as a matrix. `lamina doctor` does the looking.

A doctor serves on each host; the others ask it, in rounds in each of which a host takes part once, so that no measurement
disturbs another.
"""

import json
import re
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bundle
import settings as config
from cluster import Cluster, make_token, on_all, own_address_towards
from host import AS_TEXT, SshHost, bracketed
from output import Failure, HostFailure, say

PAIR_SECONDS = 30
HERE = "localhost"


def rounds(names):
    """Pairs of all names, in rounds in which each has a part once (the circle method)."""
    names = list(names) + ([None] if len(names) % 2 else [])
    result = []
    for _ in range(len(names) - 1):
        half = len(names) // 2
        pairs = [(names[i], names[-1 - i]) for i in range(half)]
        result.append([pair for pair in pairs if None not in pair])
        names = [names[0], names[-1], *names[1:-1]]
    return result


class Doctor:
    """One that serves on a host. Use as a context manager; it ends with its standard input."""

    def __init__(self, host, address):
        serve = f"{shlex.quote(host.bin)}/lamina doctor --serve {shlex.quote(address)} --cluster {shlex.quote(host.file)} "
        serve += f"--cluster-token-file {shlex.quote(host.token)}"
        line = f"{serve} & doctor=$!; cat > /dev/null; kill -INT $doctor; wait $doctor"
        self.process = subprocess.Popen(host.words(line), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = re.search(r"serving at (\S+);", self.process.stdout.readline())
        if found is None:
            self.end()
            raise HostFailure(host.name, f"no doctor could serve at {address}: is the host's name or address right, and the port free?")
        self.port = found[1].rpartition(":")[2]

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def matrix(settings):
    """Exit status 1 when a pair cannot reach each other, or disagrees."""
    config.need_programs(settings)
    cluster = Cluster(settings)
    cluster.file = config.ClusterFile(settings, settings.cluster, settings.overrides)
    names = cluster.file.hosts()
    if not names:
        raise Failure(f"all nodes of {settings.cluster} run on this host; of one host alone: {settings.bin}/lamina doctor --cluster "
                      f"{settings.cluster}")
    with tempfile.TemporaryDirectory() as work:
        secret = Path(work) / "token"
        make_token(secret)
        hosts = _prepare(cluster, names, secret)
        return _examine(hosts, cluster.file)


def _prepare(cluster, names, secret):
    """The hosts by name, with the programs, and a secret of this examination in `token`."""
    def prepare(host):
        host.learn(f"{cluster.state.name}-doctor")
        put_programs(host)
        host.token = f"{host.state}/cluster.token"
        host.put(host.token, secret.read_bytes(), 0o600)
        host.file = f"{host.state}/cluster.yaml"
        host.put(host.file, cluster.file.yaml.encode())
        return host

    with bundle.programs(cluster) as put_programs:
        hosts, failures = on_all([SshHost(name, cluster.settings.ssh) for name in names], prepare)
    for failure in failures.values():
        say(str(failure))
    if failures:
        raise Failure(f"{', '.join(failures)} cannot be examined; what to do is above")
    cluster.here.token, cluster.here.file = str(secret), f"{secret}.yaml"
    Path(cluster.here.file).write_text(cluster.file.yaml)
    return {HERE: cluster.here, **{name: hosts[name] for name in names}}


def _examine(hosts, file):
    others = [name for name in hosts if name != HERE]
    addresses = {name: bracketed(name) for name in others}
    addresses[HERE] = file.advertise.rpartition(":")[0] or own_address_towards(others[0])
    doctors = {}
    try:
        started, failures = on_all(list(hosts.values()), lambda host: Doctor(host, "0.0.0.0:0"))
        doctors.update(started)
        for failure in failures.values():
            raise failure
        results = {}
        with ThreadPoolExecutor(len(hosts)) as pool:
            for pairs in rounds(hosts):
                asked = pool.map(lambda p: (p, _ask(hosts[p[0]], f"{addresses[p[1]]}:{doctors[p[1]].port}")), pairs)
                results.update(asked)
    finally:
        for doctor in doctors.values():
            doctor.end()
        on_all([hosts[name] for name in others], lambda host: host.run("forget"))
    return report(list(hosts), results)


def _ask(host, address):
    """{check: finding} of what `lamina doctor --peer` finds from that host."""
    line = f"{shlex.quote(host.bin)}/lamina doctor --json --only-peer --cluster {shlex.quote(host.file)} --peer {shlex.quote(address)} --cluster-token-file "
    line += shlex.quote(host.token)
    try:
        result = subprocess.run(host.words(line), stdin=subprocess.DEVNULL, **AS_TEXT, timeout=PAIR_SECONDS)
        return {finding["check"]: finding for finding in json.loads(result.stdout) }
    except (ValueError, subprocess.TimeoutExpired):
        return {"peer": {"check": "peer", "state": "fail", "found": f"no answer within {PAIR_SECONDS} s", "fix": "try by hand: " + line}}


def _figures(findings):
    """(latency in us, GB/s) of the transport that would be taken; None where there is none."""
    chosen = re.search(r"the list gives (.+?)(?:, and not| between)", findings.get("peer.transport", {}).get("found", ""))
    text = findings.get(f"peer.transport.{chosen[1]}", {}).get("found", "") if chosen else ""
    latency, bandwidth = re.search(r"([0-9.]+) us", text), re.search(r"([0-9.]+) GB/s", text)
    return (float(latency[1]), float(bandwidth[1])) if latency and bandwidth else None


def report(names, results):
    """Prints the matrix, the slowest pair, and what is wrong between whom. Returns the exit status."""
    width = max(14, *(len(name) + 2 for name in names))
    print(f"{'us, GB/s':<{width}}" + "".join(f"{name:<{width}}" for name in names))
    measured = {}
    for one in names:
        cells = []
        for other in names:
            findings = results.get((one, other)) or results.get((other, one))
            figures = _figures(findings) if findings else None
            cells.append("-" if one == other else f"{figures[0]:.0f}, {figures[1]:.2f}" if figures else "no")
            if figures:
                measured[(one, other)] = figures
        print(f"{one:<{width}}" + "".join(f"{cell:<{width}}" for cell in cells))
    if measured:
        slowest = min((pair for pair in measured if pair in results), key=lambda pair: measured[pair][1])
        print(f"slowest: {slowest[0]} and {slowest[1]}, {measured[slowest][1]:.2f} GB/s at {measured[slowest][0]:.0f} us")
    bad = False
    for (one, other), findings in results.items():
        for finding in findings.values():
            if finding["state"] != "ok":
                bad |= finding["state"] == "fail"
                print(f"{finding['state']}: {one} to {other}: {finding['check']}: {finding['found']}" +
                      (f"\n  fix: {finding['fix']}" if finding.get("fix") else ""))
    return 1 if bad else 0

# SPDX-License-Identifier: Apache-2.0
"""Waiting until a cluster serves, and what its state means (Membership::Describe of the coordinator)."""

import http.client
import json
import os
import re
import ssl
import subprocess
import time

from host import AS_TEXT
from output import say

# A state that fails may be of before a daemon was started again.
FAILING_SECONDS = 5
PAUSE = 0.2
# Of looking at daemons of other hosts, which costs a login each.
REMOTE_PAUSE = 2.0


class GaveUp(Exception):
    """Why a cluster will not serve: `names` are the daemons to blame, `host` one that does not answer."""

    def __init__(self, names, words, host=None):
        super().__init__(words)
        self.names = names
        self.host = host


def serves(state, name=""):
    """Whether that is a whole cluster, or one that serves and misses not `name`."""
    if state == "serving":
        return True
    return bool(name) and state.startswith("serving; ") and not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", state)


def failed_nodes(state):
    """{name: problem} of nodes that cannot take part."""
    return dict(re.findall(r"(?:^|; )([A-Za-z0-9_-]+) failed: (.*?)(?=; [A-Za-z0-9_-]+ failed: |; without |$)", state))


def fails(state):
    """Whether a cluster in that state waits for nobody and tries nothing, and says why."""
    waits = "waiting for " in state or "configuring " in state
    return not waits and bool(failed_nodes(state) or re.match(r"cannot serve: ", state))


class Client:
    """The coordinator at an address, by `lamina status`."""

    def __init__(self, bin_folder, address, tls_ca):
        self.command = [str(bin_folder / "lamina"), "status"]
        self.address = address
        # That of the cluster, and not of another one that the user works with.
        self.environment = {name: value for name, value in os.environ.items() if name != "LAMINA_TLS_CA"}
        if tls_ca:
            self.environment["LAMINA_TLS_CA"] = tls_ca

    def state(self):
        """"serving", "waiting for m1", ...; empty without an answer."""
        result = subprocess.run([*self.command, "--json", "--server", self.address], **AS_TEXT, env=self.environment)
        try:
            return json.loads(result.stdout)["state"] if result.returncode == 0 else ""
        except (ValueError, KeyError):
            return ""

    def print_status(self):
        return subprocess.run([*self.command, "--server", self.address], env=self.environment).returncode


def loading(cluster, state):
    """{name: "40% 12 s left"} of the nodes that the cluster waits for while they load weights, by their logs."""
    waited = re.match(r"(?:.*; )?waiting for ([A-Za-z0-9_, -]+)", state)
    names = waited[1].split(", ") if waited else []
    found = {}
    for daemon, host in cluster.daemons():
        if daemon.name in names:
            share = re.search(r"loading weights (\d+%.*)", host.log_tail(daemon.name, 1))
            if share and not share[1].startswith("100%"):
                found[daemon.name] = share[1].strip()
    return found


def await_serving(cluster, seconds, name=""):
    """Waits for the whole cluster, or for `name` in it, telling what it waits for. Errors: GaveUp."""
    end = time.monotonic() + seconds
    last, since, looked = "", time.monotonic(), 0.0
    loaded = {}  # What was last said of each node.
    while True:
        now = time.monotonic()
        look_far = now >= looked + REMOTE_PAUSE
        looked = now if look_far else looked
        dead, why = cluster.dead(name, look_far)
        state = cluster.client.state()
        if dead:
            raise GaveUp([dead], why)
        if serves(state, name):
            return
        if state and state != last:
            say(state)
            last, since = state, time.monotonic()
        for node, share in loading(cluster, state).items() if look_far else ():
            if loaded.get(node) != share:
                say(f"{node} loads weights: {share}")
                loaded[node] = share
        if fails(state) and time.monotonic() >= since + FAILING_SECONDS:
            raise GaveUp(list(failed_nodes(state)) or ["coordinator"], f"the cluster cannot serve: {state}")
        if time.monotonic() >= end:
            waited = re.match(r"waiting for ([A-Za-z0-9_-]+)", last)
            still = ", ".join(f"{node} ({share})" for node, share in loading(cluster, last).items())
            longer = f"; weights are still loaded by {still}: give it more time with --wait {max(600, 2 * seconds)}"
            raise GaveUp([waited[1] if waited else "coordinator"],
                         f"the cluster does not serve after {seconds} s: {last or f'no answer from {cluster.client.address}'}"
                         + (longer if still else ""))
        time.sleep(PAUSE)


def gateway_answers(address, with_tls):
    """Whether the gateway's /health is 200: it reaches a coordinator that serves."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        if with_tls:
            # Whose certificate it is, is its clients' business.
            connection = http.client.HTTPSConnection(host, int(port), timeout=5, context=ssl._create_unverified_context())
        else:
            connection = http.client.HTTPConnection(host, int(port), timeout=5)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/cluster.sh over ssh: three machines (machines.py), from nothing to the text of one host, and what goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unittest

import harness
import hosts as namespaces
from machines import PORT, Machines, leave_out_without

sys.path.insert(0, str(harness.REPO / "deploy/hosts"))
import bundle  # noqa: E402
import settings  # noqa: E402

PROMPT = "Once upon a time there were two little dogs who"
# So that copies take seconds, and rows milliseconds.
RATE = "400mbit"
SLOW = "50mbit"
HOME = os.path.expanduser("~root")


def generate(server, prefix=()):
    result = harness.run("generate", "--prompt", PROMPT, "--max-tokens", "12", "--ignore-eos", "--temperature", "0", "--json",
                         server=server, prefix=prefix)
    if result.returncode != 0:
        raise AssertionError(result.stderr + result.stdout)
    return json.loads(result.stdout)["token_ids"]


class SshHostsCase(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def write_file(self, machines, **keys):
        address = machines.addresses[machines.operator]
        text = harness.cluster_file(
            model=harness.MODEL, gateway={"listen": "127.0.0.1:0"},
            **{"coordinator": {"listen": f"{address}:0"},
               "compute": [{"name": "c0", "host": "n1"}],
               "memory": [{"name": "m0", "host": "n2", "capacity": "256MiB"}, {"name": "m1", "host": "n3", "capacity": "256MiB"}],
               "transport": ["throttle(latency=200us)+ucx"], **keys})
        self.file = machines.folder / "three.yaml"
        self.file.write_text(text)

    def command(self, machines, *words):
        home = machines.folder / "home"
        home.mkdir(exist_ok=True)
        return [*machines.prefix(machines.operator), "env", f"HOME={home}", str(harness.REPO / "deploy/cluster.sh"), *words,
                "--cluster", str(self.file), "--state", str(machines.folder / "state"), "--bin", str(harness.BIN),
                "--ssh", f"ssh -F {machines.folder}/ssh.conf"]

    def script(self, machines, *words):
        return subprocess.run(self.command(machines, *words), capture_output=True, text=True, timeout=300)

    def must(self, machines, *words):
        result = self.script(machines, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def server(self, machines):
        return (machines.folder / "state/address").read_text().strip()

    @staticmethod
    def restart(machines, name, without=None):
        if without is not None:
            machines.hide(name, without)
        machines.kill(name)
        machines.boot(name)


class WholeTest(SshHostsCase):

    def test_from_nothing_to_the_text_of_one_host_and_back(self):
        with harness.Cluster(model=harness.MODEL) as cluster:
            wanted = generate(cluster.server)
        with Machines(["n1", "n2", "n3"]) as machines:
            for name in machines.remote:
                machines.limit(name, RATE)
            self.restart(machines, "n3", without="rsync")
            self.write_file(machines)
            up = self.must(machines, "up")
            operator = machines.prefix(machines.operator)
            harness.require_same_answer(self, generate(self.server(machines), operator), wanted)
            for name in machines.remote:
                self.assertIn(f"{name}: copying the programs", up.stderr)
            self.assertRegex(up.stderr, "n1: copying the model")
            self.assertNotRegex(up.stderr, "n[23]: copying the model")

            self.check_doctor(machines)
            self.check_status(machines)
            self.check_idempotence(machines)
            self.check_loss(machines, wanted)

            self.must(machines, "down")
            for name in machines.remote:
                self.assertEqual(machines.processes(name), [], name)
                self.assertEqual(os.listdir(machines.path(name, "/dev/shm")), [])
                self.assertEqual(machines.listening(name), [PORT], name)
            # The coordinator and the gateway ran on the operator's machine, which has no sshd.
            self.assertEqual(machines.processes(machines.operator), [])
            self.assertEqual(os.listdir(machines.path(machines.operator, "/dev/shm")), [])
            self.assertEqual(machines.listening(machines.operator), [])

    def check_doctor(self, machines):
        """Six pairs, each looked at once; the host with the slowest link is in the slowest."""
        doctor = self.script(machines, "doctor")
        lines = doctor.stdout.splitlines()
        self.assertEqual(lines[0].split(), ["us,", "GB/s", "localhost", "n1", "n2", "n3"], doctor.stderr)
        self.assertEqual(sum(line.count(" -  ") or line.rstrip().endswith(" -") for line in lines[1:5]), 4, doctor.stdout)
        self.assertEqual(len(re.findall(r"[0-9]+, 0\.0[0-9]", "\n".join(lines[1:5]))), 12, doctor.stdout)
        self.assertRegex(lines[5], r"^slowest: (localhost|n[123]) and n[123], 0\.0[0-9] GB/s at [0-9]+ us$")
        self.assertEqual([line for line in machines.processes("n2") if "doctor" in line], [])

    def check_status(self, machines):
        status = self.must(machines, "status")
        version = harness.run("--version").stdout.split()[1]
        for daemon, host in (("c0", "n1"), ("m0", "n2"), ("m1", "n3"), ("coordinator", "localhost")):
            self.assertRegex(status.stdout, rf"{daemon} +pid \d+ +{host} +{re.escape(version)}\n")
        self.assertIn("attached to coordinator", self.must(machines, "logs", "m1").stdout)
        follow = subprocess.Popen(self.command(machines, "logs", "m0", "-f"), stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.assertTrue(follow.stdout.readline())
        os.killpg(follow.pid, signal.SIGINT)  # As Ctrl-C at a terminal.
        follow.communicate(timeout=60)
        end = time.monotonic() + 30
        while any("tail" in line for line in machines.processes("n2")):
            self.assertLess(time.monotonic(), end, machines.processes("n2"))
            time.sleep(0.05)

    def check_idempotence(self, machines):
        before = self.must(machines, "status").stdout.splitlines()[:5]
        again = self.must(machines, "up")
        self.assertIn("was up already", again.stderr)
        self.assertNotIn("copying", again.stderr)
        self.assertEqual(self.must(machines, "status").stdout.splitlines()[:5], before)

    def check_loss(self, machines, wanted):
        """A host whose power is cut while it serves; it comes back with nothing."""
        operator = machines.prefix(machines.operator)
        machines.kill("n3")
        harness.require_same_answer(self, generate(self.server(machines), operator), wanted)
        lost = self.script(machines, "status")
        self.assertRegex(lost.stdout, "m1 +no answer +n3 .*Connection")
        self.assertRegex(lost.stdout, r"m0 +pid \d+ +n2")
        machines.boot("n3")
        mended = self.must(machines, "up")
        self.assertIn("n3: copying the programs", mended.stderr)
        self.assertNotIn("n2: copying", mended.stderr)


class RefusalsTest(SshHostsCase):

    def test_hosts_that_cannot_take_part_are_named_with_what_to_do(self):
        names = ["n1", "n2", "n3", "n4"]
        with Machines(names) as machines:
            self.write_file(machines, compute=[{"name": "c0"}],
                            memory=[{"name": f"m{i}", "host": name, "capacity": "64MiB"} for i, name in enumerate(names)])
            machines.space["n1"] = "8m"
            self.restart(machines, "n1")
            self.restart(machines, "n4", without="rsync")
            known = (machines.folder / "known_hosts").read_text()
            keys = [line.split() for line in known.splitlines()]
            keys[1][2] = keys[2][2]
            (machines.folder / "known_hosts").write_text("\n".join(" ".join(key) for key in keys) + "\n")
            machines.run("n3", "pkill", "-x", "sshd")
            machines.limit("n4", SLOW)

            up = subprocess.Popen(self.command(machines, "up"), stderr=subprocess.PIPE, text=True)
            end = time.monotonic() + 60
            while not list(machines.path("n4", f"{HOME}/.lamina").glob("bundles/*.partial/lib/*")):
                self.assertLess(time.monotonic(), end, "nothing comes to n4")
                time.sleep(0.02)
            machines.set_link("n4", "down")
            said = up.communicate(timeout=120)[1]

            self.assertEqual(up.returncode, 1)
            self.assertRegex(said, rf"n1: \d+ MiB are free in {HOME}, and the bundle needs \d+ MiB: make room")
            self.assertRegex(said, r"n2: .*Host key verification failed.*; its host key is not known")
            self.assertRegex(said, r"n3: .*Connection refused; nothing listens at its ssh port")
            self.assertRegex(said, r"n4: could not copy the programs: ")
            self.assertIn("4 of 4 other hosts cannot take part", said)
            self.assertEqual(self.script(machines, "status").returncode, 1, "nothing was started")


class Ipv6Test(SshHostsCase):

    def test_hosts_known_by_ipv6_alone(self):
        """One by a name, one by its address: ssh, rsync, the coordinator's port, rows, the doctor."""
        with Machines(["n1", "n2"]) as machines:
            at = {"operator": "fd77::1", "n1": "fd77::2", "n2": "fd77::3"}
            for name, address in at.items():
                machines.add_address(name, "eth0", f"{address}/64")
                machines.remove_address(name, "eth0", f"{machines.addresses[name]}/24")
            (machines.folder / "hosts").write_text("::1 localhost\n" + "".join(f"{a} {n}\n" for n, a in at.items()))
            known = (machines.folder / "known_hosts").read_text()
            (machines.folder / "known_hosts").write_text(known.replace("[n2]", f"[{at['n2']}]"))
            self.write_file(machines, coordinator={"listen": "[::]:0"}, compute=[{"name": "c0"}], transport=["ucx"],
                            memory=[{"name": "m0", "host": "n1", "capacity": "256MiB"}, {"name": "m1", "host": at["n2"], "capacity": "256MiB"}])
            self.must(machines, "up")
            self.assertEqual(len(generate(self.server(machines), machines.prefix(machines.operator))), 12)
            doctor = self.must(machines, "doctor")
            self.assertEqual(len(re.findall(r"[0-9]+, [0-9]+\.[0-9]{2}", doctor.stdout.rpartition("slowest")[0])), 6, doctor.stdout)
            self.must(machines, "down")


class TenHostsTest(SshHostsCase):

    def test_doctor_of_ten_hosts(self):
        names = [f"n{i}" for i in range(1, 10)]
        with Machines(names) as machines:
            machines.limit("n5", SLOW)
            folder = self.enterContext(bundle.bundle_of(settings.Settings(bin_flag=str(harness.BIN))))
            self.write_file(machines, compute=[{"name": "c0"}], transport=["ucx"], bundle={"dir": str(folder)},
                            memory=[{"name": f"m{i}", "host": name, "capacity": "64MiB"} for i, name in enumerate(names)])
            start = time.monotonic()
            doctor = self.must(machines, "doctor")
            print(f"{len(names) + 1} hosts in {time.monotonic() - start:.0f} s")
            lines = doctor.stdout.splitlines()
            self.assertEqual(lines[0].split()[2:], ["localhost", *names])
            self.assertEqual(len(re.findall(r"[0-9]+, [0-9]+\.[0-9]{2}", "\n".join(lines[1:11]))), 90, doctor.stdout)
            self.assertRegex(lines[11], r"^slowest: .*\bn5\b.*, 0\.0[0-9] GB/s")


class VersionsTest(SshHostsCase):

    def test_another_version_and_a_node_that_cannot_start(self):
        with Machines(["n1", "n2"]) as machines:
            lamina = machines.folder / "other/bin/lamina"
            lamina.parent.mkdir(parents=True)
            lamina.write_text("#!/bin/sh\necho lamina 0.0.1\n")
            lamina.chmod(0o755)
            memory = [{"name": "m0", "host": "n1", "capacity": "256MiB"}, {"name": "m1", "host": "n2", "capacity": "256MiB"}]
            self.write_file(machines, compute=[{"name": "c0"}], memory=memory, bundle={"dir": "/mnt/other"})
            other = self.script(machines, "up")
            self.assertEqual(other.returncode, 1)
            self.assertRegex(other.stderr, "n1: bundle.dir: /mnt/other has version 0.0.1, and this host ")

            self.write_file(machines, compute=[{"name": "c0"}], memory=[memory[0], {**memory[1], "device": "cuda"}])
            dead = self.script(machines, "up", "--wait", "60")
            self.assertEqual(dead.returncode, 1)
            self.assertRegex(dead.stderr, r"--- end of \S+/m1.log on n2\n")
            self.assertIn("m1 ended", dead.stderr)
            for name in machines.remote:
                self.assertEqual(machines.processes(name), [], dead.stderr)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    leave_out_without("ssh", "sshd", "ssh-keygen", "nsenter", "unshare")
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A new user's walk through docs/clusters.md: its commands as they are written, on three machines (machines.py).

What the page leaves to the user is done as the page says: names of hosts are put in, Ctrl-C ends what follows a log. The user's ssh
has a configuration, and the repository is a copy of scripts and of links to the programs and the model, which is left behind.
"""

import os
import re
import shutil
import signal
import subprocess
import unittest

import harness
import hosts as namespaces
from machines import Machines, leave_out_without

PAGE = (harness.REPO / "docs/clusters.md").read_text()
HOME = "..."  # As the page has it.
NAMES = {"NAME OF THE OTHER": "n1", "NAME OF THE THIRD": "n2"}
COMMAND_SECONDS = 240
# Of sums, sizes and speeds the page has its own.
NUMBER = r"[0-9]+(?:\.[0-9]+)?"


def section(title):
    return re.search(rf"^## {title}$(.*?)(?=^## )", PAGE, re.M | re.S)[1]


def blocks(title, language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section(title), re.M | re.S)
    return [text for of, text in fenced if of == language]


def commands(block):
    """Lines of a shell, with the user's names."""
    for mark, name in NAMES.items():
        block = block.replace(mark, name)
    return block.strip().splitlines()


def patterns(block):
    """What a user sees, line by line: with other numbers."""
    return [re.sub(r"[0-9]+(?:\\\.[0-9]+)?", lambda _: NUMBER, re.escape(line)) for line in block.strip().splitlines()]


class WalkTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def make_user(self, machines):
        """What "you need" of the page: Lamina, built, and an ssh that works without a question."""
        self.home = machines.folder / "lamina"
        for part in ("deploy", "docs", "cost/catalogues"):
            shutil.copytree(harness.REPO / part, self.home / part)
        (self.home / "build/release").mkdir(parents=True)
        (self.home / "build/release/bin").symlink_to(harness.BIN)
        (self.home / "models").symlink_to(harness.MODEL.parent)
        self.machines = machines

    def prefix(self):
        # The configuration of the user's ssh, at a place that this machine has.
        script = f'mount --bind {self.machines.folder}/ssh.conf /etc/ssh/ssh_config && cd {self.home} && exec "$@"'
        return [*self.machines.prefix(self.machines.operator), "unshare", "--mount", "sh", "-c", script, "sh"]

    def type(self, line):
        """What a line of the page says, on both outputs."""
        if " -f " in line:
            return self.follow(line)
        done = subprocess.run([*self.prefix(), "bash", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS)
        self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}")
        return done.stdout

    def follow(self, line):
        """The first line of a log, and Ctrl-C."""
        with subprocess.Popen([*self.prefix(), "bash", "-c", f"exec {line}"], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            first = process.stdout.readline()
            os.killpg(process.pid, signal.SIGINT)
            process.stdout.read()
        return first

    def walk(self, block):
        return {line: self.type(line) for line in commands(block)}

    def test_two_machines_a_third_and_tls(self):
        with Machines(["n1", "n2"]) as machines:
            self.make_user(machines)
            two, third = blocks("Two machines in ten minutes", "sh")
            said = self.walk(two)
            self.check_two(said)
            self.assertEqual(machines.processes("n1"), [])
            self.check_doctor(said)
            self.assertRegex(self.text_of(self.walk(third), "generate"), "Paris")
            self.assertRegex(self.text_of(self.walk(blocks("TLS", "sh")[0]), "generate"), "Paris")
            for name in machines.remote:
                self.assertEqual(machines.processes(name), [], name)

    @staticmethod
    def text_of(said, word):
        return next(text for line, text in said.items() if f" {word} " in line)

    def check_two(self, said):
        printed = (self.text_of(said, "doctor") + self.text_of(said, "up")).replace(str(self.home), HOME)
        lines = patterns(blocks("Two machines in ten minutes", "")[0])
        for pattern in lines:
            # A bundle may be there already, and states may be too short to be seen.
            if not re.search("making|waiting|configuring", pattern):
                self.assertRegex(printed, f"(?m)^{pattern}$")
        self.assertEqual(len(lines), 7)
        self.assertRegex(self.text_of(said, "generate"), "Paris")
        self.assertIn("serving", self.text_of(said, "status"))
        self.assertRegex(self.text_of(said, "logs"), r"^\S+ .*\w")
        self.assertIn("stopped", self.text_of(said, "down"))

    def check_doctor(self, said):
        """The table of the page has three hosts, and this one two."""
        heading, *_, slowest = patterns(blocks("Two machines in ten minutes", "")[1])
        doctor = self.text_of(said, "doctor")
        self.assertRegex(doctor.replace("n1", f"{'n2':<14}n3"), heading)
        self.assertRegex(doctor.replace("localhost and n1", "n2 and n3"), slowest)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    leave_out_without("ssh", "sshd", "ssh-keygen", "nsenter", "unshare", "openssl")
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Hosts: where daemons run, and how commands get there. This one directly, others over the user's own ssh.

Threading: a host is used by one thread at a time.
"""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from output import HostFailure

HERE = Path(__file__).resolve().parent
HOST_SH = HERE / "host.sh"
# A host that does not answer is given up after this, and one that vanishes after the double.
CONNECT_SECONDS = 10
SSH_OPTIONS = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}", "-o", "ServerAliveInterval=5",
               "-o", "ServerAliveCountMax=3")
COMMAND_SECONDS = 300
SSH_FAILED = 255
# Daemons and `lamina` write UTF-8 in every locale. A log may have any bytes: those that are no text are shown as \xe9.
AS_TEXT = {"capture_output": True, "encoding": "utf-8", "errors": "backslashreplace"}
# What every login shell takes as it stands between single quotes. Not so line ends and ! in csh, and \ in fish.
PLAIN_BYTES = frozenset(range(ord(" "), ord("~") + 1)) - frozenset(b"'\\!")


def bracketed(host):
    """As it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def for_any_shell(command):
    """One line that runs a command of POSIX shell, whatever the login shell is that reads the line."""
    text = "".join(chr(byte) if byte in PLAIN_BYTES else f"\\0{byte:03o}" for byte in os.fsencode(command))
    return f"""exec sh -c 'eval "$(printf %b "$0")"' '{text}'"""


class Host:
    """One host, with the folder of this cluster's pid files and logs there."""

    name = "localhost"
    is_local = True

    def __init__(self, state, bin_folder):
        self.state = str(state)
        self.bin = str(bin_folder)

    def run(self, verb, *words, check=True, timeout=COMMAND_SECONDS):
        """Runs a verb of host.sh on this cluster's state; returns the CompletedProcess."""
        result = self._host_sh([verb, self.state, *map(str, words)], timeout)
        if check and result.returncode != 0:
            raise HostFailure(self.name, (result.stderr or result.stdout).strip() or f"host.sh {verb} failed", answers=True)
        return result

    def _host_sh(self, words, timeout):
        try:
            return subprocess.run(["sh", str(HOST_SH), *words], stdin=subprocess.DEVNULL, **AS_TEXT, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise self.silent(timeout, words[0]) from None

    def silent(self, timeout, what=""):
        """The failure of what did not end in time."""
        return HostFailure(self.name, f"no answer within {timeout:.0f} s" + (f" to: {what}" if what else ""))

    def command(self, command, stdin=None, timeout=COMMAND_SECONDS):
        """Runs a line of POSIX shell; `stdin` is bytes. Returns its output. Errors: HostFailure."""
        result = self._shell(command, stdin or b"", timeout)
        if result.returncode != 0:
            raise HostFailure(self.name, self.explain(result.returncode, result.stderr.decode(errors="replace")))
        return result.stdout.decode(errors="replace")

    def words(self, command):
        """The program and the arguments that run a command of POSIX shell there."""
        return ["sh", "-c", command]

    def _shell(self, command, stdin, timeout=COMMAND_SECONDS):
        try:
            return subprocess.run(self.words(command), input=stdin, capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise self.silent(timeout) from None

    def follow(self, names, lines):
        """A process that prints the logs as they grow. It ends when its standard input does."""
        files = " ".join(shlex.quote(f"{self.state}/{name}.log") for name in names)
        return self.stream(f"tail -n {lines} -F {files} & tail=$!; cat > /dev/null; kill $tail")

    def stream(self, command):
        return subprocess.Popen(self.words(command), stdin=subprocess.PIPE)

    def explain(self, status, words):
        del status
        return words.strip()

    def pids(self):
        """{name: pid} of what was started; None of what lives no more. Needs no programs."""
        lines = self.run("pids").stdout.splitlines()
        return {name: None if pid == "-" else int(pid) for name, pid in (line.split() for line in lines)}

    def log_tail(self, name, lines=15):
        """The end of a log; empty where there is none, or the host does not answer now."""
        try:
            return self.run("log", name, lines, check=False).stdout
        except HostFailure:
            return ""

    def start(self, daemon, extra):
        self.run("start", daemon.name, f"{self.bin}/lamina-{daemon.role}", "--cluster", f"{self.state}/cluster.yaml",
                 "--name", daemon.name, "--ready-file", f"{self.state}/{daemon.name}.ready", *extra)

    def stop(self, names, grace):
        """Ends daemons, all at the same time. Returns what there is to say of it."""
        return self.run("stop", grace, *names, timeout=COMMAND_SECONDS + 3 * grace).stdout.split("\n")[:-1]

    def put(self, path, content, mode=0o644):
        """Writes bytes, whole or not at all; readable by others only if `mode` says so."""
        folder, name = os.path.split(path)
        partial = shlex.quote(f"{folder}/.{name}.partial")
        self.command(f"umask 077 && mkdir -p {shlex.quote(folder)} && cat > {partial} && "
                     f"chmod {mode:o} {partial} && mv {partial} {shlex.quote(path)}", content)

    def version(self):
        """What the programs there say, or the reason why not."""
        result = self._shell(f"{shlex.quote(self.bin)}/lamina --version", b"")
        return result.stdout.decode(errors="replace").strip().removeprefix("lamina ") or "no programs"


class SshHost(Host):
    """Another host. `ssh` is the user's own command, with the user's own configuration."""

    is_local = False

    def __init__(self, name, ssh):
        super().__init__("", "")
        self.name = name
        self.ssh = [*shlex.split(ssh), *SSH_OPTIONS]
        self.home = ""

    def words(self, command):
        return [*self.ssh, self.name, for_any_shell(command)]

    def _host_sh(self, words, timeout):
        try:
            result = subprocess.run(self.words("exec sh -s -- " + shlex.join(words)), input=HOST_SH.read_text(), **AS_TEXT,
                                    timeout=timeout)
        except subprocess.TimeoutExpired:
            raise self.silent(timeout, words[0]) from None
        if result.returncode == SSH_FAILED:
            raise HostFailure(self.name, self.explain(SSH_FAILED, result.stderr))
        return result

    def _shell(self, command, stdin, timeout=COMMAND_SECONDS):
        # A file, since a host that vanishes must not leave us in a write.
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            try:
                return subprocess.run(self.words(command), stdin=file, capture_output=True, timeout=timeout)
            except subprocess.TimeoutExpired:
                raise self.silent(timeout) from None

    def explain(self, status, words):
        """What ssh said, and what to do."""
        words = words.strip()
        if status != SSH_FAILED:
            return words
        remedies = {
            "Host key verification failed": f"its host key is not known, or another one than it was: connect once by hand "
                                            f"(ssh {self.name}), and compare",
            "Permission denied": f"ssh may not log in without asking: `ssh {self.name} true` must work (ssh-copy-id, "
                                 "ssh-add)",
            "Could not resolve": "ssh does not know that name: correct `host` in the cluster file, or give it a HostName "
                                 "in ~/.ssh/config",
            "Connection refused": "nothing listens at its ssh port: start sshd there, or say which port in ~/.ssh/config",
            "timed out": "it does not answer: is it up, and does a firewall let ssh through?",
            "No route to host": "it cannot be reached from here: is it up, and on this network?",
        }
        remedy = next((text for sign, text in remedies.items() if sign in words), f"try `ssh {self.name} true`")
        last = words.splitlines()[-1] if words else "ssh ended with 255"
        return f"{last}; {remedy}"

    def learn(self, state_name):
        """Logs in and finds out where things go. Errors: HostFailure."""
        result = self._host_sh(["facts", "-"], COMMAND_SECONDS)
        facts = result.stdout.splitlines()
        if result.returncode != 0 or len(facts) < 4:
            raise HostFailure(self.name, f"cannot look around there: {result.stderr.strip() or result.stdout.strip()}")
        self.home = facts[0]
        self.free_bytes = int(facts[1]) * 1024
        self.system = facts[2]
        self.has_rsync = facts[3] != "-"
        self.state = f"{self.home}/.lamina/state/{state_name}"

# SPDX-License-Identifier: Apache-2.0
"""Starts real clusters and runs real commands, for tests. Python's standard library only.

Cluster starts the daemons of a generated cluster file, each on a port that the system picks, and
ends only the processes that it started itself. Logs stay in `directory` and are shown when
something goes wrong.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import places
import short_model

BIN, MODEL, REPO = places.BIN, places.MODEL, places.REPO

UV = "uv==0.13.9"

# Generous: sanitizers and busy machines are slow. A test that waits this long has failed anyway.
START_SECONDS = 120
COMMAND_SECONDS = 300
STOP_SECONDS = 30


def run(*arguments, server=None, stdin="", timeout=COMMAND_SECONDS, program="lamina", env=None,
        prefix=()):
    """Runs a command to its end, behind the words of `prefix`; returns the CompletedProcess with text outputs."""
    command = [*prefix, str(BIN / program), *map(str, arguments)]
    if server is not None:
        command += ["--server", server]
    environment = {k: v for k, v in os.environ.items() if k != "LAMINA_SERVER"}
    environment.update(env or {})
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout,
                          env=environment)


def environment_with(*requirements):
    """The Python of a virtual environment that has the packages.

    The environment stays in the build folder for the next time. Where the packages cannot be had, the
    tests are skipped, or fail where everything must be there.
    """
    folder = BIN.parent / "environments" / "-".join(requirements)
    python = folder / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder / "installed"
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            # pip takes minutes for what uv installs in seconds.
            installed = subprocess.run([str(python), "-m", "pip", "install", "--quiet", UV],
                                       capture_output=True, text=True)
            if installed.returncode == 0:
                installed = subprocess.run([str(folder / "bin/uv"), "pip", "install", "--quiet", "--no-cache",
                                            "--python", str(python), *requirements],
                                           capture_output=True, text=True)
            if installed.returncode != 0:
                reason = f"{' '.join(requirements)} cannot be installed: {installed.stderr[-500:]}"
                if os.environ.get("LAMINA_REQUIRE_MODEL") == "1":
                    sys.exit(reason)
                print(f"skipped: {reason}")
                sys.exit(0)
            done.touch()
    return python


def run_in_environment(*requirements):
    """Runs this script again in a virtual environment that has the packages, unless it does."""
    folder = BIN.parent / "environments" / "-".join(requirements)
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    python = environment_with(*requirements)
    os.execv(python, [str(python), "-B", *sys.argv])


def json_lines(text):
    """The objects of an output with one JSON object per line."""
    return [json.loads(line) for line in text.splitlines()]


def require_model(test):
    """Skips a test without the quick start's model, or fails where it must be there."""
    if MODEL.exists():
        return
    reason = f"{MODEL} is not there; deploy/get_model.sh gets it"
    if os.environ.get("LAMINA_REQUIRE_MODEL") == "1":
        test.fail(reason)
    raise unittest.SkipTest(reason)


# deploy/test.sh looks for "NEVER RETRIED: " in what a failed test says: no busy machine makes an answer wrong.
NEVER_RETRIED = "NEVER RETRIED: wrong tokens"


def require_same_answer(test, got, wanted, where=""):
    """Fails where an answer is not the one that is wanted, with the mark that keeps deploy/test.sh from running the test again."""
    test.assertEqual(got, wanted, f"{NEVER_RETRIED} {where}".rstrip())


def cluster_file(model=None, memory_nodes=2, capacity=None, **keys):
    """The text of a cluster file on a free port, of the short model unless another is named. `keys` are further top-level keys, as JSON."""
    capacity = capacity or ("256MiB" if model else "64MiB")
    config = {
        "model": str(model or short_model.path()),
        "coordinator": {"listen": "127.0.0.1:0"},
        "compute": [{"name": "c0"}],
        "memory": [{"name": f"m{i}", "capacity": capacity} for i in range(memory_nodes)],
    }
    config.update(keys)
    return json.dumps(config, indent=1)  # JSON is YAML.


def write_token(path, token, mode=0o600):
    """A token file of a cluster; returns its path."""
    Path(path).write_text(token + "\n")
    os.chmod(path, mode)
    return path


class ClusterError(Exception):
    """A cluster did not do what was asked; has the ends of the logs."""


class Cluster:
    """A running cluster. Use as a context manager.

    cluster.lamina("status", "--json")   runs a command against it
    cluster.kill("m0")                   ends a daemon at once (SIGKILL)
    cluster.stop("m0")                   lets it drain (SIGTERM); returns its exit status
    cluster.start("m0")                  starts it again

    With a `token` its members prove that they know it; `token_file` is where it is.
    """

    def __init__(self, text=None, overrides=(), wait=True, token=None, **keys):
        self._temporary = tempfile.TemporaryDirectory(prefix="lamina-test-")
        self.directory = Path(self._temporary.name)
        self.file = self.directory / "cluster.yaml"
        self.file.write_text(text if text is not None else cluster_file(**keys))
        self.overrides = [word for o in overrides for word in ("--set", o)]
        self.token_file = self.directory / "cluster.token"
        if token is not None:
            write_token(self.token_file, token)
            self.overrides += ["--set", f"cluster_token_file={self.token_file}"]
        self._wait = wait
        self.processes = {}
        self.server = None
        self.gateway = None  # host:port of its HTTP, when the cluster file has one.
        listing = run("config", "--cluster", self.file, *self.overrides, "--list")
        if listing.returncode != 0:
            raise ClusterError(listing.stderr)
        self.roles = {line.split()[1]: line.split()[0] for line in listing.stdout.splitlines()}

    def __enter__(self):
        try:
            for name in self.roles:
                self.start(name)
            if self._wait:
                self.await_state("serving")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + STOP_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._temporary.cleanup()

    def log(self, name):
        path = self.directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def logs(self):
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.roles)

    def prefix(self, name):
        """Words before the command line of a daemon, or of the client (""); for tests that put them elsewhere."""
        del name
        return []

    def configuration(self):
        """The words of a daemon's command line that describe the cluster; for tests that describe it otherwise."""
        return ["--cluster", str(self.file)]

    def start(self, name):
        """Starts a daemon. The coordinator and the gateway are awaited, for their addresses."""
        role = self.roles[name]
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        command = [*self.prefix(name), str(BIN / f"lamina-{role}"), *self.configuration(), "--name", name,
                   "--ready-file", str(ready), *self.overrides]
        if role == "coordinator" and self.server is not None:
            command += ["--set", f"coordinator.listen={self.server}"]
        if role != "coordinator":
            command += ["--coordinator", self.server]
        with open(self.directory / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                                    stderr=log, start_new_session=True)
        if role in ("coordinator", "gateway"):
            self.await_true(lambda: ready.exists() and ready.read_text().strip(),
                            f"the {role}'s ready file", [name])
            address = ready.read_text().split()[0]
            if role == "coordinator":
                self.server = address
            else:
                self.gateway = address

    def await_true(self, condition, what, must_live=(), seconds=START_SECONDS):
        """Polls until the condition holds; fails when one of `must_live` ends.

        Between two questions it sleeps twice as long as one took, so that what it waits for has the cores.
        """
        end = time.monotonic() + seconds
        while True:
            asked = time.monotonic()
            if condition():
                return
            for name in must_live:
                if self.processes[name].poll() is not None:
                    raise ClusterError(f"{name} ended while waiting for {what}\n{self.logs()}")
            if time.monotonic() > end:
                raise ClusterError(f"waited {seconds} s for {what}\n{self.logs()}")
            time.sleep(min(0.5, max(0.05, 2 * (time.monotonic() - asked))))

    def status(self):
        """The coordinator's status; asks again while it does not answer, and fails if it has ended."""
        answers = []

        def answered():
            result = self.lamina("status", "--json")
            if result.returncode == 0:
                answers.append(json.loads(result.stdout))
            return answers

        coordinators = [name for name, role in self.roles.items() if role == "coordinator"]
        self.await_true(answered, "an answer to status", coordinators)
        return answers[0]

    def await_state(self, state, seconds=START_SECONDS):
        must_live = [n for n, p in self.processes.items() if p.poll() is None]
        if state == "serving":
            must_live = list(self.processes)
        self.await_true(lambda: self.status()["state"] == state, f"state {state}", must_live,
                        seconds)

    def lamina(self, *arguments, **keys):
        return run(*arguments, server=self.server, prefix=self.prefix(""), **keys)

    def popen(self, *arguments, **keys):
        """A command that is left running; the caller ends it."""
        return subprocess.Popen([*self.prefix(""), str(BIN / "lamina"), *arguments, "--server", self.server],
                                text=True, **keys)

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self, name):
        self.processes[name].send_signal(signal.SIGTERM)
        return self.processes[name].wait(STOP_SECONDS)

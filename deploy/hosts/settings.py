# SPDX-License-Identifier: Apache-2.0
"""What the command line and the cluster file say: Settings, and the ClusterFile that `lamina config` reads."""

import json
import os
import shlex
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from host import AS_TEXT
from output import Failure, Usage

REPO = Path(__file__).resolve().parents[2]
PROGRAMS = ("lamina", "lamina-coordinator", "lamina-compute", "lamina-memory")
IS_BUNDLE = (REPO / "BUNDLE").is_file()


@dataclass
class Settings:
    action: str = ""
    node: str = ""
    cluster: str = str(REPO / "deploy/clusters/local.yaml")
    overrides: list = field(default_factory=list)
    wait: int = 120
    grace: int = 40
    state_flag: str = ""
    bin_flag: str = ""
    follow: bool = False
    keep_going: bool = False
    no_ssh: bool = False
    ssh: str = os.environ.get("LAMINA_SSH", "ssh")
    days: int = 825

    @property
    def bin(self):
        if self.bin_flag:
            return Path(self.bin_flag)
        return REPO / "bin" if IS_BUNDLE else REPO / "build/release/bin"

    @property
    def state(self):
        """Daemons are known by this path, so it is the same however it is written."""
        if self.state_flag:
            return Path(os.path.realpath(self.state_flag))
        name = Path(self.cluster).name
        for suffix in (".yaml", ".yml"):
            name = name[:-len(suffix)] if name.endswith(suffix) else name
        states = REPO / ("state" if IS_BUNDLE else "run")  # In a bundle `run` is a program.
        return Path(os.path.realpath(states / name))

    def flags(self, with_overrides):
        """The flags that name the same cluster again, quoted for a shell; with what overrides its file if so said."""
        ssh = self.ssh if self.ssh != type(self).ssh else ""
        given = [("--cluster", self.cluster), ("--state", self.state_flag), ("--bin", self.bin_flag), ("--ssh", ssh)]
        given += [("--set", override) for override in self.overrides if with_overrides]
        return [f"{flag} {shlex.quote(value)}" for flag, value in given if value]


@dataclass(frozen=True)
class Daemon:
    role: str
    name: str
    host: str
    address: str


class ClusterFile:
    """The effective cluster file. `lamina config` does the reading."""

    def __init__(self, settings, path, overrides=()):
        need_program(settings, "lamina")
        words = [str(settings.bin / "lamina"), "config", "--json", "--cluster", str(path)]
        for override in overrides:
            words += ["--set", override]
        result = subprocess.run(words, **AS_TEXT)
        if result.returncode != 0:
            raise Failure(_reason_of(result))
        try:
            self._take(json.loads(result.stdout))
        except KeyError:
            raise Failure(f"{settings.bin / 'lamina'} is of another version than this script; build it with deploy/build.sh, or say "
                          "--bin DIR") from None

    def _take(self, read):
        self.yaml = read["yaml"]
        self.model = read["model"]
        self.token_file = read["cluster_token_file"]
        self.advertise = read["advertise"]
        self.bundle_dir = read["bundle_dir"]
        self.tls = read["tls"]
        self.gateway_tls = read["gateway_tls"]
        self.files = read["files"]
        self.http = read["http"]
        self.daemons = [Daemon(d["role"], d["name"], d["host"], d["address"]) for d in read["daemons"]]

    def paths(self):
        """{key: path} of the files that it names, but for those of nodes."""
        tls = {f"tls.{key}": path for key, path in self.tls.items() if path}
        return {"model": self.model, "cluster_token_file": self.token_file, **tls, **self.files}

    def daemon(self, name):
        return next((d for d in self.daemons if d.name == name), None)

    def hosts(self):
        """Names of the other hosts, each once."""
        return list(dict.fromkeys(d.host for d in self.daemons if not is_here(d)))


def _reason_of(result):
    try:
        return json.loads(result.stdout)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return result.stderr.strip() or result.stdout.strip()


def quoted(text):
    """As a text of YAML."""
    return "'" + text.replace("'", "''") + "'"


def is_here(daemon):
    """Whether it runs on this host. The coordinator and the gateway always do."""
    return daemon.role in ("coordinator", "gateway") or is_this_host(daemon.host)


def is_this_host(host):
    if host in ("localhost", socket.gethostname()) or host.startswith("127."):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False  # ssh may know it by that name.
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind(address)  # Only an address of this host can be had.
                return True
            except OSError:
                continue
    return False


def _build_command(folder):
    """What builds the programs that a folder lacks; of preset cuda deploy/build_cuda.sh builds two alone."""
    build = Path(os.path.realpath(folder)).parent
    if build.parent != REPO / "build" or build.name == "release":
        return "deploy/build.sh"
    missing = [program for program in (*PROGRAMS, "lamina-gateway") if not os.access(folder / program, os.X_OK)]
    return " ".join(["deploy/build.sh --preset", build.name, *(f"--target {program}" for program in missing)])


def need_program(settings, program):
    if not os.access(settings.bin / program, os.X_OK):
        raise Failure(f"{settings.bin / program} is not there; build it with {_build_command(settings.bin)}, or say --bin DIR")


def need_programs(settings):
    for program in PROGRAMS:
        need_program(settings, program)


def _check_ssh(command):
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Usage(f"--ssh or LAMINA_SSH is no command line: {command} ({error})") from None
    if not words:
        raise Usage("--ssh or LAMINA_SSH is empty; leave it out for the first ssh on the path")


def check_action(settings, actions):
    if not settings.action:
        raise Usage(f"say what to do: {', '.join(actions)}")
    if settings.action not in actions:
        raise Usage(f"unknown action '{settings.action}'; it is one of {', '.join(actions)}")
    if settings.node and settings.action not in ("logs", "restart"):
        raise Usage(f"{settings.action} is of the whole cluster and takes no NAME, here '{settings.node}'; only logs "
                    "and restart do")
    _check_ssh(settings.ssh)
    if settings.action == "restart" and settings.overrides:
        raise Usage("restart takes no --set: a daemon comes back with the settings of the cluster; for others: down, "
                    "then up --set")

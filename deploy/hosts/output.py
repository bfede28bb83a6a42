# SPDX-License-Identifier: Apache-2.0
"""What deploy/cluster.sh says: steps and errors on stderr, and its exit statuses."""

import sys

_TERMINAL = sys.stderr.isatty()


def _painted(code, text):
    return f"\033[{code}m{text}\033[0m" if _TERMINAL else text


class Failure(Exception):
    """The work failed: the cause and the remedy. Exit status 1."""


class HostFailure(Failure):
    """The same of one host. `answers`: it does, and did not do what it was asked."""

    def __init__(self, host, message, answers=False):
        super().__init__(f"{host}: {message}")
        self.host = host
        self.answers = answers


class Usage(Exception):
    """Wrong usage. Exit status 2."""


class Interrupted(BaseException):
    """A signal that ends the command, with this exit status."""

    def __init__(self, status):
        super().__init__(status)
        self.status = status


def say(words):
    """A step."""
    sys.stderr.write(f"{_painted(1, '==>')} {words}\n")  # In one piece: hosts are worked on at the same time.
    sys.stderr.flush()


def complain(words):
    print(f"{_painted(31, 'cluster.sh: error:')} {words}", file=sys.stderr, flush=True)


def show_log(where, text):
    print(f"--- end of {where}\n{text.rstrip()}\n---", file=sys.stderr, flush=True)


# The actions that read the cluster file itself, and not what the cluster was started with.
READ_THE_FILE = ("up", "certificates", "doctor")


def own_command(*words, settings):
    """A command line of ours for the same cluster, as advice."""
    script = "deploy/cluster.sh"
    return " ".join([script, *words, *settings.flags(with_overrides=words[0] in READ_THE_FILE)])

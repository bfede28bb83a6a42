#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts and stops the daemons of a cluster file, on this host and over ssh on others.

usage: deploy/cluster.sh up            [--cluster FILE] [--set KEY=VALUE]... [--wait SECONDS] [--keep-going]
       deploy/cluster.sh down          [--cluster FILE] [--grace SECONDS]
       deploy/cluster.sh status        [--cluster FILE]
       deploy/cluster.sh logs [NAME]   [--cluster FILE] [-f]
       deploy/cluster.sh restart NAME  [--cluster FILE] [--wait SECONDS]
       deploy/cluster.sh certificates  [--cluster FILE] [--days N]
       deploy/cluster.sh doctor        [--cluster FILE]

  --cluster FILE     the cluster file (default: deploy/clusters/local.yaml)
  --set KEY=VALUE    override a key of it, like pipeline.mode=fixed; `down` and the others need none
  --wait SECONDS     for the whole cluster to serve (default: 120)
  --grace SECONDS    for a daemon to drain, before it is killed (default: 40; see drain_seconds)
  --state DIR        pid files and logs (default: run/NAME OF THE FILE; of a bundle state/NAME)
  --bin DIR          the programs (default: build/release/bin, or those of the bundle)
  --keep-going       what was started stays when another daemon or host fails
  --ssh COMMAND      how other hosts are reached, like "ssh -F FILE" (default: $LAMINA_SSH, or ssh)
  --no-ssh           only this host; for others it prints what to type there
  --days N           that certificates hold (default: 825)

`up` returns when the cluster serves, or says which daemon or host does not and why, with the end of its
log, and stops what it started; so does Ctrl-C. A cluster that serves without some nodes is left so. It
starts only what is not running, so it also mends.
`up` also draws the secret of the cluster's members, a file of mode 0600, unless it is there: the
cluster file's cluster_token_file, else cluster.token in the state folder.
`restart` returns when the cluster serves with that daemon, whatever else is missing. It starts nothing
in a cluster that is down.

Nodes whose `host` is another one are started there by your own ssh: it must log in without asking
(`ssh HOST true`). Programs, model and settings go to ~/.lamina there, each version once.
The coordinator and the gateway run here. See docs/clusters.md.

examples:
  deploy/cluster.sh up
  deploy/cluster.sh up --cluster my.yaml --set memory.m0.capacity=1GiB --set coordinator.listen=127.0.0.1:0
  deploy/cluster.sh logs m0 -f
  deploy/cluster.sh restart c0
"""

import os
import signal
import sys
from pathlib import Path

import actions
import certificates
import doctor
from output import Failure, Interrupted, Usage, complain
from settings import Settings, check_action

ACTIONS = {"up": actions.up, "down": actions.down, "status": actions.status, "logs": actions.logs,
           "restart": actions.restart, "certificates": certificates.make,
           "doctor": doctor.matrix}
SECONDS_DIGITS_MAX = 7
VALUES = {"--cluster": "cluster", "--state": "state_flag", "--bin": "bin_flag", "--ssh": "ssh"}
NUMBERS = {"--wait": "wait", "--grace": "grace", "--days": "days"}
SWITCHES = {"--follow": "follow", "-f": "follow", "--keep-going": "keep_going", "--no-ssh": "no_ssh"}


def parse(words):
    """Settings; None for --help. Errors: Usage."""
    settings = Settings()
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            return None
        if word in SWITCHES:
            setattr(settings, SWITCHES[word], True)
        elif word in VALUES or word in NUMBERS or word == "--set":
            if not words or not words[0]:
                raise Usage(f"{word} wants a value")
            _take(settings, word, words.pop(0))
        elif word.startswith("-"):
            raise Usage(f"unknown flag '{word}'")
        elif not settings.action:
            settings.action = word
        elif not settings.node:
            settings.node = word
        else:
            raise Usage(f"unknown argument '{word}'")
    check_action(settings, list(ACTIONS))
    return settings


def _take(settings, flag, value):
    if flag == "--set":
        settings.overrides.append(value)
    elif flag in VALUES:
        setattr(settings, VALUES[flag], value)
    elif value.isascii() and value.isdigit() and len(value) <= SECONDS_DIGITS_MAX:
        setattr(settings, NUMBERS[flag], int(value))
    else:
        raise Usage(f"{flag} is a whole number, and not '{value}'")


def _interrupt(number, _frame):
    # Once: what follows is the undoing, which is not interrupted.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(128 + number)


def _reason(error, state):
    """What the system refused; of the state folder with what to do."""
    if error.filename is None:
        return str(error)
    words = f"{error.filename}: {error.strerror}"
    path = Path(os.path.realpath(str(error.filename)))
    if path == state or state in path.parents or path in state.parents:
        words += f"; pid files and logs go to {state}: let this user write there, or name another folder, --state DIR"
    return words


def _write_out():
    if sys.stdout is not None:  # It may be closed.
        sys.stdout.flush()


def _leave_output():
    """What cannot be written has been said: Python would try again at its end, and complain."""
    try:
        _write_out()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        settings = parse(sys.argv[1:])
        status = 0
        if settings is None:
            print(__doc__.strip())
        else:
            status = ACTIONS[settings.action](settings)
        _write_out()
        return status
    except Usage as error:
        complain(f"{error}\nTry: deploy/cluster.sh --help")
        return 2
    except Failure as error:
        complain(error)
        return 1
    except BrokenPipeError:  # Whoever read the output has gone, as `| head` does.
        return 128 + signal.SIGPIPE
    except OSError as error:
        complain(_reason(error, settings.state) if settings is not None else error)
        return 1
    except Interrupted as signalled:
        return signalled.status


if __name__ == "__main__":
    ended = main()
    _leave_output()
    sys.exit(ended)

# SPDX-License-Identifier: Apache-2.0
"""The programs of this checkout that benchmarks run; those that are missing are built when they are asked for.

As a command: builds the programs that it is given, where they are missing.
"""

import pathlib
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
BUILD = "deploy/build.sh"


def end_on_signals():
    """A benchmark that is ended or loses its terminal ends what it has started too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda which, _: sys.exit(128 + which))


def target_of(name):
    """Benchmarks have targets with underscores."""
    return name.replace("-", "_") if name.startswith("lamina-bench-") else name


def need(*names):
    """Returns when all are there, or ends the benchmark with the command that would build them."""
    missing = [name for name in names if not (BIN / name).exists()]
    if not missing:
        return
    command = [argument for name in missing for argument in ("--target", target_of(name))]
    print(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: {BUILD} {' '.join(command)}", file=sys.stderr)
    try:
        done = subprocess.run([ROOT / BUILD, *command], stdout=sys.stderr, check=False).returncode
    except OSError as error:
        sys.exit(f"{BUILD} could not be run: {error}")
    if done != 0 or not all((BIN / name).exists() for name in missing):
        sys.exit(f"{BUILD} {' '.join(command)} did not build what this suite needs")


def program(name):
    """Its path; it is built first where it is missing."""
    need(name)
    return BIN / name


if __name__ == "__main__":
    need(*sys.argv[1:])

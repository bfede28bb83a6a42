#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at scripts with ShellCheck and Pyflakes, each where it is installed (deploy/packages_test.txt).

usage: check_scripts.py

Exit status 77 when either is missing and the other finds nothing.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from source_tree import SourceTree

LEFT_OUT = 77
# What is sourced lies next to the script; BusyBox's shell is like Debian's.
SHELLCHECK = ["shellcheck", "-x", "--source-path=SCRIPTDIR", "--exclude=SC2187"]
SHELL = re.compile(r"#!.*\b(ba)?sh\b")


def scripts(root):
    """Paths of shell scripts and of Python files."""
    shell, python = [], []
    for path in (Path(file.path) for file in SourceTree(root).files):
        if path.suffix == ".py":
            python.append(str(path))
        elif path.suffix in (".sh", ".sbatch") or (path.suffix == "" and SHELL.match(first_line(root / path))):
            shell.append(str(path))
    return shell, python


def first_line(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.readline()


def main():
    root = Path(__file__).resolve().parents[2]
    shell, python = scripts(root)
    missing, failed = [], False
    for program, command in (("shellcheck", [*SHELLCHECK, *shell]), ("pyflakes3", ["pyflakes3", *python])):
        if shutil.which(program) is None:
            missing.append(program)
        else:
            failed |= subprocess.run(command, cwd=root).returncode != 0
    if failed:
        return 1
    if missing:
        print(f"{', '.join(missing)} missing: deploy/install_packages.sh --tests installs them")
        return LEFT_OUT
    print(f"{len(shell)} shell scripts and {len(python)} Python files are clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())

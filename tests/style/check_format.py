#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that clang-format would change no C++ file; --fix lets it.

usage: check_format.py [--clang-format PROGRAM] [--fix] [FILE ...]

Our format is that of clang-format 14, Debian 12's; other versions break some lines elsewhere.
"""

import argparse
import subprocess
import sys
from pathlib import Path

from source_tree import SourceTree


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clang-format", default="clang-format")
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("files", nargs="*", help="default: every C++ file of the tree")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parents[2]
    files = arguments.files or [f.path for f in SourceTree(root).files if f.is_cpp()]
    mode = ["-i"] if arguments.fix else ["--dry-run", "-Werror"]
    command = [arguments.clang_format, "--style=file", *mode, *files]
    if not files or subprocess.run(command, cwd=root).returncode == 0:
        return 0
    print(f"\nTo format them: {Path(__file__).relative_to(root)} --fix")
    return 1


if __name__ == "__main__":
    sys.exit(main())

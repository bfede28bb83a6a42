#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rules of CONTRIBUTING.md that a script can check.

usage: check_style.py [ROOT] [--rule NAME ...] [--list]

Prints one line per finding and exits with 1 when there is an error; warnings do not fail.
"""

import argparse
import sys
from pathlib import Path

import class_rules
import include_rules
import text_rules
from source_tree import SourceTree

RULES = {**class_rules.RULES, **include_rules.RULES, **text_rules.RULES}


def findings(root, rules=None):
    tree = SourceTree(root)
    found = []
    for name in rules or RULES:
        found.extend(RULES[name](tree))
    return sorted(found, key=lambda f: (f.warning, f.path, f.line, f.rule))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", nargs="?", default=Path(__file__).resolve().parents[2])
    parser.add_argument("--rule", action="append", choices=sorted(RULES))
    parser.add_argument("--list", action="store_true", help="print the names of the rules")
    arguments = parser.parse_args()
    if arguments.list:
        print("\n".join(RULES))
        return 0
    found = findings(arguments.root, arguments.rule)
    for finding in found:
        print(finding)
    errors = sum(not finding.warning for finding in found)
    print(f"{errors} errors, {len(found) - errors} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

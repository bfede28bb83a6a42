#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the clients of tests/clients/ against a cluster of this build, and writes docs/clients.md.

  scripts/run_clients.py                        all, and writes the page
  scripts/run_clients.py --only openai_chat     some, and writes nothing

Each has a virtual environment of its own below the build folder (LAMINA_BIN, build/release/bin by
default). Exit status: 0 all did what they should, 1 some did not.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CLIENTS = REPO / "tests/clients"
PAGE = REPO / "docs/clients.md"
SECONDS = 600

sys.path.insert(0, str(REPO / "tests/integration"))
from harness import BIN, MODEL, Cluster, environment_with  # noqa: E402

HEAD = """# Clients

Programs of others that were run against the gateway as they are, each in a virtual environment of its own, by
`scripts/run_clients.py`, which made this page. The model is the quick start's, with a chat template that has a place for
tools (`chat_template: tests/integration/templates/hermes.jinja`): it is too small to call tools of its own accord, so
calls are required. `gateway_tools_test` and `gateway_apis_test` run the openai and the anthropic package with every change.

| client | run as | what it did |
|---|---|---|
"""


def requirement(path):
    return re.search(r"^# requires: (\S+)$", path.read_text(), re.MULTILINE).group(1)


def run(path, url):
    """The words of a client that did what it should, or what went wrong."""
    python = environment_with(requirement(path))
    environment = {**os.environ, "LAMINA_URL": url, "LAMINA_MODEL": MODEL.stem, "PYTHONDONTWRITEBYTECODE": "1"}
    result = subprocess.run([python, path], capture_output=True, text=True, timeout=SECONDS, env=environment,
                            cwd=CLIENTS)
    if result.returncode != 0:
        return None, (result.stdout + result.stderr)[-3000:]
    return json.loads(result.stdout.strip().splitlines()[-1])["did"], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of files, without .py")
    names = parser.parse_args().only
    paths = sorted(p for p in CLIENTS.glob("*.py") if "# requires: " in p.read_text())
    if names:
        paths = [p for p in paths if p.stem in names]
    rows, failed = "", 0
    with Cluster(gateway={"listen": "127.0.0.1:0"}, memory_nodes=1,
                 chat_template=str(REPO / "tests/integration/templates/hermes.jinja")) as cluster:
        for path in paths:
            words, problem = run(path, f"http://{cluster.gateway}")
            name, version = requirement(path).split("==")
            print(f"{path.stem}: {words or 'FAILED ' + problem}", flush=True)
            failed += words is None
            rows += f"| {name} {version} | `tests/clients/{path.name}` | {words or 'failed'} |\n"
    print(f"{len(paths) - failed} of {len(paths)} clients, with the programs of {BIN}")
    if not names:
        PAGE.write_text(HEAD + rows)
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main())

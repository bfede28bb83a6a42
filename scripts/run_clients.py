#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the clients of tests/clients/ against a cluster of this build, and writes docs/clients.md.

  scripts/run_clients.py                        all, and writes the page
  scripts/run_clients.py --only openai_chat     some, and writes nothing
  scripts/run_clients.py --check                runs nothing: whether the page has the clients that there are

Each has a virtual environment of its own below the build folder (LAMINA_BIN, build/release/bin by
default), with the version that it names, from a package index. Exit status: 0 all did what they
should, or the page is right; 1 some did not, or it is not; 2 wrong usage.
"""

import argparse
import ast
import difflib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CLIENTS = REPO / "tests/clients"
PAGE = REPO / "docs/clients.md"
TEMPLATE = REPO / "tests/integration/templates/hermes.jinja"
SECONDS = 600

HEAD = """# Clients

Programs of others that were run against the gateway as they are, each in a virtual environment of its own, by
`scripts/run_clients.py`, which made this page. The model is the quick start's, SmolLM2-135M-Instruct, with a chat template
that has a place for tools (`chat_template: tests/integration/templates/hermes.jinja`): it is too small to call tools of its own
accord, so calls are required. A row is written when its program has ended with what it checks; the whole command is

```sh
scripts/run_clients.py --only NAME        # NAME of tests/clients/NAME.py; without --only all of them, and this page anew
```

| client | version | run as | what it did |
|---|---|---|---|
"""

TAIL = """
Every change is tested with some of them (`clients_test`), with the openai and the anthropic package in more detail
(`gateway_client_test`, `gateway_tools_test`, `gateway_apis_test`), with guidellm (`gateway_load_test`) and schemathesis
(`gateway_schema_test`). What the endpoints obey and refuse: [gateway](gateway.md).
"""


class Client:
    """A file of tests/clients/: what it needs, and what it says that it did when it is through."""

    def __init__(self, path):
        text = path.read_text()
        self.path = path
        self.requirement = re.search(r"^# requires: (\S+)$", text, re.MULTILINE).group(1)
        package, self.version = self.requirement.split("==")
        self.package = package.split("[")[0]
        calls = [node for node in ast.walk(ast.parse(text))
                 if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "did"]
        self.did = ast.literal_eval(calls[0].args[0])
        assert len(calls) == 1, path

    def row(self, words):
        return f"| {self.package} | {self.version} | `tests/clients/{self.path.name}` | {words} |\n"

    def run(self, python, url, model):
        """Nothing, or what went wrong."""
        met = subprocess.run([python, "-c", f"import importlib.metadata as m; print(m.version('{self.package}'))"],
                             capture_output=True, text=True, check=True).stdout.strip()
        if met != self.version:
            return f"version {met} is installed, not {self.version}"
        environment = {**os.environ, "LAMINA_URL": url, "LAMINA_MODEL": model, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            result = subprocess.run([python, self.path], capture_output=True, text=True, timeout=SECONDS,
                                    env=environment, cwd=CLIENTS)
        except subprocess.TimeoutExpired:
            return f"did not end within {SECONDS} s"
        if result.returncode != 0:
            return (result.stdout + result.stderr)[-3000:]
        said = json.loads(result.stdout.strip().splitlines()[-1])
        return "" if said == {"did": self.did} else f"it said {said}"


def all_clients():
    return [Client(p) for p in sorted(CLIENTS.glob("*.py")) if "# requires: " in p.read_text()]


def page(clients):
    return HEAD + "".join(c.row(c.did) for c in clients) + TAIL


def check(clients):
    """Whether the page says what it would say if all clients were run now, and did what they should."""
    before = PAGE.read_text() if PAGE.exists() else ""
    differences = list(difflib.unified_diff(before.splitlines(), page(clients).splitlines(),
                                            "docs/clients.md", "tests/clients/", lineterm="", n=0))
    for line in differences:
        print(line)
    print("docs/clients.md " + ("is not what scripts/run_clients.py would write" if differences else
                                f"has the {len(clients)} clients of tests/clients/"))
    return 1 if differences else 0


def run_clients(clients):
    """The names of those that failed."""
    sys.path.insert(0, str(REPO / "tests/integration"))
    from harness import BIN, MODEL, Cluster, environment_with
    failed = []
    with Cluster(model=MODEL, gateway={"listen": "127.0.0.1:0"}, memory_nodes=1, chat_template=str(TEMPLATE)) as cluster:
        for client in clients:
            problem = client.run(environment_with(client.requirement), f"http://{cluster.gateway}", MODEL.stem)
            print(f"{client.path.stem}: {'FAILED ' + problem if problem else client.did}", flush=True)
            failed += [client.path.stem] if problem else []
    print(f"{len(clients) - len(failed)} of {len(clients)} clients, with the programs of {BIN}")
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of files, without .py")
    parser.add_argument("--check", action="store_true", help="compare the page with tests/clients/, and run nothing")
    arguments = parser.parse_args()
    clients = all_clients()
    if arguments.check:
        return check(clients)
    if arguments.only:
        unknown = set(arguments.only) - {c.path.stem for c in clients}
        if unknown:
            parser.error(f"no client {', '.join(sorted(unknown))}; there are {', '.join(c.path.stem for c in clients)}")
        clients = [c for c in clients if c.path.stem in arguments.only]
    failed = run_clients(clients)
    if not arguments.only and not failed:
        PAGE.write_text(page(clients))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Some of the clients of docs/clients.md; scripts/run_clients.py runs them all."""

import subprocess
import sys
import unittest

from harness import REPO, require_model

SCRIPT = REPO / "scripts/run_clients.py"
# instructor's tools and LangChain's bind_tools: what agents are made with.
CLIENTS = ["instructor_tools", "langchain_openai_tools"]
SECONDS = 300


def run_script(*arguments):
    return subprocess.run([sys.executable, "-B", str(SCRIPT), *arguments], capture_output=True, text=True,
                          timeout=SECONDS)


class ClientsTest(unittest.TestCase):
    def test_the_page_has_the_clients_that_there_are(self):
        result = run_script("--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_a_client_that_is_not_there_is_wrong_usage(self):
        result = run_script("--only", "nobody")
        self.assertEqual(result.returncode, 2)
        self.assertIn("no client nobody; there are aiperf_profile, anthropic_messages, ", result.stderr)

    def test_clients_do_what_the_page_says(self):
        require_model(self)
        result = run_script("--only", *CLIENTS)
        print(result.stdout)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        if "skipped:" not in result.stdout:
            self.assertIn(f"{len(CLIENTS)} of {len(CLIENTS)} clients", result.stdout)


if __name__ == "__main__":
    unittest.main()

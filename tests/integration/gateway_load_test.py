#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway under a load generator that others wrote: guidellm, as it is, against a running cluster.

Nothing is said about speed; what guidellm counted must be what was asked for, and what the gateway counted.
"""

import json
import os
import re
import subprocess
import sys
import unittest
import urllib.request
from pathlib import Path

from harness import Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("guidellm==0.3.1")

REQUESTS = 12
TOKENS = 10
CONCURRENCY = 4
SECONDS = 200
TOPICS = ["rivers", "bread", "trains", "the moon", "tea", "violins", "bridges", "winter", "maps", "bees", "glass", "chess"]


class GatewayLoadTest(unittest.TestCase):
    def test_guidellm_gets_every_token_it_asked_for(self):
        require_model(self)
        with Cluster(gateway={"listen": "127.0.0.1:0"}) as cluster:
            for kind in ("chat_completions", "text_completions"):
                with self.subTest(kind=kind):
                    self.load(cluster, kind)

    def load(self, cluster, kind):
        prompts = cluster.directory / "prompts.jsonl"
        prompts.write_text("".join(json.dumps({"prompt": f"Tell me of {topic}.", "output_tokens_count": TOKENS}) + "\n"
                                   for topic in TOPICS))
        report = cluster.directory / f"{kind}.json"
        path = "/v1/chat/completions" if kind == "chat_completions" else "/v1/completions"
        before = self.answered(cluster, path)
        command = [str(Path(sys.executable).parent / "guidellm"), "benchmark", "run",
                   "--target", f"http://{cluster.gateway}", "--data", str(prompts),
                   "--rate-type", "concurrent", "--rate", str(CONCURRENCY), "--max-requests", str(REQUESTS),
                   "--disable-progress", "--disable-console-outputs", "--output-path", str(report)]
        environment = {**os.environ, "GUIDELLM__MAX_WORKER_PROCESSES": "1", "GUIDELLM__PREFERRED_ROUTE": kind,
                       "HF_HUB_OFFLINE": "1", "HOME": str(cluster.directory)}
        result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment,
                                cwd=cluster.directory)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr + cluster.logs())
        requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
        self.assertEqual([len(requests[end]) for end in ("successful", "errored", "incomplete")], [REQUESTS, 0, 0])
        for request in requests["successful"]:
            self.assertEqual(request["output_tokens"], TOKENS)
            self.assertGreater(request["prompt_tokens"], 0)
            self.assertGreater(request["time_to_first_token_ms"], 0)
            self.assertGreater(request["inter_token_latency_ms"], 0)
            self.assertTrue(request["output"])
        # One more is the question with which it sees whether anybody is there.
        self.assertGreaterEqual(self.answered(cluster, path) - before, REQUESTS)

    def answered(self, cluster, path):
        with urllib.request.urlopen(f"http://{cluster.gateway}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        found = re.search(rf'^lamina_gateway_requests_total{{path="{path}",code="200"}} (\d+)$', page, re.MULTILINE)
        return int(found.group(1)) if found else 0


if __name__ == "__main__":
    unittest.main()

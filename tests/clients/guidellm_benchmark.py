# SPDX-License-Identifier: Apache-2.0
# requires: guidellm==0.3.1
"""guidellm, the load generator: twelve chats, four at a time."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from client_settings import URL, did

REQUESTS = 12
TOKENS = 10

with tempfile.TemporaryDirectory() as folder:
    prompts = Path(folder, "prompts.jsonl")
    prompts.write_text("".join(json.dumps({"prompt": f"Count to {i}.", "output_tokens_count": TOKENS}) + "\n"
                               for i in range(REQUESTS)))
    report = Path(folder, "report.json")
    command = [Path(sys.executable).parent / "guidellm", "benchmark", "run", "--target", URL, "--data", prompts,
               "--rate-type", "concurrent", "--rate", "4", "--max-requests", str(REQUESTS), "--disable-progress",
               "--disable-console-outputs", "--output-path", report]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder, env={
        **os.environ, "GUIDELLM__MAX_WORKER_PROCESSES": "1", "GUIDELLM__PREFERRED_ROUTE": "chat_completions",
        "HF_HUB_OFFLINE": "1", "HOME": folder})
    assert result.returncode == 0, result.stdout + result.stderr
    requests = json.loads(report.read_text())["benchmarks"][0]["requests"]
assert [len(requests[end]) for end in ("successful", "errored", "incomplete")] == [REQUESTS, 0, 0]
assert all(request["output_tokens"] == TOKENS for request in requests["successful"])
did("`guidellm benchmark run`: twelve chats of ten tokens, four at a time, none failed")

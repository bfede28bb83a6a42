# SPDX-License-Identifier: Apache-2.0
# requires: vllm==0.33.0
"""vLLM's own load generator: twelve completions of random tokens, four at a time. Its environment takes 9 GB."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from client_settings import MODEL, URL, did, tokenizer_folder

REQUESTS = 12
TOKENS = 10

with tempfile.TemporaryDirectory() as folder:
    command = [Path(sys.executable).parent / "vllm", "bench", "serve", "--backend", "openai", "--base-url", URL,
               "--model", MODEL, "--tokenizer", tokenizer_folder(folder), "--dataset-name", "random", "--random-input-len", "20",
               "--random-output-len", str(TOKENS), "--num-prompts", str(REQUESTS), "--max-concurrency", "4",
               "--ignore-eos", "--save-result", "--result-dir", folder, "--result-filename", "report.json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder,
                            env={**os.environ, "HF_HUB_OFFLINE": "1", "HOME": folder, "VLLM_NO_USAGE_STATS": "1"})
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(Path(folder, "report.json").read_text())
assert [report["completed"], report["failed"], report["total_output_tokens"]] == [REQUESTS, 0, REQUESTS * TOKENS], report
did("`vllm bench serve`: twelve streamed completions of ten tokens, four at a time, none failed")

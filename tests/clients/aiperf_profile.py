# SPDX-License-Identifier: Apache-2.0
# requires: aiperf==0.13.0
"""aiperf, the load generator: twelve streamed chats, four at a time."""
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
    prompts = Path(folder, "prompts.jsonl")
    prompts.write_text("".join(json.dumps({"text": f"Count to {i}."}) + "\n" for i in range(REQUESTS)))
    command = [Path(sys.executable).parent / "aiperf", "profile", "--model", MODEL, "--url", URL, "--endpoint-type", "chat",
               "--streaming", "--input-file", prompts, "--custom-dataset-type", "single_turn", "--osl", str(TOKENS),
               "--extra-inputs", "ignore_eos:true", "--request-count", str(REQUESTS), "--concurrency", "4",
               "--tokenizer", tokenizer_folder(folder), "--use-server-token-count", "--ui", "none", "--artifact-dir", folder]
    result = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=folder,
                            env={**os.environ, "HOME": folder})
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(Path(folder, "profile_export_aiperf.json").read_text())
assert report["request_count"]["avg"] == REQUESTS, report
assert not report.get("error_summary"), report["error_summary"]
assert report["output_sequence_length"]["min"] == report["output_sequence_length"]["max"] == TOKENS, report
did("`aiperf profile`: twelve streamed chats of ten tokens, four at a time, none failed")

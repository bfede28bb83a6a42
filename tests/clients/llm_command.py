# SPDX-License-Identifier: Apache-2.0
# requires: llm==0.36
"""The command llm, told of the server in its own file."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from client_settings import KEY, MODEL, URL, did

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(
        f"- model_id: lamina\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  api_key_name: lamina\n")
    Path(folder, "keys.json").write_text(f'{{"lamina": "{KEY}"}}')
    command = Path(sys.executable).parent / "llm"
    result = subprocess.run([command, "-m", "lamina", "-o", "max_tokens", "12", "Name a colour."], capture_output=True,
                            text=True, timeout=120, env={**os.environ, "LLM_USER_PATH": folder})
assert result.returncode == 0 and result.stdout.strip(), result.stderr
did("`llm -m lamina \"Name a colour.\"`")

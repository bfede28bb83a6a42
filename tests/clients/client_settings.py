# SPDX-License-Identifier: Apache-2.0
"""What the clients of this folder are told: where the gateway is, and what it serves."""
import json
import os
import shutil
from pathlib import Path

URL = os.environ["LAMINA_URL"]
MODEL = os.environ["LAMINA_MODEL"]
KEY = os.environ.get("LAMINA_KEY", "none")


def did(what):
    """Ends a client that has done what it should."""
    print(json.dumps({"did": what}))


def weather_schema():
    return {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}


def weather_tool():
    return {"type": "function", "function": {"name": "weather", "parameters": weather_schema()}}


def tokenizer_folder(folder):
    """A tokenizer as load generators want one to make prompts and count tokens with; returns its folder."""
    folder = Path(folder, "tokenizer")
    folder.mkdir()
    shutil.copy(Path(__file__).resolve().parents[1] / "fidelity/tokenizers/smollm/tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder

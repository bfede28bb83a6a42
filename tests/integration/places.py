# SPDX-License-Identifier: Apache-2.0
"""Where the repository, the programs of the build and the quick start's model are."""

import os
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LAMINA_BIN") or REPO / "build/release/bin")
MODEL = REPO / "models/smollm2-135m-instruct.gguf"

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/dequantize.json: random blocks of every GGUF tensor type that we read, and what the
`gguf` package dequantises them to, both as hex of little-endian bytes.

Needs: numpy, gguf. Run: make_dequantize_goldens.py [OUTPUT]
"""
import json
import pathlib
import sys

import gguf
import numpy as np

# Byte offsets of the binary16 scales in a block: they must be finite, as they are in real files.
HALF_FIELDS = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": [],
    "IQ4_NL": [0], "IQ4_XS": [0],
}
SEED = 20250101


def random_blocks(name, rng):
    qtype = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[qtype]
    count = 3 if elements == 256 else 6 if elements == 32 else 64
    blocks = rng.integers(0, 256, size=(count, size), dtype=np.uint8)
    for field in HALF_FIELDS.get(name, []):
        halves = blocks[:, field:field + 2].copy().view(np.uint16)
        halves[(halves & 0x7C00) == 0x7C00] ^= 0x4000  # Infinity or NaN: not a scale.
        halves[0] &= 0x83FF  # The first block has a subnormal one.
        blocks[:, field:field + 2] = halves.view(np.uint8)
    if name in ("F16", "BF16"):
        special = [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7C00, 0xFC00, 0x7F80, 0xFF80]
        words = blocks.view(np.uint16).reshape(-1)
        words[:len(special)] = special
    return qtype, blocks


def main():
    here = pathlib.Path(__file__).parent
    output = sys.argv[1] if len(sys.argv) > 1 else here / "goldens" / "dequantize.json"
    rng = np.random.default_rng(SEED)
    goldens = {}
    for name in ["F32", "F16", "BF16", *HALF_FIELDS]:
        qtype, blocks = random_blocks(name, rng)
        values = gguf.quants.dequantize(blocks.reshape(1, -1), qtype).astype(np.float32)
        goldens[name] = {"blocks": blocks.tobytes().hex(), "values": values.tobytes().hex()}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(goldens, file, indent=0)
        file.write("\n")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh paper -- --only headinfer counts of a node's memory, and the contexts that it says fit. No cluster runs."""

import pathlib
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import headinfer_models  # noqa: E402
import paper_headinfer  # noqa: E402
import random_llama  # noqa: E402
from paper_scripts_test import printed, tensors_of  # noqa: E402


class AccountingTest(unittest.TestCase):
    MODEL = headinfer_models.Model(8, 1000, random_llama.Shape(layers=2, width=64, hidden=128, heads=4, kv_heads=2), tables=1)

    def test_weights_are_those_of_a_file_with_all_layers(self):
        shape = random_llama.Shape(layers=8, width=64, hidden=128, heads=4, kv_heads=2)
        with tempfile.TemporaryDirectory() as folder:
            random_llama.write(pathlib.Path(folder), shape)
            tensors = tensors_of(pathlib.Path(folder))
        matrices = sum(size for name, (sizes, size) in tensors.items() if len(sizes) == 2 and ".layers." in name)
        self.assertEqual(headinfer_models.weights_of(self.MODEL), matrices + 2 * 1000 * 64)

    def test_contexts_are_what_fits(self):
        tokens, head = 1024, 2 * 2 * 16
        half = {"kv": 500, "activations": 300000, "windows": 2 * tokens * head + 6192}
        parts = {"kv": 1000, "activations": 500000, "windows": 2 * tokens * head + 8192}
        counted = headinfer_models.accounting(self.MODEL, (half, parts), tokens, 500)
        logits = 4 * 64 * (1000 - 257)
        self.assertEqual((counted.scratch, counted.headers, counted.activations), (4000, 8192, 500000 + logits))
        self.assertEqual((counted.token, counted.activation_line.fixed), (800, 100000 + logits))
        self.assertEqual(counted.header_line.fixed, 4192)
        found = counted.contexts((1, 2))
        for heads in (1, 2):
            self.assertAlmostEqual(counted.weights + counted.activations + counted.scratch + counted.headers + 2 * head * heads * found[heads], headinfer_models.CARD, delta=2 * head * heads)
        for way, token in (("standard", counted.token_kv + counted.token), ("layer by layer", 2 * 2 * head + counted.token)):
            self.assertAlmostEqual(counted.weights + counted.activation_line.fixed + token * found[way], headinfer_models.CARD, delta=token)
        self.assertEqual(counted.token_kv, 8 * 2 * 2 * 2 * 16)

    def test_table_3_stops_at_what_stores_hold(self):
        # Activations of 24 KiB a token: K and V of a chunked prompt need more than that.
        parts = [{"kv": chunk << 15, "activations": chunk * 24 * 1024, "windows": 2 * headinfer_models.TOKENS * 2 * 2 * 128 + 8192} for chunk in (1024, 2048)]
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(headinfer_models, "node_parts", lambda *_: parts), \
                mock.patch.object(headinfer_models, "chosen_chunk", lambda: 2048):
            found, text = printed(paper_headinfer.table3, folder)
            self.assertIn("</svg>", (pathlib.Path(folder) / "headinfer_table3.svg").read_text())
        self.assertEqual(found["Llama-2-7B"]["head by head"], (512 << 30) // (512 << 10))
        self.assertIn("[5/5] Gemma-2-9b", text)
        self.assertIn("| 4-bit KV | not built (45k) |", text)
        self.assertIn("Head by head has the longest context of every model: reproduced", text)


if __name__ == "__main__":
    unittest.main()

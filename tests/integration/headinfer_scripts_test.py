#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and drawings of bench/run.sh paper -- --only headinfer, of figures that are given. No cluster runs."""

import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import headinfer_models  # noqa: E402
import node_memory  # noqa: E402
import paper_headinfer  # noqa: E402
import places  # noqa: E402
from paper_scripts_test import printed  # noqa: E402


class HeadInferTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def drawn(self, table):
        return (self.folder / f"headinfer_table{table}.svg").read_text()

    def test_tables_5_and_10_are_drawn(self):
        model = paper_headinfer.LLAMA
        parts = [{"kv": chunk << 15, "activations": (100 << 20) + chunk * 48 * 1024, "windows": 2 * headinfer_models.MIB * 2 * 2 * 128 + 8192} for chunk in (1024, 2048)]
        counted = headinfer_models.accounting(model, parts, headinfer_models.MIB, 2048)
        (_, same, _), text = printed(paper_headinfer.print_llama, counted, parts[-1]["windows"], self.folder)
        self.assertIn("| 1 heads a group |", text)
        # What has one size is not taken for a part of each token.
        self.assertEqual(counted.token, 48 * 1024)
        self.assertIn("| standard | 14.96 | 128.00 | 48.13 | 191.1 |", text)
        self.assertEqual(set(same.values()), {True})
        # As many lines as series, with a point for each way.
        for table, lines, ways in ((5, 2, 7), (10, 5, 4)):
            self.assertEqual((self.drawn(table).count("<polyline"), self.drawn(table).count("<circle")), (lines, lines * ways), table)
            self.assertIn(f'text-anchor="middle">{ways}</text>', self.drawn(table))

    def test_the_chunk_is_the_largest_that_fits(self):
        program = places.BIN / "lamina-bench-heads"
        if not program.exists():
            self.skipTest("benchmarks are not built")
        model, tried = paper_headinfer.LLAMA, headinfer_models.TRIED_CHUNK
        for token_kib, largest in ((264, 2048), (100, 4096), (900, 512)):
            parts = [{"kv": 2 * chunk * 4096, "activations": (64 << 20) + chunk * token_kib * 1024, "windows": 2 * headinfer_models.TOKENS * 2 * 2 * 128 + 8192}
                     for chunk in (tried // 2, tried)]
            headinfer_models.chosen_chunk.cache_clear()
            self.addCleanup(headinfer_models.chosen_chunk.cache_clear)
            with mock.patch.object(headinfer_models, "node_parts", lambda *_: parts), mock.patch.object(headinfer_models, "program", lambda _: program):
                chunk = headinfer_models.chosen_chunk()
            self.assertEqual(chunk, largest, token_kib)
            counted = headinfer_models.accounting(model, parts, headinfer_models.TOKENS, tried)
            whole = [counted.weights + 2 * headinfer_models.MIB * counted.head + sum(line.at(many) for line in counted.lines) for many in (chunk, 2 * chunk)]
            self.assertLessEqual(whole[0], headinfer_models.ALL)
            self.assertGreater(whole[1], headinfer_models.ALL)
        counted.weights = headinfer_models.ALL
        with mock.patch.object(headinfer_models, "program", lambda _: program), self.assertRaisesRegex(RuntimeError, "no chunk fits"):
            headinfer_models.largest_chunk(counted, headinfer_models.ALL, headinfer_models.MIB)

    def test_table_14_is_drawn_over_whole_heads(self):
        found = {"whole": {"prompt": 40.0, "token": 0.4}, "half": {"prompt": 20.0, "token": 0.1}}
        with mock.patch.object(paper_headinfer.headinfer_streaming, "run", lambda *_: found):
            _, text = printed(paper_headinfer.table14, mock.Mock(), self.folder, 8, "100MB", self.folder)
        self.assertIn("| decoded token | 0.4 s | 0.1 s | 4.00 | 1.98 | 1.8 | reproduced |", text)
        # From the bottom at 255 to the top at 30: half, and a quarter.
        for end in ("310.0,142.5", "310.0,198.8"):
            self.assertIn(f'points="185.0,30.0 {end}"', self.drawn(14))

    def test_a_context_of_128k_has_windows_of_one_head(self):
        asked = []

        def cluster(bench, heads, longest, **_):
            asked.append((heads, longest, bench.window))
            return contextlib.nullcontext("running")

        memory = {"weights": 1 << 20, "windows": 1 << 24, "kv": 1 << 20, "activations": 1 << 20}
        prompts = []
        with mock.patch.object(paper_headinfer.Bench, "cluster", cluster), \
                mock.patch.object(paper_headinfer.node_memory, "Peak", lambda *_: contextlib.nullcontext()), \
                mock.patch.object(paper_headinfer.node_memory, "of", lambda *_: paper_headinfer.node_memory.NodeMemory(memory, 1 << 26)), \
                mock.patch.object(paper_headinfer, "measure", lambda _, prompt: prompts.append(prompt) or (70.0, 0.3)):
            found, text = printed(paper_headinfer.long_context, self.folder, "shm")
        # The node that is measured, one of 2k tokens that it is compared with, and one whose memory is many times the tolerance.
        self.assertEqual(asked, [(1, 1 << 17, 16 << 20), (1, 1 << 11, 256 << 10), (8, 1 << 15, 32 << 20)])
        self.assertEqual(prompts, [1024, 1024, (1 << 17) - paper_headinfer.DECODED - 1, 1024, (1 << 15) - paper_headinfer.DECODED - 1])
        self.assertEqual(found["times"], {1: {1: (70.0, 0.3), 128: (70.0, 0.3)}})
        self.assertIn("both windows 16 MiB, in which whole layers have room for 16k tokens", text)
        self.assertIn("|  | 1k | 128k |\n|---|---|---|\n| 1 heads a group | 300 | 300 |", text)
        self.assertIn("| 1 head, 128k |", text)
        shape = paper_headinfer.LONG_SHAPE
        self.assertEqual(json.loads((self.folder / "config.json").read_text())["num_hidden_layers"], shape.layers)

    def check_resident(self, heavy_accounted, heavy_resident, resident):
        """The verdict and the table, for MiB that a heavy node accounts for and has, and that another one has of which 60 are accounted for."""
        def memory(windows, of_process):
            return paper_headinfer.node_memory.NodeMemory({"weights": 5 << 20, "windows": (windows - 10) << 20, "kv": 1 << 20, "activations": 4 << 20}, of_process << 20)

        found = iter([memory(20, 60), memory(heavy_accounted, heavy_resident)])
        options = []
        with mock.patch.object(paper_headinfer.Bench, "cluster", lambda *_, **keys: options.append(keys) or contextlib.nullcontext("running")), \
                mock.patch.object(paper_headinfer.node_memory, "Peak", lambda *_: contextlib.nullcontext()), \
                mock.patch.object(paper_headinfer.node_memory, "of", lambda *_: next(found)), \
                mock.patch.object(paper_headinfer, "measure", lambda *_: (1.0, 0.1)):
            bench = paper_headinfer.Bench("folder", "shm", 1 << 20)
            (near, rows), text = printed(paper_headinfer.check_resident, bench, [("small", memory(60, resident))])
        self.assertEqual(options, [{}, {"chunk_tokens": 8192, "scratch_tokens": 8192}])
        self.assertEqual([row[0] for row in rows], ["small", "8 heads, 32k, chunks of 8k"])
        return near, text

    def test_a_node_that_accounts_for_nothing_is_found_out(self):
        near, text = self.check_resident(heavy_accounted=220, heavy_resident=270, resident=105)
        self.assertTrue(near)
        self.assertIn("| 40.0 | 45.0 | +5.0 | 32.0 | too little to tell |", text)
        self.assertIn("| 200.0 | 210.0 | +10.0 | 32.0 | yes |", text)
        # It has what the one before has, and says that it has no more than the idle one.
        near, text = self.check_resident(heavy_accounted=20, heavy_resident=270, resident=105)
        self.assertFalse(near)
        self.assertIn("| 0.0 | 210.0 | +210.0 | 32.0 | no |", text)
        # It accounts for what it does not have.
        self.assertFalse(self.check_resident(heavy_accounted=220, heavy_resident=100, resident=105)[0])
        # The heavy one is near, and the other one is not.
        self.assertFalse(self.check_resident(heavy_accounted=220, heavy_resident=270, resident=150)[0])
        # Nobody weighs enough to say anything.
        near, text = self.check_resident(heavy_accounted=80, heavy_resident=120, resident=105)
        self.assertFalse(near)
        self.assertIn("| 60.0 | 60.0 | +0.0 | 32.0 | too little to tell |", text)

    def test_windows_of_other_nodes_are_not_the_process_s_own(self):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p

        def window(size):
            """A region of shm that is mapped whole: its file, and what unmaps it."""
            file = os.memfd_create("lamina")
            os.ftruncate(file, size)
            address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_POPULATE, file, ctypes.c_long(0))
            self.assertNotEqual(address, ctypes.c_void_p(-1).value)
            return file, lambda: libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))

        process = pathlib.Path("/proc/self")
        peak = node_memory.Peak(mock.Mock(pid=lambda _: "self"), "c0")
        peak.sample()
        before = peak.bytes
        own, unmap_own = window(16 << 20)
        self.addCleanup(unmap_own)
        self.addCleanup(os.close, own)
        others, unmap_others = window(64 << 20)
        os.close(others)
        peak.sample()
        self.assertEqual(node_memory.others_windows(process), 64 << 20)
        self.assertGreater(node_memory.fields_of((process / "status").read_text())[1], 72 << 20)
        most = peak.bytes
        self.assertTrue(12 << 20 < most - before < 32 << 20, most - before)
        unmap_others()
        peak.sample()
        self.assertEqual(node_memory.others_windows(process), 0)
        self.assertLess(peak.bytes - most, 8 << 20)


if __name__ == "__main__":
    unittest.main()

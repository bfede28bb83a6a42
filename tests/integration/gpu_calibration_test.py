#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_calibration.py, of results that a test makes."""

import json
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
FACTS = {"name": "Pretended", "compute_capability": "9.0", "copy_gb_per_s": 4000.5}
SLICE = {"models": [{"model": "SmolLM2-135M", "record_us": 90.5, "graph_bytes": 4096, "rows": [
    {"rows": 1, "launches_us": 41.5, "graph_us": 31.25, "launches_calls_us": 20.0, "graph_calls_us": 4.0},
    {"rows": 16, "launches_us": 43, "graph_us": 32, "launches_calls_us": 20.0, "graph_calls_us": 4.0}]}]}
SHAPE = {"kernel": "tensor", "kv_heads": 8, "group": 4, "head_dim": 128, "gb_per_s": 3800.0, "share_of_copy": 0.95}
ATTENTION = {"copy_gb_per_s": 4000.5, "prefill": [], "shapes": [
    SHAPE | {"rows": 64, "context": 4096, "ms": 0.2826},
    SHAPE | {"rows": 2, "context": 512, "ms": 0.004},
    SHAPE | {"kernel": "canonical", "rows": 64, "context": 4096, "ms": 0.5}]}
LINEAR = {"shapes": [{"layer": "gate up", "rows": 64, "ms": 0.0712, "cublaslt_ms": 0.07, "ratio": 0.98}]}


class GpuCalibrationTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-calibration-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def make(self, **steps):
        for name, results in steps.items():
            (self.folder / f"{name}.json").write_text(json.dumps(results))
        command = [sys.executable, "-B", REPO / "deploy/gpu_calibration.py", self.folder]
        done = subprocess.run(command, capture_output=True, text=True)
        path = self.folder / "calibration.json"
        return done, json.loads(path.read_text()) if path.exists() else None

    def test_points_are_in_seconds_and_by_shape(self):
        done, made = self.make(facts=FACTS, slice=SLICE, attention=ATTENTION, linear=LINEAR)

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(made.pop("date"), re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"))
        heads = {"kv_heads": 8, "group": 4, "head_dim": 128, "dtype": "bf16"}
        self.assertEqual(made, {
            "format": 1, "device": "Pretended", "compute_capability": "9.0", "copy_bytes_per_second": 4000.5e9,
            "t_slice": [{"model": "SmolLM2-135M", "dtype": "bf16", "width": 576, "q_heads": 9, "kv_heads": 3,
                         "head_dim": 64, "hidden": 1536, "points": [
                             {"rows": 1, "seconds": 31.25e-6, "launches_seconds": 41.5e-6},
                             {"rows": 16, "seconds": 32e-6, "launches_seconds": 43e-6}]}],
            "t_attn": [{"kernel": "tensor", **heads, "points": [
                            {"rows": 64, "context": 4096, "tokens": 262144, "seconds": 282.6e-6},
                            {"rows": 2, "context": 512, "tokens": 1024, "seconds": 4e-6}]},
                       {"kernel": "canonical", **heads, "points": [
                            {"rows": 64, "context": 4096, "tokens": 262144, "seconds": 500e-6}]}],
            "t_linear": [{"layer": "gate up", "dtype": "bf16", "in": 4096, "out": 28672, "points": [
                            {"rows": 64, "seconds": 71.2e-6}]}]})

    def test_steps_that_did_not_run_are_left_out(self):
        done, made = self.make(facts=FACTS, slice=SLICE)

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(set(made) & {"t_slice", "t_attn", "t_linear"}, {"t_slice"})

    def test_without_facts_or_measurements_there_is_no_file(self):
        for steps in ({"facts": FACTS}, {"attention": ATTENTION}):
            (self.folder / "facts.json").unlink(missing_ok=True)
            done, made = self.make(**steps)

            self.assertEqual((done.returncode, made), (1, None))
            self.assertIn("has no facts, or none of slice", done.stderr)

    def test_a_damaged_result_is_named_and_the_others_are_used(self):
        (self.folder / "attention.json").write_text('{"shapes": [')
        done, made = self.make(facts=FACTS, slice=SLICE, linear={"models": []})

        self.assertEqual(done.returncode, 1)
        self.assertEqual(set(made) & {"t_slice", "t_attn", "t_linear"}, {"t_slice"})
        self.assertRegex(done.stderr, "attention.json is not what .*; run that step again")
        self.assertRegex(done.stderr, "linear.json is not what .*KeyError.*; run that step again")

    def test_shapes_are_those_of_the_benchmark(self):
        source = (REPO / "bench/cuda/gpu_bench_slice.cc").read_text()
        found = re.findall(r'\{"([^"]+)", (\d+), (\d+), (\d+), (\d+), (\d+)\}', source)
        rows = [{"rows": 1, "graph_us": 1, "launches_us": 1}]
        _, made = self.make(facts=FACTS, slice={"models": [{"model": model[0], "rows": rows} for model in found]},
                            linear={"shapes": [{"layer": layer[0], "rows": 1, "ms": 1} for layer in self.layers()]})

        keys = ("width", "q_heads", "kv_heads", "head_dim", "hidden")
        self.assertGreater(len(found), 0)
        self.assertEqual([[str(curve[key]) for key in keys] for curve in made["t_slice"]],
                         [list(model[1:]) for model in found])
        self.assertEqual([(c["layer"], str(c["in"]), str(c["out"])) for c in made["t_linear"]], self.layers())

    @staticmethod
    def layers():
        source = (REPO / "bench/cuda/gpu_bench_linear.cc").read_text()
        return re.findall(r'\{"([^"]+)", (\d+), (\d+)\}', source)


if __name__ == "__main__":
    unittest.main()

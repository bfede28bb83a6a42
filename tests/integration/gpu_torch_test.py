#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_torch.py on the CPU with a tiny shape, by a Python that has PyTorch: that of vLLM, which
bench/setup_peers.sh installs, or the one that LAMINA_TORCH_PYTHON names. Without it the test says so and is left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BIN, COMMAND_SECONDS, REPO

PYTHON = Path(os.environ.get("LAMINA_TORCH_PYTHON") or REPO / "build/peers/vllm/bin/python3")
SKIPPED = 77

# The loop's greedy tokens, from no context on, compared with those of transformers with the same weights.
SAME = """
import torch, gpu_torch
shape = gpu_torch.SHAPES["tiny"]
torch.manual_seed(1)
weights = {name: gpu_torch.random_tensor(torch, sizes, "cpu") for name, sizes in gpu_torch.tensors(shape)}
# Larger, so that bf16 does not decide which is the likeliest.
weights = {name: 8 * w if w.dim() == 2 else w for name, w in weights.items()}
model = gpu_torch.Peer(torch, "cpu", 1).transformers_model(shape)
model.load_state_dict(weights)
with torch.inference_mode():
    loop = gpu_torch.Loop(torch, weights, shape, 2, 0, "cpu")
    fed = [0, 7, 19, 3, 250, 99, 42, 5]
    ours = []
    for token in fed:
        loop.ids = torch.full((2,), token)
        loop.step()
        ours.append(loop.ids[0].item())
    theirs = model(torch.tensor([fed])).logits[0].argmax(-1).tolist()
print(ours, theirs)
assert len(set(ours)) > 2 and ours == theirs
"""


class GpuTorchTest(unittest.TestCase):
    def run_python(self, *arguments):
        environment = {**os.environ, "PYTHONPATH": str(REPO / "deploy")}
        return subprocess.run([str(PYTHON), "-B", *map(str, arguments)], capture_output=True, text=True,
                              timeout=2 * COMMAND_SECONDS, env=environment)

    def test_both_are_measured_at_the_same_points(self):
        with tempfile.TemporaryDirectory(prefix="lamina-torch-") as folder:
            out = Path(folder) / "torch.json"
            done = self.run_python(REPO / "deploy/gpu_torch.py", "--out", out, "--device", "cpu", "--shape", "tiny",
                                   "--layers", 3, "--points", "1x16,2x32", "--stretch", 0.2, "--limit",
                                   COMMAND_SECONDS, "--bin", BIN, "--folder", folder)
            left = [path.name for path in Path(folder).iterdir()]
            results = json.loads(out.read_text()) if out.exists() else None

        self.assertIsNotNone(results, done.stdout + done.stderr)
        result = results["shapes"][0]
        self.assertEqual((result["shape"], result["layers"]), ("tiny", 3))
        self.assertEqual([part["part"] for part in result["lamina"]], ["pool", "device"])
        for part in (result["torch"], *result["lamina"]):
            self.assertIsNone(part["error"], part["error"])
            self.assertEqual([(p["rows"], p["context"]) for p in part["points"]], [(1, 16), (2, 32)])
        ours = [point for part in result["lamina"] for point in part["points"]]
        theirs = 2 * result["torch"]["points"]
        self.assertEqual([(r["rows"], r["context"]) for r in result["ratios"]], 2 * [(1, 16), (2, 32)])
        for ratio, our, their in zip(result["ratios"], ours, theirs):
            self.assertAlmostEqual(ratio["lamina_to_torch"], our["tokens_per_s"] / their["tokens_per_s"], places=3)
        self.assertEqual(left, ["torch.json"], "the model is removed")

    def test_the_loop_is_the_model(self):
        done = self.run_python("-c", SAME)

        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if not PYTHON.exists():
        print(f"skipped: {PYTHON} is not there, so there is no PyTorch")
        sys.exit(SKIPPED)
    unittest.main()

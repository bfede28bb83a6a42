#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_check.sh around programs that stand in for those that need a GPU."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]

RUN = '#!/bin/sh\nhere=$(dirname "$0")\nprogram=$1\nshift\nexec "$here/$program" "$@"\n'
BENCH = """#!/bin/sh
case $1 in
  facts) echo '{"name": "Pretended", "compute_capability": "9.0", "copy_gb_per_s": 4000.0}' ;;
  attention) echo '{"shapes": [{"kernel": "canonical", "group": 4, "kv_heads": 8, "head_dim": 128, "rows": 64,
    "context": 4096, "ms": 0.5, "gb_per_s": 3600.0, "share_of_copy": 0.9},
    {"kernel": "tensor", "group": 4, "kv_heads": 8, "head_dim": 128, "rows": 64,
    "context": 4096, "ms": 0.25, "gb_per_s": 3800.0, "share_of_copy": 0.95}],
    "prefill": [{"kernel": "tensor", "head_dim": 128, "group": 4, "tokens": 512, "context": 4096, "ms": 1.5, "tflop_per_s": 20.1}]}' ;;
  linear) echo "linear: INTERNAL: cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED" >&2; exit 1 ;;
  slice) echo '{"models": [{"model": "SmolLM2-135M", "record_us": 90.5, "graph_bytes": 4096, "rows": [
    {"rows": 16, "launches_us": 41.5, "graph_us": 31.25, "launches_calls_us": 20.0, "graph_calls_us": 4.0}]}]}' ;;
  store) echo '{"launches": "dependent launches", "layers": [{"model": "SmolLM2-135M", "kernel": "tensor", "rows": [
    {"rows": 16, "two_calls_ordinary_us": 21.5, "one_call_ordinary_us": 18.25, "two_calls_dependent_us": 17.5,
    "one_call_dependent_us": 15.75, "empty_us": 12.0}]}]}' ;;
  polling) while :; do :; done ;;
esac
"""
NO_DEVICE = """#!/bin/sh
echo "no CUDA device: UNAVAILABLE: cudaGetDeviceCount: cudaErrorNoDevice" >&2
exit 77
"""
# Runs the tests that the filter names, one after the other, as a device leaves them: what runs in the
# process of Fails after it would fail too.
TESTS = """#!/usr/bin/env python3
import os, sys, time

TESTS = ["Passes", "Skips", "Fails", "Crashes", "Hangs", "Passes/1", "Fails/1", "Last"]
if "--gtest_list_tests" in sys.argv:
    print("Suite.")
    print("".join(f"  {test}\\n" for test in TESTS), end="")
    sys.exit(0)
filter = [a[len("--gtest_filter="):] for a in sys.argv if a.startswith("--gtest_filter=")][0]
broken = False
for test in (f"Suite.{test}" for test in TESTS):
    if test not in filter.split(":"):
        continue
    print(f"[ RUN      ] {test}", flush=True)
    if "Crashes" in test:
        os._exit(139)
    while "Hangs" in test:
        time.sleep(1)
    broken = broken or "Fails" in test
    result = "  FAILED  " if broken else "  SKIPPED " if "Skips" in test else "       OK "
    print(f"[{result}] {test}, where GetParam() = a (b) (3 ms)", flush=True)
print("[  FAILED  ] 1 test, listed below:")
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "deploy").mkdir()
        (self.folder / "gpu").mkdir()
        for name in ("gpu_check.sh", "gpu_tests.py", "gpu_serve.py", "gpu_calibration.py", "gpu_torch.py", "gpu_peers.py", "lib.sh"):
            shutil.copy(REPO / "deploy" / name, self.folder / "deploy")
        self.write("run", RUN)
        self.write("gpu/cuda_gpu_test", TESTS)
        self.write("gpu/cuda_node_gpu_test", TESTS)
        self.write("gpu/cuda_ipc_gpu_test", TESTS)
        self.write("gpu/lamina-gpu-bench", BENCH)
        self.out = self.folder / "out"

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def check(self, *arguments):
        command = [self.folder / "deploy/gpu_check.sh", "--out", self.out, *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ)

    def test_without_a_device_nothing_is_run_and_it_says_so(self):
        self.write("gpu/lamina-gpu-bench", NO_DEVICE)

        done = self.check()

        self.assertEqual(done.returncode, 3)
        self.assertIn("cudaErrorNoDevice", done.stderr)
        self.assertIn("no CUDA device on this machine; nothing was checked", done.stderr)
        self.assertFalse((self.out / "tests.json").exists())

    def test_steps_that_fail_or_hang_leave_the_others_results(self):
        done = self.check("--limit", "4")

        self.assertEqual(done.returncode, 1)
        results = json.loads((self.out / "gpu_check.json").read_text())
        self.assertEqual(
            sorted(results), ["attention", "compute", "facts", "ipc", "nodes", "slice", "store", "tests", "waits"]
        )
        self.assertEqual(results["tests"]["failed"], ["Suite.Fails", "Suite.Crashes (ended its process)"])
        self.assertEqual(results["tests"]["left"][0], "Suite.Hangs")
        self.assertIn("CUBLAS_STATUS_EXECUTION_FAILED", (self.out / "linear.log").read_text())
        self.assertIn("canonical head 128, group  4,  64 rows at  4096: 0.5000 ms, 3600.0 GB/s, 0.900 of copy", done.stdout)
        self.assertIn("tensor    head 128, group  4,  64 rows at  4096: 0.2500 ms, 3800.0 GB/s, 0.950 of copy", done.stdout)
        self.assertIn("512 tokens at  4096 in 1.500 ms, 20.1 TFLOP/s", done.stdout)
        self.assertIn("16 rows: launches 41.5 us, graph 31.25 us", done.stdout)
        self.assertIn("16 rows: rope, store, attention in one call 18.25 us, in two 21.5 us; dependent 15.75 us, 17.5 us", done.stdout)
        self.assertIn("polling: failed, exit status 124", done.stderr)
        self.assertIn("serve: left out", done.stderr)
        self.assertNotIn("torch", done.stderr)
        calibration = json.loads((self.out / "calibration.json").read_text())
        self.assertEqual(calibration["device"], "Pretended")
        self.assertEqual(calibration["t_slice"][0]["points"][0]["seconds"], 31.25e-6)
        self.assertEqual([curve["points"][0]["seconds"] for curve in calibration["t_attn"]], [500e-6, 250e-6])
        self.assertNotIn("t_linear", calibration)

    def test_tests_behind_one_that_fails_crashes_or_hangs_run_in_a_new_process(self):
        command = [REPO / "deploy/gpu_tests.py", "--limit", "60", "--silence", "1", "--"]
        done = subprocess.run(
            [*command, self.folder / "gpu/cuda_gpu_test"], capture_output=True, text=True
        )

        self.assertEqual(done.returncode, 1)
        self.assertEqual(
            json.loads(done.stdout),
            {
                "tests": 8,
                "failures": 4,
                "failed": [
                    "Suite.Fails",
                    "Suite.Crashes (ended its process)",
                    "Suite.Hangs (hung for 1.0 s)",
                    "Suite.Fails/1",
                ],
                "left": [],
            },
        )
        self.assertIn("[       OK ] Suite.Last", done.stderr)

    def test_steps_without_time_are_left_out(self):
        done = self.check("--step", "polling", "--step", "slice", "--total", "3")

        self.assertEqual(done.returncode, 1)
        self.assertIn("slice: left out, 3 s are up", done.stderr)
        self.assertFalse((self.out / "slice.json").exists())

    def test_one_step_alone_adds_to_what_is_there(self):
        self.assertEqual(self.check("--step", "facts").returncode, 0)
        self.assertEqual(self.check("--step", "attention").returncode, 0)

        self.assertEqual(
            sorted(json.loads((self.out / "gpu_check.json").read_text())), ["attention", "facts"]
        )

    def test_a_step_that_fails_leaves_none_of_its_earlier_results(self):
        self.assertEqual(self.check("--step", "attention", "--step", "slice").returncode, 0)
        self.write("gpu/lamina-gpu-bench", BENCH.replace("attention) echo", "attention) exit 1; echo"))

        self.assertEqual(self.check("--step", "attention").returncode, 1)

        self.assertEqual(sorted(json.loads((self.out / "gpu_check.json").read_text())), ["facts", "slice"])
        self.assertNotIn("t_attn", json.loads((self.out / "calibration.json").read_text()))

    def test_a_folder_with_another_cards_results_is_refused(self):
        self.assertEqual(self.check("--step", "slice").returncode, 0)
        before = {path.name: path.read_text() for path in self.out.glob("*.json")}
        self.write("gpu/lamina-gpu-bench", BENCH.replace("Pretended", "Another"))

        for _ in range(2):
            done = self.check("--step", "attention")

            self.assertEqual(done.returncode, 1)
            self.assertIn("holds results of Pretended, and this is Another; name another folder", done.stderr)
        self.assertEqual({path.name: path.read_text() for path in self.out.glob("*.json")}, before)

    def test_a_folder_whose_card_cannot_be_compared_is_refused(self):
        self.assertEqual(self.check("--step", "slice").returncode, 0)
        self.write("gpu/lamina-gpu-bench", BENCH.replace("facts) echo", "facts) exit 1; echo"))

        done = self.check("--step", "attention")

        self.assertEqual(done.returncode, 1)
        self.assertIn("nobody knows whether --out", done.stderr)
        self.assertFalse((self.out / "attention.json").exists())

    def test_half_a_result_is_named_and_left_out(self):
        self.write("gpu/lamina-gpu-bench", BENCH.replace("store) echo '{", "store) echo '{\"cut\": [0, "))

        done = self.check("--step", "store", "--step", "slice")

        self.assertIn("store       store.json is damaged, and left out", done.stdout)
        self.assertEqual(sorted(json.loads((self.out / "gpu_check.json").read_text())), ["facts", "slice"])

    def test_serving_says_what_is_missing(self):
        (self.folder / "BUNDLE").touch()
        model = self.folder / "small.gguf"
        model.touch()

        done = self.check("--step", "serve", "--model", str(model))

        self.assertEqual(done.returncode, 1)
        self.assertIn("lamina is not in", (self.out / "serve.log").read_text())
        self.assertFalse((self.out / "serve.json").exists())

    def test_pytorch_that_is_missing_is_said(self):
        self.write("python", "#!/bin/sh\nexec python3 -S -E \"$@\"\n")  # Without packages.
        os.environ["LAMINA_TORCH_PYTHON"] = str(self.folder / "python")
        self.addCleanup(os.environ.pop, "LAMINA_TORCH_PYTHON")

        done = self.check("--step", "torch", "--step", "peers")

        self.assertEqual(done.returncode, 1)
        self.assertIn("No module named 'torch'", (self.out / "torch.log").read_text())
        self.assertIn("PyTorch is not installed", (self.out / "peers.log").read_text())

    def test_others_are_in_the_table(self):
        results = [
            {"peer": "flash", "kind": "decode", "rows": 64, "context": 4096, "ms": 0.45, "gb_per_s": 2390.1},
            {"peer": "flash", "kind": "prompt", "tokens": 512, "context": 4096, "ms": 0.184, "tflop_per_s": 175.2},
            {"peer": "flashinfer", "error": "No module named 'flashinfer'"},
        ]
        found = self.folder / "found.json"
        found.write_text(json.dumps({"results": results}))
        # As `python gpu_peers.py --out FILE`.
        self.write("python", f'#!/bin/sh\ncp {found} "$3"\n')
        os.environ["LAMINA_TORCH_PYTHON"] = str(self.folder / "python")
        self.addCleanup(os.environ.pop, "LAMINA_TORCH_PYTHON")

        done = self.check("--step", "peers")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("flash      decode,  64 rows at  4096: 0.4500 ms, 2390.1 GB/s", done.stdout)
        self.assertIn("flash       512 tokens at  4096 in 0.184 ms, 175.2 TFLOP/s", done.stdout)
        self.assertIn("flashinfer: No module named 'flashinfer'", done.stdout)

    def test_unknown_steps_are_wrong_usage(self):
        done = self.check("--step", "all")

        self.assertEqual(done.returncode, 2)
        self.assertIn("facts tests nodes compute waits attention linear slice store polling ipc serve torch peers", done.stderr)


if __name__ == "__main__":
    unittest.main()

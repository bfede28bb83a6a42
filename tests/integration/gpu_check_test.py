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
  attention) echo '{"shapes": [{"kernel": "canonical", "group": 4, "gb_per_s": 3600.0, "share_of_copy": 0.9},
    {"kernel": "tensor", "group": 4, "gb_per_s": 3800.0, "share_of_copy": 0.95}],
    "prefill": [{"kernel": "tensor", "group": 4, "tokens": 512, "context": 4096, "ms": 1.5, "tflop_per_s": 20.1}]}' ;;
  linear) echo "linear: INTERNAL: cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED" >&2; exit 1 ;;
  slice) echo '{"models": [{"model": "Small", "record_us": 90.5, "graph_bytes": 4096, "rows": [
    {"rows": 16, "launches_us": 41.5, "graph_us": 31.25, "launches_calls_us": 20.0, "graph_calls_us": 4.0}]}]}' ;;
  polling) while :; do :; done ;;
esac
"""
NO_DEVICE = """#!/bin/sh
echo "no CUDA device: UNAVAILABLE: cudaGetDeviceCount: cudaErrorNoDevice" >&2
exit 77
"""
TESTS = """#!/bin/sh
for argument; do
  case $argument in --gtest_output=json:*) file=${argument#--gtest_output=json:} ;; esac
done
cat > "$file" <<'JSON'
{"tests": 2, "failures": 1, "testsuites": [{"name": "Suite", "testsuite": [
  {"name": "Passes"}, {"name": "Fails", "failures": [{"failure": "x"}]}]}]}
JSON
exit 1
"""


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "deploy").mkdir()
        (self.folder / "gpu").mkdir()
        for name in ("gpu_check.sh", "lib.sh"):
            shutil.copy(REPO / "deploy" / name, self.folder / "deploy")
        self.write("run", RUN)
        self.write("gpu/cuda_gpu_test", TESTS)
        self.write("gpu/cuda_node_gpu_test", TESTS)
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
        done = self.check("--limit", "2")

        self.assertEqual(done.returncode, 1)
        results = json.loads((self.out / "gpu_check.json").read_text())
        self.assertEqual(
            sorted(results), ["attention", "compute", "facts", "nodes", "slice", "tests", "waits"]
        )
        self.assertEqual(results["tests"]["failed"], ["Suite.Fails"])
        self.assertIn("CUBLAS_STATUS_EXECUTION_FAILED", (self.out / "linear.log").read_text())
        self.assertIn("canonical group  4: 3600.0 GB/s, 0.900 of copy", done.stdout)
        self.assertIn("tensor    group  4: 3800.0 GB/s, 0.950 of copy", done.stdout)
        self.assertIn("512 tokens at 4096 in 1.500 ms, 20.1 TFLOP/s", done.stdout)
        self.assertIn("16 rows: launches 41.5 us, graph 31.25 us", done.stdout)
        self.assertIn("polling: failed, exit status 124", done.stderr)

    def test_one_step_alone_adds_to_what_is_there(self):
        self.assertEqual(self.check("--step", "facts").returncode, 0)
        self.assertEqual(self.check("--step", "attention").returncode, 0)

        self.assertEqual(
            sorted(json.loads((self.out / "gpu_check.json").read_text())), ["attention", "facts"]
        )

    def test_unknown_steps_are_wrong_usage(self):
        done = self.check("--step", "all")

        self.assertEqual(done.returncode, 2)
        self.assertIn("facts tests nodes compute waits attention linear slice polling", done.stderr)


if __name__ == "__main__":
    unittest.main()

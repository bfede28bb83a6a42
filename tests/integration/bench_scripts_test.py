#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh does before and around a measurement: programs that are missing, systems that nobody knows, peers that
crash, the class of the processor. Nothing is measured here."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import choice  # noqa: E402
import cluster  # noqa: E402
import peers  # noqa: E402
import processor  # noqa: E402
import remote  # noqa: E402

BUILDS = """#!/usr/bin/env bash
mkdir -p build/release/bin
printf '#!/bin/sh\\necho "measured with $*"\\n' > build/release/bin/lamina-bench-dense
chmod +x build/release/bin/lamina-bench-dense
echo "built $*"
"""
BUILDS_NOTHING = "#!/usr/bin/env bash\necho 'no compiler' >&2\nexit 1\n"

# Fails as a program does that reads past its memory, at 16 rows.
LLAMA = """#!/usr/bin/env bash
while [[ $# -gt 0 ]]; do [[ $1 == -npl ]] && rows=$2; shift; done
[[ $rows == 16 ]] && kill -SEGV $$
echo "{\\"speed_tg\\": $rows.5}"
"""
VLLM = """#!/usr/bin/env bash
echo '{"rows": 1, "context": 1024, "tokens_per_second": 40}'
kill -SEGV $$
"""

# A cluster of which each call of `status` says ten steps more of what the load has. Its memory node attends in three tenths of the time.
SERVING = """#!/usr/bin/env python3
import json, pathlib, sys, time
calls = pathlib.Path(__file__).with_name("calls")
rows = pathlib.Path(__file__).with_name("rows")
if sys.argv[1] == "bench":
    rows.write_text(sys.argv[sys.argv.index("--concurrency") + 1])
    time.sleep(60)
if sys.argv[-1] != "here:7400":
    sys.exit(1)
count = int(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text(str(count))
load = int(rows.read_text()) if rows.exists() else 0
parts = {"attend": 0.3 * time.monotonic(), "wait_query": 0.5 * time.monotonic()}
print(json.dumps({
    "state": "serving", "running": 0, "waiting": WAITING, "model": "m", "policy": "attend_remote", "chunk_choice": "1",
    "lanes": [{"context_tokens": 40}, {"context_tokens": 2}], "tokens_generated": 10 * load * count,
    "time_to_first_token": {"count": load},
    "nodes": [{"name": "m0", "role": "memory", "device": "cpu", "part_seconds": parts, "bytes_sent": 7}]}))
"""
SUITES_OF_CLUSTERS = ("fetch", "decode", "overlap", "prefill", "chat", "pipeline", "local", "gateway", "trace", "predict", "peers")

CPUINFO = """processor : 0
cpu family : 25
model : 17
model name : AMD EPYC
flags : fpu avx2 fma avx512f avx512bw avx512_bf16
"""


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class SuiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "bench").mkdir()
        for path in [*(REPO / "bench").glob("*.py"), REPO / "bench/run.sh"]:
            shutil.copy(path, self.tree / "bench")

    def run_suite(self, *arguments):
        return subprocess.run([self.tree / "bench/run.sh", *arguments], cwd=self.tree, capture_output=True, text=True,
                              timeout=120, check=False)


class RunScriptTest(SuiteTest):
    def test_builds_what_is_missing_and_says_on_what_it_runs(self):
        write_program(self.tree / "deploy/build.sh", BUILDS)

        done = self.run_suite("dense", "--", "--rounds", "3")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("built --target lamina_bench_dense", done.stderr)
        self.assertEqual(done.stdout.splitlines(), [f"machine {processor.machine()}", "measured with --rounds 3"])
        self.assertNotIn("built", self.run_suite("dense").stderr, "it is there now")

    def test_names_the_command_when_it_cannot_be_built(self):
        write_program(self.tree / "deploy/build.sh", BUILDS_NOTHING)
        for suite, target in (("dense", "lamina_bench_dense"), ("plan", "lamina_bench_plan"),
                              ("peers", "lamina_bench_bounds"), ("chat", "lamina-coordinator")):
            done = self.run_suite(suite)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"--target {target}", done.stderr)
            self.assertIn("deploy/build.sh", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_refuses_systems_that_nobody_knows(self):
        for systems in ("vllm", "lamina,gpu", ""):
            done = self.run_suite("peers", "--", "--systems", systems)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("known: lamina, local, auto, llama.cpp, vLLM", done.stderr)


class PeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        patch = mock.patch.object(peers, "PEERS", self.folder)
        patch.start()
        self.addCleanup(patch.stop)

    def printed(self, run, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            found = run(*arguments)
        return found, out.getvalue()

    def test_goes_on_behind_a_point_at_which_llama_cpp_crashes(self):
        write_program(self.folder / "llama-batched-bench", LLAMA)

        rates, text = self.printed(peers.run_llama, [(1, 1024), (16, 1024), (64, 512)], 64)

        self.assertEqual(rates, {(1, 1024): 1.5, (64, 512): 64.5})
        self.assertIn("SIGSEGV at 16 rows of 1024 tokens", text)

    def test_keeps_what_vllm_measured_before_it_crashed(self):
        write_program(self.folder / "vllm/bin/python", VLLM)

        rates, text = self.printed(peers.run_vllm, [(1, 1024), (16, 1024)], 64, "bfloat16")

        self.assertEqual(rates, {(1, 1024): 40})
        self.assertIn("SIGSEGV", text)

    def test_names_what_installs_a_peer(self):
        for run in (lambda: peers.run_llama([(1, 1)], 1), lambda: peers.run_vllm([(1, 1)], 1, "float32")):
            rates, text = self.printed(run)
            self.assertEqual(rates, {})
            self.assertIn("bench/setup_peers.sh", text)


class ServerTest(SuiteTest):
    def serve(self, waiting=0):
        write_program(self.tree / "lamina", SERVING.replace("WAITING", str(waiting)))
        for name, value in (("BIN", self.tree), ("need", lambda *_: None), ("STRETCH_SECONDS", 0.02), ("SETTLE_SECONDS", 0.0)):
            patch = mock.patch.object(cluster, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_every_suite_of_clusters_measures_one_that_serves(self):
        for suite in SUITES_OF_CLUSTERS:
            self.assertIn("--server HOST:PORT", self.run_suite(suite, "--", "--help").stdout, suite)

    def test_steps_come_from_the_counters_of_status(self):
        self.serve()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            remote.steps("here:7400", [(4, 100)], self.tree / "steps.json")

        self.assertIn("cluster here:7400: m, policy attend_remote, 2 lanes, m0 (memory, cpu)", out.getvalue())
        (row,) = json.loads((self.tree / "steps.json").read_text())["rows"]
        self.assertEqual((row["rows"], row["context"], row["context_tokens"], row["chunks"]), (4, 100, 42, "1"))
        self.assertGreater(row["tokens_per_second"], 0)
        self.assertAlmostEqual(row["step_ms"], 4e3 / row["tokens_per_second"])
        self.assertEqual(set(row["parts_ms"]["m0"]), {"attend", "wait_query"})

    def test_what_cannot_be_measured_is_named(self):
        self.serve(waiting=3)
        for address, why in (("there:7400", "no cluster serves at there:7400"), ("here:7400", "here:7400 has 3 requests of others")):
            with self.assertRaisesRegex(SystemExit, f"--server: {why}"):
                remote.steps(address, [(4, 100)], None)

    def test_what_a_suite_needs_besides_the_server_is_named(self):
        self.assertIn("--gateway HOST:PORT", self.run_suite("gateway", "--", "--server", "here:7400").stderr)
        self.assertIn("--cluster FILE", self.run_suite("predict", "--", "--server", "here:7400").stderr)


class ChoiceTest(unittest.TestCase):
    def test_plans_are_configurations_of_two_cores(self):
        names = [choice.name_of({"machines": machines, "policy": policy, "arrangement": f"1 replica, {rest}"}) for machines, policy, rest in (
            ("1 x core", "local", "local"), ("1 x both", "local", "local"),
            ("1 x core + 1 x core", "attend_remote", "attend_remote by request, 1 lane"),
            ("1 x core + 1 x core", "attend_remote", "attend_remote by request, 3 lanes"))]
        self.assertEqual(names, ["one core", "both cores", "two pools, 1 lane", "two pools, 3 lanes"])
        self.assertLessEqual(set(names), set(choice.CONFIGURATIONS))
        self.assertNotIn(choice.name_of({"machines": "2 x core", "policy": "local", "arrangement": "2 replicas, local"}), choice.CONFIGURATIONS)

    def test_the_catalogue_has_one_core_and_both(self):
        text = choice.catalogue([{"bytes_per_second": 2e9, "latency_seconds": 3e-6}])
        devices, machines = text[text.index("devices:"):text.index("links:")], text[text.index("machines:"):]
        for part in (devices, machines):
            self.assertEqual(re.findall(r"- name: (\w+)", part), ["core", "both"])
        self.assertIn("2.000 GB/s", text)


class ProcessorTest(unittest.TestCase):
    def test_knows_the_classes(self):
        for flags, name in (("avx2 fma", "AVX2"), ("avx2 fma avx512f avx512bw", "AVX-512"),
                            ("avx2 fma avx512f avx512bw avx512_bf16", "AVX-512 BF16"),
                            ("avx512f avx512_bf16 amx_bf16 amx_tile", "AMX"), ("sse2", "x86-64 without AVX2")):
            self.assertEqual(processor.class_of(flags.split()), name)

    def test_describes_a_processor(self):
        self.assertEqual(processor.describe(CPUINFO, 2), "class AVX-512 BF16: AMD EPYC (family 25, model 17), 2 cores")
        self.assertTrue(json.dumps(processor.machine()).startswith('"class '))


if __name__ == "__main__":
    unittest.main()

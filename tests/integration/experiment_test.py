#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/experiment.py in the simulator: a matrix is run, goes on after an interruption, and is reported; what a file cannot mean is named."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
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
        results.write_text(results.read_text() + "\n")
        again = self.run_file(text)
        self.assertIn("8 runs, 5 done before", again.stdout)
        self.assertEqual(again.returncode, 0, again.stderr)
        with open(self.folder / "out/results.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 8)
        self.assertEqual({row["cluster"] for row in rows}, {"one", "two"})
        # Equal seeds give equal results.
        by_key = {}
        for line in results.read_text().splitlines():
            if line.endswith("}"):
                found = json.loads(line)
                by_key[found["key"]] = found["result"]
        self.assertEqual(by_key[json.loads(lines[7])["key"]], json.loads(lines[7])["result"])
        report = self.experiment("report", self.folder / "out")
        self.assertEqual(report.returncode, 0, report.stderr)
        self.assertIn("| two |", report.stdout)
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


if __name__ == "__main__":
    unittest.main()

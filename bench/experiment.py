# SPDX-License-Identifier: Apache-2.0
"""Experiments: a matrix of clusters, models, loads and seeds, on real clusters or in the simulator.

  bench/run.sh experiment -- run FILE.yaml --out DIR      runs what is missing in DIR; again after an interruption: goes on
  bench/run.sh experiment -- report DIR                   tables and plots of what is there

FILE.yaml:

  models: [models/a.gguf]          # left out: each cluster file's own
  seeds: [0, 1]
  slo: ttft=2s,tpot=80ms,at=p95    # left out: none
  clusters:
    - {name: started, file: deploy/clusters/local.yaml, set: ["pipeline.lanes=2"]}   # by deploy/cluster.sh, on the file's hosts
    - {name: running, server: "10.0.0.1:7400"}                                       # as it is; its own model
    - {name: planned, file: plan.yaml, simulate: {compute: H200, memory: EPYC-9654, link: 200G-rdma}}
  loads:
    - {name: open, rate: 2, input: 128, output: 64, requests: 100}
    - {name: closed, concurrency: 8, input: 128, output: 64, requests: 64}
    - {name: mine, trace: requests.jsonl}

A closed load is left out of simulated clusters, and lengths or prefix of real ones; run says so. DIR gets results.jsonl (a line a run, with
commit, machine and calibration), current.json (which of these the file means now), results.csv, and from report: report.md and *.svg.
"""

import argparse
import csv
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

import yaml

import cluster
import processor
import svg

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAMINA = ROOT / "build/release/bin/lamina"
CLUSTER_SH = ROOT / "deploy/cluster.sh"
FIGURES = (("output_tokens_per_second",), ("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"), ("slo", "goodput"),
           ("cost", "per_million_input"), ("cost", "per_million_output"))
SPREAD = ("lengths", "prefix", "prefixes")  # As of lamina simulate's --load; what runs on a real cluster has traces for it.
KNOWN = {"": {"models", "seeds", "slo", "clusters", "loads"}, "clusters": {"name", "file", "set", "server", "simulate"},
         "simulate": {"compute", "memory", "link", "catalogue", "calibration", "cells", "failures"},
         "loads": {"name", "rate", "concurrency", "trace", "input", "output", "requests", *SPREAD}}


class Refused(Exception):
    """What the file says cannot be run; the message names the key."""


def check_keys(where, entry, known):
    if not isinstance(entry, dict):
        raise Refused(f"{where}: should be a map")
    for key in entry:
        if key not in known:
            raise Refused(f"{where}: unknown key '{key}'; known: {', '.join(sorted(known))}")


def check_names(where, entries):
    if not isinstance(entries, list) or not entries:
        raise Refused(f"{where}: should be a list with one entry at least")
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise Refused(f"{where}: every entry needs a name of its own")


def read_plan(path):
    try:
        plan = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise Refused(f"{path}: {error}") from error
    check_keys(path, plan, KNOWN[""])
    for list_name in ("clusters", "loads"):
        check_names(list_name, plan.get(list_name))
        for entry in plan[list_name]:
            check_keys(f"{list_name}.{entry['name']}", entry, KNOWN[list_name])
    for entry in plan["clusters"]:
        if ("file" in entry) == ("server" in entry):
            raise Refused(f"clusters.{entry['name']}: give one of file, server")
        if "simulate" in entry:
            check_keys(f"clusters.{entry['name']}.simulate", entry["simulate"], KNOWN["simulate"])
            if "file" not in entry or "compute" not in entry["simulate"]:
                raise Refused(f"clusters.{entry['name']}.simulate: needs a file, and compute: a device of the catalogue")
    for entry in plan["loads"]:
        if sum(key in entry for key in ("rate", "concurrency", "trace")) != 1:
            raise Refused(f"loads.{entry['name']}: give one of rate, concurrency, trace")
    return plan


def why_left_out(where, load):
    """Why the cluster cannot have the load; None if it can."""
    if "simulate" in where:
        return "a closed loop is not simulated; give a rate or a trace" if "concurrency" in load else None
    key = next((key for key in SPREAD if key in load), None)
    return f"{key} is of simulated clusters; give a real one a trace" if key else None


def runs_of(plan):
    """Every run of the matrix, those of one cluster and model side by side: these share the daemons. Says which cannot be."""
    runs, left_out = [], []
    for where in plan["clusters"]:
        models = [None] if "server" in where else plan.get("models") or [None]
        reasons = {load["name"]: why_left_out(where, load) for load in plan["loads"]}
        left_out += [f"clusters.{where['name']} with loads.{name}: {reason}" for name, reason in reasons.items() if reason]
        for model in models:
            for load in plan["loads"]:
                for seed in (plan.get("seeds") or [0]) if not reasons[load["name"]] else []:
                    runs.append({"cluster": where, "model": model, "load": load, "seed": seed, "slo": plan.get("slo")})
    if not runs:
        raise Refused("nothing can be run: " + "; ".join(left_out))
    for line in left_out:
        print(f"left out: {line}", flush=True)
    for run in runs:
        text = json.dumps([run["cluster"], run["model"], run["load"], run["seed"], run["slo"]], sort_keys=True)
        run["key"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return runs


def lamina(*arguments):
    done = subprocess.run([LAMINA, *arguments, "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"lamina {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}")
    return json.loads(done.stdout)


def load_flags(load):
    if "trace" in load:
        return ["--trace", load["trace"]]
    flags = ["--input-tokens", load.get("input", 128), "--output-tokens", load.get("output", 64), "--requests", load.get("requests", 32)]
    return flags + (["--rate", load["rate"]] if "rate" in load else ["--concurrency", load["concurrency"]])


def simulate(run):
    where, load = run["cluster"], run["load"]
    flags = ["--cluster", where["file"], "--seed", run["seed"]]
    for setting in where.get("set", []):
        flags += ["--set", setting]
    for key, value in where["simulate"].items():
        flags += [f"--{key}", value]
    if run["model"]:
        flags += ["--model", run["model"]]
    if "trace" in load:
        flags += ["--trace", load["trace"]]
    else:
        spread = "".join(f",{key}={load[key]}" for key in SPREAD if key in load)
        flags += ["--load", f"rate={load['rate']},input={load.get('input', 128)},output={load.get('output', 64)}{spread}", "--requests",
                  load.get("requests", 1000)]
    if run["slo"]:
        flags += ["--slo", run["slo"]]
    return lamina("simulate", *map(str, flags))


def bench(run, server):
    flags = [*load_flags(run["load"]), "--seed", run["seed"], "--server", server]
    if run["slo"]:
        flags += ["--slo", run["slo"]]
    return lamina("bench", *map(str, flags))


class Started:
    """A cluster of a file, started by deploy/cluster.sh and stopped at the end; on a port of its own where all nodes are on this host."""

    def __init__(self, where, model, folder):
        self.flags = ["--cluster", where["file"], "--state", str(folder / "state")]
        config = yaml.safe_load(pathlib.Path(where["file"]).read_text(encoding="utf-8"))
        nodes = (config.get("compute") or []) + (config.get("memory") or [])
        if {node.get("host", "localhost") for node in nodes} <= {"localhost", "127.0.0.1"}:
            self.server = f"127.0.0.1:{cluster.free_port()}"
            self.settings = ["--set", f"coordinator.listen={self.server}"]
        else:  # Other hosts find the coordinator where the file says.
            self.server = config["coordinator"]["listen"].replace("0.0.0.0:", "127.0.0.1:")
            self.settings = []
        for setting in where.get("set", []) + ([f"model={model}"] if model else []):
            self.settings += ["--set", setting]

    def __enter__(self):
        done = subprocess.run([CLUSTER_SH, "up", *self.flags, *self.settings], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the cluster did not start: {done.stderr.strip()}")
        return self

    def __exit__(self, *_):
        subprocess.run([CLUSTER_SH, "down", *self.flags], capture_output=True, check=False)


def provenance(run):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    calibration = run["cluster"].get("simulate", {}).get("calibration")
    file = pathlib.Path(calibration.split("=", 1)[1]) if calibration else None
    return {"commit": commit, "machine": processor.machine(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "calibration": hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file else None}


def figure(result, path):
    for key in path:
        result = result.get(key) if isinstance(result, dict) else None
    return result


def done_of(out):
    file = out / "results.jsonl"
    if not file.exists():
        return {}
    lines = file.read_text(encoding="utf-8").splitlines()
    return {entry["key"]: entry for entry in (json.loads(line) for line in lines if line.endswith("}"))}


def write_csv(out, entries):
    with open(out / "results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cluster", "model", "load", "seed", "simulated", *("_".join(path) for path in FIGURES), "commit", "machine", "date"])
        for entry in entries:
            writer.writerow([entry["cluster"], entry["model"], entry["load"], entry["seed"], entry["simulated"],
                             *(figure(entry["result"], path) for path in FIGURES), entry["commit"], entry["machine"], entry["date"]])


def record(out, run, result):
    entry = {"key": run["key"], "cluster": run["cluster"]["name"], "model": run["model"] or result.get("model", ""), "load": run["load"]["name"],
             "seed": run["seed"], "simulated": "simulate" in run["cluster"], "rate": run["load"].get("rate"), **provenance(run), "result": result}
    with open(out / "results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
    return entry


def run_all(plan, out):
    out.mkdir(parents=True, exist_ok=True)
    runs, done = runs_of(plan), done_of(out)
    todo = [run for run in runs if run["key"] not in done]
    (out / "current.json").write_text(json.dumps([run["key"] for run in runs]), encoding="utf-8")
    print(f"{len(runs)} runs, {len(runs) - len(todo)} done before")
    begun, finished, started, holds = time.monotonic(), 0, None, None
    try:
        for run in todo:
            where = run["cluster"]
            if "simulate" in where:
                result = simulate(run)
            elif "server" in where:
                result = bench(run, where["server"])
            else:
                if holds != (where["name"], run["model"]):
                    if started is not None:
                        started.__exit__()
                    started = Started(where, run["model"], out)
                    started.__enter__()
                    holds = (where["name"], run["model"])
                result = bench(run, started.server)
            done[run["key"]] = record(out, run, result)
            finished += 1
            left = (time.monotonic() - begun) / finished * (len(todo) - finished)
            print(f"{finished}/{len(todo)} {where['name']} {run['load']['name']} seed {run['seed']}: "
                  f"{result['output_tokens_per_second']:.1f} tokens/s; {left:.0f} s left", flush=True)
    finally:
        if started is not None:
            started.__exit__()
        write_csv(out, [done[run["key"]] for run in runs if run["key"] in done])


def mean(values):
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


def report(out):
    done = done_of(out)
    current = out / "current.json"
    keys = set(json.loads(current.read_text(encoding="utf-8"))) if current.exists() else set(done)
    entries = [entry for key, entry in done.items() if key in keys]
    if not entries:
        raise Refused(f"{out}: no results; run an experiment there first")
    groups = {}
    for entry in entries:
        groups.setdefault((entry["cluster"], entry["model"], entry["load"]), []).append(entry)
    text = ["# Results", "", "| cluster | model | load | runs | " + " | ".join(" ".join(path) for path in FIGURES) + " | from |",
            "|" + "---|" * (5 + len(FIGURES))]
    for (where, model, load), group in groups.items():
        cells = [mean(figure(entry["result"], path) for entry in group) for path in FIGURES]
        source = "simulated" if group[0]["simulated"] else "measured"
        text.append(f"| {where} | {os.path.basename(model)} | {load} | {len(group)} | " +
                    " | ".join("" if cell is None else f"{cell:.4g}" for cell in cells) + f" | {source}, {group[0]['commit']} |")
    machines = sorted({entry["machine"] for entry in entries})
    older = len(done) - len(entries)
    left_out = f" {older} runs of other settings are left out." if older else ""
    text += ["", "Means over seeds. Machines: " + "; ".join(machines) + "." + left_out, ""]
    for path in (("output_tokens_per_second",), ("ttft_ms", "p50"), ("tpot_ms", "p50")):
        series = []
        for where in sorted({entry["cluster"] for entry in entries}):
            points = {}
            for entry in entries:
                if entry["cluster"] == where and entry["rate"]:
                    points.setdefault(entry["rate"], []).append(figure(entry["result"], path))
            if len(points) > 1:
                series.append((where, [(rate, mean(values)) for rate, values in sorted(points.items())]))
        if series:
            name = "_".join(path) + ".svg"
            svg.chart(str(out / name), " ".join(path), "requests a second", " ".join(path), series)
            text.append(f"![{' '.join(path)}]({name})")
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("file")
    run.add_argument("--out", required=True, type=pathlib.Path)
    commands.add_parser("report").add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        if arguments.command == "run":
            run_all(read_plan(arguments.file), arguments.out)
        else:
            report(arguments.out)
    except (Refused, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Experiments: a matrix of clusters, models, loads and seeds, on real clusters or in the simulator.

  lamina experiment FILE.yaml --out DIR      runs what is missing in DIR; again after an interruption: goes on
  lamina experiment report DIR               tables and plots of what is there

bench/run.sh experiment [--json FILE] -- run FILE.yaml --out DIR, and -- report DIR, do the same.

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
    - {name: real text, concurrency: 8, sharegpt: dialogues.json, turns: all, requests: 200}   # turns: 1 if left out

Left out, a load has 100 requests of 128 tokens in and 64 out, measured and simulated alike. A closed load and real text are left out of
simulated clusters, and lengths or prefix of real ones; run says so. Each run has prompts of its own, which no prefix cache has from another
one. A run that fails is said, and the others go on; the next call makes it again. DIR gets results.jsonl (a line a run, with the commit and the
machine of this script, the calibration, and a real cluster's nodes as they say themselves), current.json (which of these the file means now),
results.csv, and from report: report.md and *.svg.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

try:
    import yaml
except ModuleNotFoundError:
    sys.exit("Python has no package yaml: apt-get install python3-yaml")

import cluster
import processor
import svg
from programs import need

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAMINA = ROOT / "build/release/bin/lamina"
CLUSTER_SH = ROOT / "deploy/cluster.sh"
FIGURES = (("output_tokens_per_second",), ("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"), ("slo", "goodput"),
           ("cost", "per_million_input"), ("cost", "per_million_output"))
REQUESTS, INPUT, OUTPUT = 100, 128, 64  # What a load has that says nothing else.
METHOD = 2  # Another one for each change of what is measured: results of the one before are no longer taken for this one's.
SPREAD = ("lengths", "prefix", "prefixes")  # As of lamina simulate's --load; what runs on a real cluster has traces for it.
KNOWN = {"": {"models", "seeds", "slo", "clusters", "loads"}, "clusters": {"name", "file", "set", "server", "simulate"},
         "simulate": {"compute", "memory", "link", "catalogue", "calibration", "cells", "failures"},
         "loads": {"name", "rate", "concurrency", "trace", "sharegpt", "turns", "input", "output", "requests", *SPREAD}}


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
        unlike = [key for key in ("trace", "input", "output", *SPREAD) if key in entry]
        if "sharegpt" in entry and unlike:
            raise Refused(f"loads.{entry['name']}: sharegpt has lengths of its own; leave out {unlike[0]}")
        if "turns" in entry and "sharegpt" not in entry:
            raise Refused(f"loads.{entry['name']}: turns are those of sharegpt: FILE")
    return plan


def why_left_out(where, load):
    """Why the cluster cannot have the load; None if it can."""
    if "simulate" in where and "sharegpt" in load:
        return "real text is for real clusters; give a simulated one a trace"
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
        text = json.dumps([METHOD, run["cluster"], run["model"], run["load"], run["seed"], run["slo"]], sort_keys=True)
        run["key"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return runs


def lamina(*arguments):
    """What it reports. A load of which some requests failed has a report too, with how many, and exit status 1."""
    done = subprocess.run([LAMINA, *arguments, "--json"], capture_output=True, text=True, check=False)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {}
    if done.returncode == 0 or (done.returncode == 1 and "requests" in found):
        return found
    raise RuntimeError(f"lamina {' '.join(map(str, arguments))}: {done.stderr.strip() or done.stdout.strip()}")


def load_flags(load):
    if "trace" in load:
        return ["--trace", load["trace"]]
    if "sharegpt" in load:
        flags = ["--sharegpt", load["sharegpt"], "--turns", load.get("turns", 1)]
    else:
        flags = ["--input-tokens", load.get("input", INPUT), "--output-tokens", load.get("output", OUTPUT)]
    return [*flags, "--requests", load.get("requests", REQUESTS), *(["--rate", load["rate"]] if "rate" in load else ["--concurrency", load["concurrency"]])]


def simulate(run):
    """All requests count, and their tokens a second are those of the time from the first arrival to the last answer, as measured ones are."""
    where, load = run["cluster"], run["load"]
    flags = ["--cluster", where["file"], "--seed", run["seed"], "--warm-up", 0]
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
        flags += ["--load", f"rate={load['rate']},input={load.get('input', INPUT)},output={load.get('output', OUTPUT)}{spread}", "--requests",
                  load.get("requests", REQUESTS)]
    if run["slo"]:
        flags += ["--slo", run["slo"]]
    found = lamina("simulate", *map(str, flags))
    try:
        return as_measured(found, run["slo"])
    except KeyError as key:
        raise RuntimeError(f"lamina simulate says no {key}: {LAMINA} is of another version; build it anew") from key


def as_measured(result, slo):
    """A simulation's result with `lamina bench`'s meaning of tokens a second and of goodput."""
    seconds = max(result["answer_seconds"], 1e-9)
    goodput = result["requests"] / seconds if result["slo"]["met"] else 0.0
    return {**result, "failed": result["failed"] + result["refused"], "output_tokens_per_second": result["answer_tokens"] / seconds,
            "slo": {**result["slo"], "goodput": goodput} if slo else None}


def prompt_seed(run):
    """Prompts that no run on the same daemons had, itself before it failed included: those would lie in the prefix cache. Its result says it."""
    return int(hashlib.sha256(f"{run['key']} {time.time_ns()}".encode()).hexdigest()[:15], 16)


def bench(run, server):
    flags = [*load_flags(run["load"]), "--seed", run["seed"], "--prompt-seed", prompt_seed(run), "--server", server]
    if run["slo"]:
        flags += ["--slo", run["slo"]]
    return lamina("bench", *map(str, flags))


def served_by(server, hosts):
    """The cluster there, as it says itself. `hosts`: of its nodes, where a file names them."""
    status = lamina("status", "--server", server)
    nodes = [{**{key: node.get(key) for key in ("name", "role", "device", "kernels")}, "host": hosts.get(node.get("name"))} for node in status.get("nodes", [])]
    return {"server": server, "version": status.get("version"), "nodes": nodes}


def nodes_text(entry):
    """Of a real cluster; empty for a simulated one, and for results that do not have it."""
    served = entry.get("served_by") or {"nodes": []}
    nodes = [f"{node['name']} {node['role']} {node['device']}{' (' + node['kernels'] + ')' if node['kernels'] else ''}"
             f"{' at ' + node['host'] if node['host'] else ''}" for node in served["nodes"]]
    known = any(node["host"] for node in served["nodes"])  # Ports of clusters that are started here differ each time.
    return ("" if known else f"{served['server']}: ") + "; ".join(nodes) if nodes else ""


class Started:
    """A cluster of a file, started by deploy/cluster.sh and stopped at the end; on a port of its own where all nodes are on this host."""

    def __init__(self, where, model, folder):
        self.flags = ["--cluster", where["file"], "--state", str(folder / "state")]
        try:
            config = yaml.safe_load(pathlib.Path(where["file"]).read_text(encoding="utf-8"))
            self.hosts = {node.get("name"): node.get("host", "localhost") for node in (config.get("compute") or []) + (config.get("memory") or [])}
        except (yaml.YAMLError, AttributeError, TypeError) as error:
            raise RuntimeError(f"{where['file']} is no cluster file: {error}") from error
        if set(self.hosts.values()) <= {"localhost", "127.0.0.1"}:
            self.server = f"127.0.0.1:{cluster.free_port()}"
            self.settings = ["--set", f"coordinator.listen={self.server}"]
        else:  # Other hosts find the coordinator where the file says.
            try:
                self.server = config["coordinator"]["listen"].replace("0.0.0.0:", "127.0.0.1:")
            except (KeyError, TypeError) as error:
                raise RuntimeError(f"{where['file']} has no coordinator.listen, which nodes of other hosts need") from error
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


def checksum(where):
    """Of the calibration that a simulated cluster has; None: it has none, or its file cannot be read, which its runs say."""
    calibration = where.get("simulate", {}).get("calibration")
    try:
        return hashlib.sha256(pathlib.Path(str(calibration).split("=", 1)[-1]).read_bytes()).hexdigest()[:16] if calibration else None
    except OSError:
        return None


def provenance(run):
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit, "machine": processor.machine(), "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "calibration": checksum(run["cluster"])}


def warn_of_calibrations(plan, entries):
    """Results stay when a calibration file is written anew: its path, which the file names, is the same."""
    for where in plan["clusters"]:
        now = checksum(where)
        older = [entry for entry in entries if entry["cluster"] == where["name"] and entry["calibration"] != now]
        if older:
            print(f"warning: clusters.{where['name']}: {len(older)} runs that were made before have another calibration than its file is now; "
                  "give another --out to make them again", file=sys.stderr, flush=True)


def figure(result, path):
    for key in path:
        result = result.get(key) if isinstance(result, dict) else None
    return result


def entry_of(line):
    """None of a line that was cut off."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "key" in entry else None


def done_of(out):
    file = out / "results.jsonl"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    return {entry["key"]: entry for entry in map(entry_of, lines) if entry is not None}


def append_line(path, text):
    """On a line of its own, also behind one that was cut off."""
    with open(path, "a+b") as file:
        end = file.seek(0, os.SEEK_END)
        if end > 0:
            file.seek(end - 1)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode() + b"\n")


def figures_of(entries):
    """Those that the results can have: without an SLO there is no goodput."""
    return [path for path in FIGURES if path[0] != "slo" or any(figure(entry["result"], path) is not None for entry in entries)]


def write_csv(out, entries):
    figures = figures_of(entries)
    with open(out / "results.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["cluster", "model", "load", "seed", "simulated", "requests", "failed", *("_".join(path) for path in figures), "basis", "commit",
                         "machine", "nodes", "version", "calibration", "date"])
        for entry in entries:
            result = entry["result"]
            writer.writerow([entry["cluster"], entry["model"], entry["load"], entry["seed"], entry["simulated"], result.get("requests"),
                             result.get("failed"), *(figure(result, path) for path in figures), basis_of(entry), entry["commit"], entry["machine"],
                             nodes_text(entry), (entry.get("served_by") or {}).get("version"), entry["calibration"], entry["date"]])


def record(out, run, result, served):
    load = run["load"]
    entry = {"key": run["key"], "cluster": run["cluster"]["name"], "model": run["model"] or result.get("model", ""), "load": load["name"],
             "seed": run["seed"], "simulated": "simulate" in run["cluster"], "rate": load.get("rate"), "shape": shape_of(load), **provenance(run),
             "served_by": served, "result": result}
    append_line(out / "results.jsonl", json.dumps(entry))
    return entry


def shape_of(load):
    """What loads have alike that stand on one line of a plot."""
    if "sharegpt" in load:
        return {"text": os.path.basename(load["sharegpt"]), "turns": load.get("turns", 1)}
    return {"input": load.get("input", INPUT), "output": load.get("output", OUTPUT), **{key: load[key] for key in SPREAD if key in load}}


class Clusters:
    """The cluster of a file that runs now: it serves all loads of its model, unless one of them fails."""

    def __init__(self, folder):
        self.folder = folder
        self.started = self.holds = None
        self.broken = {}  # (Cluster, model): why it did not start. It is not tried again for each load.

    def serving(self, run):
        """(Its address, {node: host})."""
        wanted = (run["cluster"]["name"], run["model"])
        if wanted in self.broken:
            raise RuntimeError(self.broken[wanted])
        if self.holds != wanted:
            self.end()
            try:
                self.started = Started(run["cluster"], run["model"], self.folder)
                self.started.__enter__()
            except (RuntimeError, OSError) as error:
                self.end()
                self.broken[wanted] = str(error)
                raise
            self.holds = wanted
        return self.started.server, self.started.hosts

    def end(self):
        if self.started is not None:
            self.started.__exit__()
        self.started = self.holds = None


def result_of(run, clusters):
    """(Its figures, the cluster that served it: none of a simulation)."""
    where = run["cluster"]
    if "simulate" in where:
        return simulate(run), None
    server, hosts = (where["server"], {}) if "server" in where else clusters.serving(run)
    served = served_by(server, hosts)
    return bench(run, server), served


def run_all(plan, out):
    """How many runs failed."""
    out.mkdir(parents=True, exist_ok=True)
    runs, done = runs_of(plan), done_of(out)
    todo = [run for run in runs if run["key"] not in done]
    (out / "current.json").write_text(json.dumps([run["key"] for run in runs]), encoding="utf-8")
    print(f"{len(runs)} runs, {len(runs) - len(todo)} done before", flush=True)
    warn_of_calibrations(plan, [done[run["key"]] for run in runs if run["key"] in done])
    begun, failed, clusters = time.monotonic(), 0, Clusters(out)
    try:
        for number, run in enumerate(todo, 1):
            name = f"{number}/{len(todo)} {run['cluster']['name']} {run['load']['name']} seed {run['seed']}"
            try:
                result, served = result_of(run, clusters)
                done[run["key"]] = record(out, run, result, served)
            except (RuntimeError, OSError) as error:
                print(f"{name} failed: {error}", file=sys.stderr, flush=True)
                failed += 1
                clusters.end()  # The next run finds none that this one left in a bad state.
                continue
            left = (time.monotonic() - begun) / number * (len(todo) - number)
            lost = f", {result['failed']} of {result['requests']} requests failed" if result.get("failed") else ""
            print(f"{name}: {result['output_tokens_per_second']:.1f} tokens/s{lost}; {left:.0f} s left", flush=True)
    finally:
        clusters.end()
        write_csv(out, [done[run["key"]] for run in runs if run["key"] in done])
    if failed:
        print(f"{failed} of {len(todo)} runs failed; the same command makes them again", file=sys.stderr)
    return failed


def mean(values):
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


def current_of(out):
    """(The runs that the file means now, with their results; how many others are there)."""
    done = done_of(out)
    current = out / "current.json"
    keys = set(json.loads(current.read_text(encoding="utf-8"))) if current.exists() else set(done)
    entries = [entry for key, entry in done.items() if key in keys]
    return entries, len(done) - len(entries)


def write_json(path, out):
    entries, _ = current_of(out)
    if path == "-":
        for entry in entries:
            print(json.dumps(entry))
    else:
        pathlib.Path(path).write_text(json.dumps({"runs": entries}, indent=1) + "\n", encoding="utf-8")


def report(out):
    entries, older = current_of(out)
    if not entries:
        raise Refused(f"{out}: no results; run an experiment there first")
    groups = {}
    for entry in entries:
        groups.setdefault((entry["cluster"], entry["model"], entry["load"]), []).append(entry)
    figures = figures_of(entries)
    text = ["# Results", "", "| cluster | model | load | runs | failed requests | " + " | ".join(" ".join(path) for path in figures) + " | from |",
            "|" + "---|" * (6 + len(figures))]
    for (where, model, load), group in groups.items():
        cells = [mean(figure(entry["result"], path) for entry in group) for path in figures]
        source = "simulated" if group[0]["simulated"] else "measured"
        failed = sum(entry["result"].get("failed") or 0 for entry in group)
        text.append(f"| {where} | {os.path.basename(model)} | {load} | {len(group)} | {failed} | " +
                    " | ".join("" if cell is None else f"{cell:.4g}" for cell in cells) +
                    f" | {source}, {' and '.join(sorted({entry['commit'] for entry in group}))} |")
    machines = sorted({entry["machine"] for entry in entries})
    left_out = f" {older} runs of other settings are left out." if older else ""
    text += ["", "Means over seeds. The script, which sends loads and simulates, ran on: " + "; ".join(machines) + "." + left_out, ""]
    for name in sorted({entry["cluster"] for entry in entries}):
        served = {f"{nodes_text(entry)}; version {entry['served_by']['version']}" for entry in entries if entry["cluster"] == name and nodes_text(entry)}
        text += [line for one in sorted(served) for line in (f"{name} was served by {one}.", "")]
        calibrations = {entry["calibration"] for entry in entries if entry["cluster"] == name}
        if len(calibrations) > 1:
            text += [f"Runs of {name} have {len(calibrations)} calibrations that differ.", ""]
        for basis in sorted({basis_of(entry) for entry in entries if entry["cluster"] == name and entry["simulated"]}):
            text += [f"Figures of {name} are simulated from: {basis}.", ""]
    for path in (("output_tokens_per_second",), ("ttft_ms", "p50"), ("tpot_ms", "p50")):
        series = series_of(entries, path)
        if series:
            name = "_".join(path) + ".svg"
            kinds = sorted({"simulated" if entry["simulated"] else "measured" for entry in entries})
            svg.chart(str(out / name), f"{' '.join(path)} ({' and '.join(kinds)})", "requests a second", " ".join(path), series)
            text.append(f"![{' '.join(path)}]({name})")
    (out / "report.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


def basis_of(entry):
    """What the figures of a run rest on, in words."""
    if not entry["simulated"]:
        return "measured"
    basis = entry["result"].get("basis")
    return ", ".join(f"{part} {by}" for part, by in basis.items()) if basis else "simulated, and what it rests on was not kept"


def series_of(entries, path):
    """A line for each cluster, model and shape of load: [(name, [(rate, mean over seeds)])]. Names say what differs."""
    lines = {}
    for entry in entries:
        value = figure(entry["result"], path)
        if entry["rate"] and value is not None:
            shape = ", ".join(f"{part} {size}" for part, size in entry.get("shape", {}).items())
            key = (entry["cluster"], os.path.basename(entry["model"]), shape)
            lines.setdefault(key, {}).setdefault(entry["rate"], []).append(value)
    lines = {key: points for key, points in sorted(lines.items()) if len(points) > 1}
    told = [part for part in (1, 2) if len({key[part] for key in lines}) > 1]
    return [(", ".join([key[0], *(key[part] for part in told)]), [(rate, mean(values)) for rate, values in sorted(points.items())])
            for key, points in lines.items()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="the runs that the file means now, with their results; -: one a line on stdout, and words on stderr")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("file")
    run.add_argument("--out", required=True, type=pathlib.Path)
    commands.add_parser("report").add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()
    try:
        failed = 0
        with contextlib.redirect_stdout(sys.stderr if arguments.json == "-" else sys.stdout):
            if arguments.command == "run":
                plan = read_plan(arguments.file)
                need("lamina")
                failed = run_all(plan, arguments.out)
            else:
                report(arguments.out)
        if arguments.json:
            write_json(arguments.json, arguments.out)
    except (Refused, RuntimeError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

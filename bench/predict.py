# SPDX-License-Identifier: Apache-2.0
"""What the simulator says of this machine against what a cluster on it does.

For each mode of predict_points.json a cluster of one compute node (core 0) and one memory node (core 1; policy local: one node with both
cores) is started. A turn calibrates it by `lamina calibrate`, measures each point once, and simulates each by `lamina simulate` with the same
arrivals and that turn's calibration, since the rate at which a machine reads memory may change within minutes: reads of each turn are printed.
Leave the machine alone meanwhile: some 40 minutes with three turns; twice as long where products have no bf16 instructions.

The error of a point is the median of said over measured, turn by turn. A point holds if tokens/s and TPOT p50 are within the larger of 10% and the runs' own spread; TTFT p50 within 15%.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import cluster
import processor
from programs import BIN, need

HERE = pathlib.Path(__file__).resolve().parent
LAMINA = BIN / "lamina"
SECONDS = 2  # Of each of a calibration's measurements.
CATALOGUE = """format: 1
currency: USD
economics:
  years: {{value: 1, by: assumed, source: none}}
  load: {{value: 1, by: assumed, source: none}}
  electricity: {{value: 0 USD/kWh, by: assumed, source: none}}
  pue: {{value: 1, by: assumed, source: none}}
  spares: 0
sources:
  none: {{what: "Not used: rates come from the calibration", date: "2026-11-25"}}
  here: {{what: "lamina calibrate, lamina status", date: "2026-11-25"}}
devices:
  - name: here
    kind: cpu
    runs: {{yes: yes, why: "this host"}}
    capacity: {{value: 4 GiB, by: assumed, source: none}}
    bandwidth: {{value: 10 GB/s, by: assumed, source: none}}
    flops: {{bf16: {{value: 1 TFLOPS, by: assumed, source: none}}}}
    mfu: {{value: 0.5, by: assumed, source: none}}
    mbu_dense: {{value: 0.5, by: assumed, source: none}}
    mbu_attention: {{value: 0.5, by: assumed, source: none}}
    idle: {{value: 1 W, by: assumed, source: none}}
    busy: {{value: 1 W, by: assumed, source: none}}
links:
  - {{name: here, bandwidth: {{value: {bandwidth:.3f} GB/s, by: measured, source: here}}, latency: {{value: {latency:.3f} us, by: measured, source: here}}}}
machines:
  - name: here
    device: here
    devices: 1
    link: here
    price: {{kind: on_demand, hour: {{value: 0 USD/h, by: assumed, source: none}}}}
    idle: {{value: 0 W, by: assumed, source: none}}
    busy: {{value: 0 W, by: assumed, source: none}}
models: []
"""


def lamina(*arguments):
    done = subprocess.run([LAMINA, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"lamina {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def start(mode, arguments):
    if arguments.server:
        running = cluster.Remote(arguments.server)
        running.config = pathlib.Path(arguments.cluster)
        return running
    return cluster.Cluster(mode["lanes"], compute_cores="0,1" if mode["local"] else "0", memory_nodes=1, local=mode["local"])


def arrivals(point, seed):
    """The same requests for the cluster and the simulator."""
    draw = random.Random(seed)
    at, lines = 0.0, []
    for _ in range(point.get("requests") or point["rows"]):
        lines.append(json.dumps({"arrival_s": round(at, 6), "input_tokens": point["input"], "output_tokens": point["output"]}))
        at += draw.expovariate(point["rate"]) if "rate" in point else 0.0
    return "\n".join(lines) + "\n"


def figures(result):
    return {"tokens": result["output_tokens_per_second"], "ttft": result["ttft_ms"]["p50"], "tpot": result["tpot_ms"]["p50"],
            "ttft_p99": result["ttft_ms"]["p99"], "tpot_p99": result["tpot_ms"]["p99"], "within": (result.get("slo") or {}).get("within_share", 1.0)}


def span_tokens(point, result):
    """Tokens a second from the first arrival to the last answer, as the benchmark counts."""
    count = (point.get("requests") or point["rows"]) * point["output"]
    return count / result["ended_seconds"]


class Mode:
    """A mode's calibration, its cluster while it runs, and what it says and does at a point."""

    def __init__(self, name, options, folder, slo):
        self.name, self.options, self.folder, self.slo = name, options, pathlib.Path(folder), slo
        self.calibration = self.folder / f"{name}.json"
        self.catalogue = self.folder / f"{name}.yaml"
        self.config = self.folder / f"{name}_cluster.yaml"

    def calibrate(self, running):
        lamina("calibrate", "--server", running.address, "--model", cluster.MODEL, "--device", processor.machine(), "--seconds", SECONDS,
               "--out", self.calibration)
        self.config.write_text(running.config.read_text())
        measured = json.loads(self.calibration.read_text())
        link = (measured.get("links") or [{"bytes_per_second": 1e12, "latency_seconds": 1e-9}])[0]
        self.catalogue.write_text(CATALOGUE.format(bandwidth=link["bytes_per_second"] / 1e9, latency=1e6 * link["latency_seconds"]))
        return measured

    def measure(self, running, trace):
        path = self.folder / "trace.jsonl"
        path.write_text(trace)
        return figures(json.loads(lamina("bench", "--server", running.address, "--trace", path, "--slo", self.slo, "--json")))

    def predict(self, point, trace):
        path = self.folder / "trace.jsonl"
        path.write_text(trace)
        result = json.loads(lamina("simulate", "--cluster", self.config, "--model", cluster.MODEL, "--catalogue", self.catalogue, "--compute", "here",
                                   "--link", "here", "--calibration", f"here={self.calibration}", "--trace", path, "--slo", self.slo, "--warm-up", 0,
                                   "--json"))
        return {**figures(result), "tokens": span_tokens(point, result)}


def progress(text):
    print(text, file=sys.stderr, flush=True)


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def errors_of(said, runs, keys):
    """Medians over the turns: how much more was said than measured, as a share."""
    return {key: statistics.median(a[key] / b[key] for a, b in zip(said, runs)) - 1 for key in keys if all(run[key] > 0 for run in runs)}


def judge(point, said, runs):
    row = {"point": point, "said": {key: median(said, key) for key in said[0]}, "measured": {key: median(runs, key) for key in runs[0]},
           "turns": [{"said": a, "measured": b} for a, b in zip(said, runs)]}
    row["errors"] = errors_of(said, runs, ("tokens", "tpot", "ttft"))
    bounds = {key: max(0.10, spread([run[key] for run in runs])) for key in ("tokens", "tpot")}
    row["holds"] = all(abs(row["errors"][key]) <= bounds[key] for key in bounds if key in row["errors"])
    row["ttft_holds"] = abs(row["errors"].get("ttft", 0)) <= 0.15
    return row


def name_of(point):
    load = f"rate {point['rate']:g}" if "rate" in point else f"{point['rows']} rows"
    return f"{point['mode']}, {load}, {point['input']} in, {point['output']} out"


def highest_rate(what, holds, bound, halvings):
    low, high = 0.0, bound
    for _ in range(halvings):
        middle = (low + high) / 2
        progress(f"highest rate {what}: {low:.2f} to {high:.2f} requests a second, trying {middle:.2f}")
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def turn(mode, running, points, traces):
    """Calibrates, measures each point and simulates each: two lists, what was said and what was measured."""
    mode.calibrate(running)
    runs = []
    for point, trace in zip(points, traces):
        progress(f"  {name_of(point)}")
        runs.append(mode.measure(running, trace))
    return [mode.predict(point, trace) for point, trace in zip(points, traces)], runs


def open_loop(mode, running, plan, turns):
    """At a share of the capacity that a wave of many requests shows: errors of p50 and p99."""
    wave = {"mode": plan["mode"], "rows": plan["capacity_rows"], "input": plan["input"], "output": plan["output"]}
    capacity = mode.measure(running, arrivals(wave, 0))["tokens"] / plan["output"]
    point = {**plan, "rate": plan["share"] * capacity}
    done = [turn(mode, running, [point], [arrivals(point, 7)]) for _ in range(turns)]
    said, runs = [a[0] for a, _ in done], [b[0] for _, b in done]
    print(f"\nopen loop at {plan['share']:.0%} of {capacity:.2f} requests/s:")
    bounds = {"ttft": 0.15, "tpot": 0.15, "ttft_p99": 0.30, "tpot_p99": 0.30}
    errors = errors_of(said, runs, bounds)
    for key, bound in bounds.items():
        print(f"  {key:9} measured {median(runs, key):8.1f} ms, said {median(said, key):8.1f} ms, {errors[key]:+.0%} "
              f"{'holds' if abs(errors[key]) <= bound else 'FAILS'} (±{bound:.0%})")
    return {"capacity": capacity, **errors}


def slo_rate(mode, running, plan, capacity):
    def real(rate):
        return mode.measure(running, arrivals({**plan, "rate": rate}, 11))["within"] >= 0.95

    def simulated(rate):
        point = {**plan, "rate": rate}
        return mode.predict(point, arrivals(point, 11))["within"] >= 0.95

    measured = highest_rate("measured", real, 1.5 * capacity, plan["halvings"])
    said = highest_rate("simulated", simulated, 1.5 * capacity, plan["halvings"])
    error = said / measured - 1 if measured > 0 else float("inf")
    print(f"highest rate within {mode.slo}: measured {measured:.2f}/s, said {said:.2f}/s, {error:+.0%} "
          f"{'holds' if abs(error) <= 0.10 else 'FAILS'} (±10%)")
    return {"measured": measured, "said": said, "error": error}


def print_lines(mode, measured):
    for kind in ("t_slice", "t_attn"):
        for curve in measured.get(kind, []):
            fit = curve["fit"]
            print(f"{mode.name} {kind}: {1e6 * fit['fixed_seconds']:.1f} us + {1e9 * fit['slope_seconds']:.2f} ns each, R2 {fit['r2']:.4f}")


def run_mode(mode, points, plan, arguments):
    rows, extra, turns = [], {}, arguments.turns
    with start(mode.options, arguments) as running:
        mine = [point for point in points if point["mode"] == mode.name]
        traces = [arrivals(point, i) for i, point in enumerate(mine)]
        done, reads = [], []
        for i in range(turns):
            progress(f"{mode.name}: turn {i + 1} of {turns}")
            done.append(turn(mode, running, mine, traces))
            print_lines(mode, json.loads(mode.calibration.read_text()))
            reads.append(mode.measure(running, arrivals({"rows": 1, "input": 64, "output": 64}, 0))["tpot"])
        print(f"{mode.name}: a row's step in each turn {', '.join(f'{read:.2f}' for read in reads)} ms, drift {spread(reads):.0%}")
        for i, point in enumerate(mine):
            rows.append(judge(point, [said[i] for said, _ in done], [runs[i] for _, runs in done]))
        if plan["open"]["mode"] == mode.name:
            progress(f"{mode.name}: open loop")
            extra["open"] = open_loop(mode, running, plan["open"], turns)
            extra["highest_rate"] = slo_rate(mode, running, plan["highest_rate"], extra["open"]["capacity"])
    return rows, extra


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--modes", help="only these, by commas")
    cluster.add_server(parser)
    parser.add_argument("--cluster", metavar="FILE", help="with --server: its cluster file, and --modes names the one mode whose points it gets")
    arguments = parser.parse_args()
    if arguments.server and (not arguments.cluster or "," in (arguments.modes or ",")):
        parser.error("--server: give its cluster file, --cluster FILE, and one of the modes, --modes NAME")
    need("lamina")
    plan = json.loads((HERE / "predict_points.json").read_text(encoding="utf-8"))
    print(f"machine   {processor.machine()}")
    rows, extra = [], {}
    with tempfile.TemporaryDirectory(prefix="lamina-predict-") as folder:
        for name, options in plan["modes"].items():
            if not arguments.modes or name in arguments.modes.split(","):
                more, found = run_mode(Mode(name, options, folder, plan["slo"]), plan["points"], plan, arguments)
                rows += more
                extra.update(found)
    print(f"\n{'point':44} {'tokens/s':>9} {'said':>9} {'':>6} {'TPOT ms':>8} {'said':>8} {'':>6} {'TTFT ms':>9} {'said':>9} {'':>6}")
    for row in rows:
        cells = "".join(f" {row['measured'][key]:9.1f} {row['said'][key]:9.1f} {row['errors'].get(key, 0):+6.0%}" for key in ("tokens", "tpot", "ttft"))
        print(f"{name_of(row['point']):44}{cells} {'' if row['holds'] else ' FAILS'}{'' if row['ttft_holds'] else ' TTFT FAILS'}")
    holds = sum(row["holds"] for row in rows)
    worst = max(rows, key=lambda row: max(abs(row["errors"].get(key, 0)) for key in ("tokens", "tpot")))
    print(f"\n{holds} of {len(rows)} points hold (18 of 20 are asked for), TTFT at {sum(row['ttft_holds'] for row in rows)}; the worst: "
          f"{name_of(worst['point'])}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": processor.machine(), "rows": rows, **extra}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

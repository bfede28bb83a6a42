# SPDX-License-Identifier: Apache-2.0
"""What the simulator says of this machine against what a cluster on it does.

For each mode of predict_points.json a cluster of one compute node (core 0) and one memory node (core 1; policy local: one node with both
cores) is started. A turn measures each point once, and simulates each by `lamina simulate` with the same arrivals. A machine may become faster or
slower within minutes, so `lamina calibrate` runs before the first turn and after each one: what is said of a turn is the mean of what is said with
the calibrations before and after it. Leave the machine alone meanwhile: an hour with three turns, up to three times as long where products have no
bf16 instructions.

--keep DIR keeps calibrations, requests and what was measured; --again DIR simulates those anew and judges, without a cluster.

The error of a point is the median of said over measured, turn by turn. A point holds if tokens/s and TPOT p50 are within the larger of 10% and the runs' own spread; TTFT p50 within 15%.
The highest rate that meets the SLO is looked for by halving. On the cluster that ends at a bracket, the highest rate that held and the lowest that
did not; in the simulator it goes on to a thousandth, and what that says is judged against the bracket's middle.
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
BOUND_OF_RATES = 1.5  # Of the capacity: the search for the highest rate begins below it.
SECONDS = 2  # Of each of a calibration's measurements.
OPEN_SEED, HIGHEST_SEED = 7, 11
SIMULATED_HALVINGS = 10
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


def arrivals(point, index):
    """The same requests for the cluster and the simulator."""
    draw = random.Random(point.get("seed", index))
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
    """A mode's calibrations, what its cluster does at a point while it runs, and what is said of the point."""

    def __init__(self, name, options, folder, slo):
        self.name, self.options, self.folder, self.slo = name, options, pathlib.Path(folder) / name, slo
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = self.folder / "cluster.yaml"
        self.record = self.folder / "measured.json"
        self.calibrations = 0
        self.prompts = random.SystemRandom().getrandbits(48)  # Each load has others: a server may keep those that it had.

    def calibration(self, number):
        return self.folder / f"calibration_{number}.json"

    def read(self, running):
        """Milliseconds of the step of a single row: weights are read once."""
        return self.measure(running, arrivals({"rows": 1, "input": 64, "output": 64}, 0))["tpot"]

    def calibrate(self, running):
        """The calibration's number, and a row's step right before it."""
        read = self.read(running)
        self.calibrations += 1
        progress(f"{self.name}: calibrates")
        lamina("calibrate", "--server", running.address, "--model", cluster.MODEL, "--device", processor.machine(), "--seconds", SECONDS,
               "--out", self.calibration(self.calibrations))
        self.config.write_text(running.config.read_text())
        return {"number": self.calibrations, "read": read}

    def measure(self, running, trace):
        path = self.folder / "trace.jsonl"
        path.write_text(trace)
        self.prompts += 1
        return figures(json.loads(lamina("bench", "--server", running.address, "--trace", path, "--slo", self.slo, "--prompt-seed", self.prompts,
                                         "--json")))

    def predict_between(self, numbers, point, trace):
        """The mean of what the simulator says with each of these calibrations."""
        said = [self.predict(number, point, trace) for number in numbers]
        return {key: statistics.mean(one[key] for one in said) for key in said[0]}

    def predict(self, number, point, trace):
        """What the simulator says with the calibration of that number."""
        measured = json.loads(self.calibration(number).read_text())
        link = (measured.get("links") or [{"bytes_per_second": 1e12, "latency_seconds": 1e-9}])[0]
        catalogue = self.folder / "catalogue.yaml"
        catalogue.write_text(CATALOGUE.format(bandwidth=link["bytes_per_second"] / 1e9, latency=1e6 * link["latency_seconds"]))
        path = self.folder / "trace.jsonl"
        path.write_text(trace)
        result = json.loads(lamina("simulate", "--cluster", self.config, "--model", cluster.MODEL, "--catalogue", catalogue, "--compute", "here",
                                   "--link", "here", "--calibration", f"here={self.calibration(number)}", "--trace", path, "--slo", self.slo,
                                   "--warm-up", 0, "--json"))
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
    """Between this one, which held, and one higher by bound / 2^halvings, which did not."""
    low, high = 0.0, bound
    for _ in range(halvings):
        middle = (low + high) / 2
        progress(f"highest rate {what}: {low:.2f} to {high:.2f} requests a second, trying {middle:.2f}")
        if holds(middle):
            low = middle
        else:
            high = middle
    return low


def measure_turns(mode, running, points, before, turns):
    """Measures each point once a turn, and calibrates behind each: numbers of the calibrations around it, and what was measured."""
    done = []
    for i in range(turns):
        progress(f"{mode.name}: turn {i + 1} of {turns}")
        runs = []
        for index, point in enumerate(points):
            progress(f"  {name_of(point)}")
            runs.append(mode.measure(running, arrivals(point, index)))
        after = mode.calibrate(running)
        done.append({"calibrations": [before["number"], after["number"]], "reads": [before["read"], after["read"]], "runs": runs})
        before = after
    return done


def open_point(load, capacity):
    return {**load, "rate": load["share"] * capacity, "seed": OPEN_SEED}


def print_lines(mode, measured):
    for kind in ("t_slice", "t_attn"):
        for curve in measured.get(kind, []):
            fit = curve.get("fit")  # None where all points have one size.
            if fit is None:
                continue
            print(f"{mode.name} {kind}: {1e6 * fit['fixed_seconds']:.1f} us + {1e9 * fit['slope_seconds']:.2f} ns each, R2 {fit['r2']:.4f}")


def measure_open(mode, running, plan, turns):
    """At a share of the capacity that a wave of many requests shows, and the highest rate that meets the SLO."""
    load, highest = plan["open"], plan["highest_rate"]
    progress(f"{mode.name}: open loop")
    before = mode.calibrate(running)
    wave = {"mode": load["mode"], "rows": load["capacity_rows"], "input": load["input"], "output": load["output"]}
    capacity = mode.measure(running, arrivals(wave, 0))["tokens"] / load["output"]
    done = {"capacity": capacity, "turns": measure_turns(mode, running, [open_point(load, capacity)], before, turns)}

    def holds(rate):
        return mode.measure(running, arrivals({**highest, "rate": rate, "seed": HIGHEST_SEED}, 0))["within"] >= 0.95

    rate = highest_rate("measured", holds, BOUND_OF_RATES * capacity, highest["halvings"])
    around = [done["turns"][-1]["calibrations"][-1], mode.calibrate(running)["number"]]
    return {**done, "highest_rate": rate, "highest_rate_calibrations": around}


def measure_mode(mode, points, plan, arguments):
    """Everything that needs the cluster; it is kept in the mode's folder."""
    with start(mode.options, arguments) as running:
        record = {"machine": processor.machine(), "turns": measure_turns(mode, running, points, mode.calibrate(running), arguments.turns)}
        mode.record.write_text(json.dumps(record, indent=1), encoding="utf-8")
        if plan["open"]["mode"] == mode.name:
            record["open"] = measure_open(mode, running, plan, arguments.turns)
            mode.record.write_text(json.dumps(record, indent=1), encoding="utf-8")


def said_of(mode, points, turns):
    """What is said of each point, turn by turn."""
    return [[mode.predict_between(one["calibrations"], point, arrivals(point, i)) for i, point in enumerate(points)] for one in turns]


def judge_open(mode, record, plan):
    """Errors of p50 and p99, and of the highest rate."""
    capacity, turns = record["capacity"], record["turns"]
    point = open_point(plan["open"], capacity)
    said, runs = [one[0] for one in said_of(mode, [point], turns)], [one["runs"][0] for one in turns]
    print(f"\nopen loop at {plan['open']['share']:.0%} of {capacity:.2f} requests/s:")
    bounds = {"ttft": 0.15, "tpot": 0.15, "ttft_p99": 0.30, "tpot_p99": 0.30}
    errors = errors_of(said, runs, bounds)
    for key, bound in bounds.items():
        print(f"  {key:9} measured {median(runs, key):8.1f} ms, said {median(said, key):8.1f} ms, {errors[key]:+.0%} "
              f"{'holds' if abs(errors[key]) <= bound else 'FAILS'} (±{bound:.0%})")
    highest = plan["highest_rate"]
    bound = BOUND_OF_RATES * capacity

    def said_with(calibration):
        def holds(rate):
            one = {**highest, "rate": rate, "seed": HIGHEST_SEED}
            return mode.predict(calibration, one, arrivals(one, 0))["within"] >= 0.95

        return highest_rate("simulated", holds, bound, SIMULATED_HALVINGS)

    said_rate = statistics.mean(said_with(number) for number in record["highest_rate_calibrations"])
    rates = judge_rate(said_rate, record["highest_rate"], bound, highest["halvings"])
    end = "was not tried" if rates["failed"] > 0.999 * bound else "did not"
    print(f"highest rate within {mode.slo}: measured {rates['held']:.2f}/s held and {rates['failed']:.2f}/s {end}, said {said_rate:.2f}/s: "
          f"{rates['error']:+.1%} of their middle {'holds' if rates['holds'] else 'FAILS'} (±10%; half of what lies between them is "
          f"{rates['half_width']:.1%})")
    return {"open": {"capacity": capacity, **errors}, "highest_rate": rates}


def judge_rate(said, held, bound, halvings):
    """Against the middle of the bracket in which the measured rate lies: `held`, and a step more."""
    step = bound / 2**halvings
    middle = held + step / 2
    error = said / middle - 1
    return {"held": held, "failed": held + step, "said": said, "error": error, "half_width": step / 2 / middle, "holds": abs(error) <= 0.10}


def judge_mode(mode, points, plan):
    """Rows of the table, and what else was measured in this mode."""
    record = json.loads(mode.record.read_text(encoding="utf-8"))
    turns = record["turns"]
    for number in sorted({number for one in turns for number in one["calibrations"]}):
        print_lines(mode, json.loads(mode.calibration(number).read_text()))
    reads = [turns[0]["reads"][0], *(one["reads"][1] for one in turns)]
    print(f"{mode.name}: a row's step before each calibration {', '.join(f'{read:.2f}' for read in reads)} ms, drift {spread(reads):.0%}")
    said = said_of(mode, points, turns)
    rows = [judge(point, [one[i] for one in said], [one["runs"][i] for one in turns]) for i, point in enumerate(points)]
    return rows, judge_open(mode, record["open"], plan) if "open" in record else {}


def judge_all(plan, folder, arguments):
    """Measures each mode that is asked for, unless it was kept, and judges it."""
    rows, extra = [], {}
    for name, options in plan["modes"].items():
        mode = Mode(name, options, folder, plan["slo"])
        points = [point for point in plan["points"] if point["mode"] == name]
        if arguments.modes and name not in arguments.modes.split(","):
            continue
        if not arguments.again:
            measure_mode(mode, points, plan, arguments)
        elif not mode.record.exists():
            progress(f"{name}: not in {folder}")
            continue
        more, found = judge_mode(mode, points, plan)
        rows += more
        extra.update(found)
    return rows, extra


def machine_of(plan, folder):
    """Of what was kept in the folder; without one this machine."""
    kept = [pathlib.Path(folder) / name / "measured.json" for name in plan["modes"]] if folder else []
    machines = sorted({json.loads(path.read_text(encoding="utf-8"))["machine"] for path in kept if path.exists()})
    return "; ".join(machines) or processor.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--modes", help="only these, by commas")
    folders = parser.add_mutually_exclusive_group()
    folders.add_argument("--keep", metavar="DIR", help="keep here what was measured")
    folders.add_argument("--again", metavar="DIR", help="judge what was kept there")
    cluster.add_server(parser)
    parser.add_argument("--cluster", metavar="FILE", help="with --server: its cluster file, and --modes names the one mode whose points it gets")
    arguments = parser.parse_args()
    if arguments.server and (not arguments.cluster or "," in (arguments.modes or ",")):
        parser.error("--server: give its cluster file, --cluster FILE, and one of the modes, --modes NAME")
    plan = json.loads((HERE / "predict_points.json").read_text(encoding="utf-8"))
    unknown = [name for name in (arguments.modes or "").split(",") if name and name not in plan["modes"]]
    if unknown:
        parser.error(f"--modes: unknown {', '.join(unknown)}; known: {', '.join(plan['modes'])}")
    need("lamina")
    machine = machine_of(plan, arguments.again)
    print(f"machine   {machine}")
    with tempfile.TemporaryDirectory(prefix="lamina-predict-") as folder:
        rows, extra = judge_all(plan, arguments.keep or arguments.again or folder, arguments)
    if not rows:
        parser.error(f"--again: nothing was kept in {arguments.again}")
    print(f"\n{'point':44} {'tokens/s':>9} {'said':>9} {'':>6} {'TPOT ms':>8} {'said':>8} {'':>6} {'TTFT ms':>9} {'said':>9} {'':>6}")
    for row in rows:
        cells = "".join(f" {row['measured'][key]:9.1f} {row['said'][key]:9.1f} {row['errors'].get(key, 0):+6.0%}" for key in ("tokens", "tpot", "ttft"))
        print(f"{name_of(row['point']):44}{cells} {'' if row['holds'] else ' FAILS'}{'' if row['ttft_holds'] else ' TTFT FAILS'}")
    holds = sum(row["holds"] for row in rows)
    worst = max(rows, key=lambda row: max(abs(row["errors"].get(key, 0)) for key in ("tokens", "tpot")))
    print(f"\n{holds} of {len(rows)} points hold (18 of 20 are asked for), TTFT at {sum(row['ttft_holds'] for row in rows)}; the worst: "
          f"{name_of(worst['point'])}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": machine, "rows": rows, **extra}, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""How long `lamina plan` takes for many kinds of machines, on one core.

The catalogue is generated: kinds of cards and of processors by turns, with one to eight devices in a machine, drawn around those that are for rent; of
each five kinds this software does not run one, and machines with four cards or more have processors that may be memory nodes. The same seed gives the
same catalogue. The plan is made by the formulas alone, and with the best plans simulated (the default of `lamina plan`). Seconds are of the whole
command, with `taskset` on one core. The aim is 60 s for 20 kinds and 64 machines.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import processor
from programs import BIN, need

AIM_SECONDS = 60
LOAD = "rate=20,input=1024,output=256"
SLO = "ttft=2s,tpot=80ms,at=p95"
HEAD = """format: 1
currency: USD
economics:
  years: {value: 3, by: assumed, source: drawn}
  load: {value: 0.6, by: assumed, source: drawn}
  electricity: {value: 0.1 USD/kWh, by: assumed, source: drawn}
  pue: {value: 1.3, by: assumed, source: drawn}
  spares: 0
sources:
  drawn: {what: "Drawn at random", date: "2026-11-29"}
links:
  - {name: network, bandwidth: {value: 50 GB/s, by: assumed, source: drawn}, latency: {value: 5 us, by: assumed, source: drawn}}
  - {name: bus, bandwidth: {value: 300 GB/s, by: assumed, source: drawn}, latency: {value: 2 us, by: assumed, source: drawn}}
"""
DEVICE = """  - name: {name}
    kind: {kind}
    runs: {{yes: {runs}, why: "drawn"}}
    capacity: {{value: {capacity} GB, by: assumed, source: drawn}}
    bandwidth: {{value: {bandwidth} GB/s, by: assumed, source: drawn}}
    flops: {{bf16: {{value: {flops} TFLOPS, by: assumed, source: drawn}}}}
    mfu: {{value: 0.6, by: assumed, source: drawn}}
    mbu_dense: {{value: 0.75, by: assumed, source: drawn}}
    mbu_attention: {{value: 0.8, by: assumed, source: drawn}}
    idle: {{value: 50 W, by: assumed, source: drawn}}
    busy: {{value: 300 W, by: assumed, source: drawn}}
"""
MACHINE = """  - name: {name}
    device: {name}
    devices: {devices}
    link: network
{more}    price: {{kind: on_demand, hour: {{value: {price} USD/h, by: assumed, source: drawn}}}}
    idle: {{value: 0 W, by: assumed, source: drawn}}
    busy: {{value: 0 W, by: assumed, source: drawn}}
"""
MODEL = """models:
  - {name: drawn-8B, architecture: llama, runs: {yes: yes, why: "drawn"}, layers: 32, width: 4096, query_heads: 32, kv_heads: 8, head_dim: 128,
     hidden: 14336, vocabulary: 128256, positions_max: 8192, source: drawn}
"""


def around(draw, least, most):
    """A number between both, evenly by its logarithm, in three digits."""
    return float(f"{least * (most / least) ** draw.random():.3g}")


def catalogue(kinds, seed=0):
    """The text of a catalogue of so many kinds of machines, each with a device of its own: card, processor, card, ..."""
    draw = random.Random(seed)
    devices, machines = [], []
    for i in range(kinds):
        card = i % 2 == 0
        name = f"card-{i}" if card else f"processor-{i}"
        count = draw.choice((1, 1, 2, 4, 8) if card else (1, 1, 2))
        flops = around(draw, 100, 1000) if card else around(draw, 3, 40)
        devices.append(DEVICE.format(
            name=name, kind="gpu" if card else "cpu", runs="no" if i % 5 == 4 else "yes", flops=flops,
            capacity=around(draw, 24, 192) if card else around(draw, 192, 1536), bandwidth=around(draw, 800, 5000) if card else around(draw, 200, 900)))
        more = "    between: bus\n" if count > 1 else ""
        if card and count >= 4 and i + 1 < kinds:
            more += f"    host: processor-{i + 1}\n    host_devices: 2\n    host_link: bus\n"
        price = count * around(draw, 0.7, 1.4) * (flops / 250 if card else 1.0)
        machines.append(MACHINE.format(name=name, devices=count, more=more, price=f"{price:.2f}"))
    return HEAD + "devices:\n" + "".join(devices) + "machines:\n" + "".join(machines) + MODEL


def command(program, path, arguments, simulate):
    words = [program, "plan", "--json", "--catalogue", path, "--model", "drawn-8B", "--load", arguments.load, "--machines", arguments.machines]
    words += ["--slo", arguments.slo] if arguments.slo else []
    words += ["--budget", arguments.budget] if arguments.budget else []
    words += [] if simulate is None else ["--simulate", simulate]
    return [str(word) for word in words]


def timed(name, words):
    """{name, seconds, hardware, looked_at, choice, policy} of one run; the time is the whole command's."""
    core = min(os.sched_getaffinity(0))
    began = time.monotonic()
    done = subprocess.run(["taskset", "-c", str(core), *words], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise RuntimeError(f"lamina plan: {done.stderr.strip()}")
    plans = json.loads(done.stdout)
    best = plans["runnable"][0] if plans["runnable"] else None
    return {"name": name, "seconds": seconds, "hardware": plans["hardware"], "looked_at": plans["looked_at"],
            "choice": f"{best['machines']}: {best['arrangement']}" if best else "nothing that runs",
            "price_per_hour": best["price_per_hour"]["value"] if best else None, "warning": done.stderr.strip()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--kinds", type=int, default=20, help="kinds of machines (default: 20)")
    parser.add_argument("--machines", type=int, default=64, help="machines of a plan at most (default: 64)")
    parser.add_argument("--load", default=LOAD, help=f"as of lamina plan (default: {LOAD})")
    parser.add_argument("--slo", default=SLO, help=f"as of lamina plan; empty: none (default: {SLO})")
    parser.add_argument("--budget", default="", help="as of lamina plan (default: none, which is the largest search)")
    parser.add_argument("--seed", type=int, default=0, help="of the catalogue (default: 0)")
    arguments = parser.parse_args()
    need("lamina")
    print(f"machine   {processor.machine()}, one core of them\n{arguments.kinds} kinds, {arguments.machines} machines at most, {arguments.load}"
          f"{', ' + arguments.slo if arguments.slo else ''}{', ' + arguments.budget if arguments.budget else ''}; the aim is {AIM_SECONDS} s")
    rows = []
    with tempfile.TemporaryDirectory(prefix="lamina-plan-search-") as folder:
        path = pathlib.Path(folder) / "catalogue.yaml"
        path.write_text(catalogue(arguments.kinds, arguments.seed), encoding="utf-8")
        for name, simulate in (("formulas alone", 0), ("with simulations", None)):
            row = timed(name, command(BIN / "lamina", path, arguments, simulate))
            rows.append(row)
            print(f"  {name:17} {row['seconds']:7.1f} s  {'within' if row['seconds'] <= AIM_SECONDS else 'NOT within'} the aim; "
                  f"{row['hardware']} choices of machines, {row['looked_at']} looked at\n    {row['choice']}"
                  + (f", {row['price_per_hour']:.2f} USD/h" if row["price_per_hour"] else "")
                  + (f"\n    {row['warning']}" if row["warning"] else ""), flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": processor.machine(), "rows": rows}, indent=1), encoding="utf-8")
    return 0 if all(row["seconds"] <= AIM_SECONDS for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"plan_search: {error}")

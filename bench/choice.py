# SPDX-License-Identifier: Apache-2.0
"""Whether `lamina plan` chooses well on the machine at hand: its choice against other configurations of two cores.

The machine is offered as two kinds of machines, one core for 1 USD/h and both for 2 USD/h, calibrated by `lamina calibrate` on clusters that
have them. For each load the plan may spend 2 USD/h. Measured are one node on one core, one node on both, two nodes of one core each with policy
local as replicas, stages and shards, two pools of one core each with one to four lanes, and such pools with K and V fetched. A closed load of 8, 16 and 32 requests at a time is put on each, and the best
tokens a second and dollar counts that keeps the SLO's TPOT at p90; with --turns N the median of N turns. A choice is good within 5% of the best of these ten.
Another choice of the plan is named, and has no verdict. Leave the machine alone meanwhile: about twenty minutes.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import cluster
import processor
from predict import CATALOGUE, lamina

SLO = "tpot=100ms,at=p90"
TPOT_MS = 100
LOADS = [(128, 128), (512, 64)]  # Tokens of prompt and answer.
CONCURRENCY = (8, 16, 32)
GOOD = 0.95
# Name: (price of an hour, the device that its cluster calibrates, arguments of cluster.Cluster).
CONFIGURATIONS = {
    "one core": (1, None, {"lanes": 1, "compute_cores": "0", "local": True}),
    "both cores": (2, "both", {"lanes": 1, "compute_cores": "0,1", "local": True}),
    "two nodes of one core each, local": (2, None, {"lanes": 2, "compute_cores": ("0", "1"), "local": True}),
    "two stages of one core each, local": (2, None, {"lanes": 2, "compute_cores": ("0", "1"), "local": True, "parts": "stage"}),
    "two shards of one core each, local": (2, None, {"lanes": 2, "compute_cores": ("0", "1"), "local": True, "parts": "shard"}),
    "two pools, 1 lane": (2, "core", {"lanes": 1, "memory_nodes": 1}),
    "two pools, 2 lanes": (2, None, {"lanes": 2, "memory_nodes": 1}),
    "two pools, 3 lanes": (2, None, {"lanes": 3, "memory_nodes": 1}),
    "two pools, 4 lanes": (2, None, {"lanes": 4, "memory_nodes": 1}),
    "two pools, K and V fetched": (2, None, {"lanes": 1, "memory_nodes": 1, "fetch": ("fetch_heads", {})}),
}
MACHINE = """  - name: {name}
    device: {name}
    devices: 1
    link: here
    price: {{kind: on_demand, hour: {{value: {price} USD/h, by: assumed, source: none}}}}
    idle: {{value: 0 W, by: assumed, source: none}}
    busy: {{value: 0 W, by: assumed, source: none}}
"""


def catalogue(links):
    """predict.py's catalogue, with the two kinds of machines in place of its one."""
    link = links[0] if links else {"bytes_per_second": 1e12, "latency_seconds": 1e-9}
    text = CATALOGUE.format(bandwidth=link["bytes_per_second"] / 1e9, latency=1e6 * link["latency_seconds"])
    head, devices, tail = re.split(r"(?<=devices:\n)|(?=links:)", text)
    links_part = tail[:tail.index("machines:\n")]
    both = "".join(devices.replace("- name: here", f"- name: {name}") for name in ("core", "both"))
    return (head + both + links_part + "machines:\n" + MACHINE.format(name="core", price=1) + MACHINE.format(name="both", price=2) + "models: []\n")


def calibrate(running, path):
    lamina("calibrate", "--server", running.address, "--model", cluster.MODEL, "--device", processor.machine(), "--out", path)
    return json.loads(path.read_text())["links"]


def measure(running, load):
    """The most tokens a second of a closed load that keeps the SLO; 0 where none does."""
    best = 0.0
    for rows in CONCURRENCY:
        done = json.loads(lamina("bench", "--json", "--server", running.address, "--concurrency", rows, "--requests", 2 * rows,
                                 "--input-tokens", load[0], "--output-tokens", load[1]))
        if done["tpot_ms"]["p90"] <= TPOT_MS:
            best = max(best, done["output_tokens_per_second"])
    return best


def name_of(plan):
    """The configuration that a plan is, or its own words where that is not measured here."""
    lanes = re.search(r"(\d+) lanes?", plan["arrangement"])
    found = {("1 x core", "local"): "one core", ("1 x both", "local"): "both cores"}.get((plan["machines"], plan["policy"]))
    if plan["machines"] == "2 x core":
        found = {"2 replicas, local": "two nodes of one core each, local",
                 "1 replica of 2 stages, local": "two stages of one core each, local",
                 "1 replica of 2 shards, local": "two shards of one core each, local"}.get(plan["arrangement"])
    if plan["machines"] == "1 x core + 1 x core" and plan["policy"] == "attend_remote":
        found = f"two pools, {lanes[1]} lane{'s' if lanes[1] != '1' else ''}"
    if plan["machines"] == "1 x core + 1 x core" and plan["policy"] == "fetch_heads":
        found = "two pools, K and V fetched"
    return found or f"{plan['machines']}, {plan['arrangement']}"


def choose(load, folder):
    plans = json.loads(lamina("plan", "--json", "--model", cluster.MODEL, "--catalogue", folder / "catalogue.yaml", "--load",
                              f"input={load[0]},output={load[1]}", "--slo", SLO, "--budget", "2/h", "--simulate", 8, "--count", 8,
                              *(word for name in ("core", "both") for word in ("--calibration", f"{name}={folder / name}.json"))))
    return plans["runnable"]


def verdict(plans, here):
    """{choice, best, share, words} of a load. The share is None where the choice was not measured: then there is no verdict."""
    best = max(here, key=here.get)
    if not plans:
        return {"choice": None, "best": best, "share": None, "words": "the plan found nothing that runs here: no verdict"}
    choice = name_of(plans[0])
    if choice not in here:
        return {"choice": choice, "best": best, "share": None, "words": f"the plan's choice, {choice}, was not measured: no verdict"}
    share = here[choice] / here[best] if here[best] > 0 else 0.0
    return {"choice": choice, "best": best, "share": share,
            "words": f"the plan's choice, {choice}, has {share:.2f} of the best ({best}): {'good' if share >= GOOD else 'NOT within 5%'}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write all figures here")
    parser.add_argument("--turns", type=int, default=1, help="how often each configuration is started and measured (default: 1)")
    arguments = parser.parse_args()
    if arguments.turns < 1:
        parser.error("--turns: at least 1")
    print(f"machine   {processor.machine()}\n{len(CONFIGURATIONS)} configurations, "
          f"{'one turn' if arguments.turns == 1 else f'medians of {arguments.turns} turns'}")
    measured = {(name, load): [] for name in CONFIGURATIONS for load in LOADS}
    links = []
    rows, good = [], True
    with tempfile.TemporaryDirectory(prefix="lamina-choice-") as name:
        folder = pathlib.Path(name)
        for turn in range(arguments.turns):
            for name, (price, device, options) in CONFIGURATIONS.items():
                with cluster.Cluster(**options) as running:  # The calibration is the first turn's.
                    if device and turn == 0:
                        links = calibrate(running, folder / f"{device}.json") or links
                    for load in LOADS:
                        measured[name, load].append(measure(running, load) / price)
        (folder / "catalogue.yaml").write_text(catalogue(links))
        for load in LOADS:
            plans = choose(load, folder)
            here = {name: statistics.median(measured[name, load]) for name in CONFIGURATIONS}
            found = verdict(plans, here)
            good &= found["share"] is None or found["share"] >= GOOD
            rows.append({"load": load, "measured": here, "each": {name: measured[name, load] for name in CONFIGURATIONS}, **found, "plans": plans})
            print(f"\n{load[0]} tokens in, {load[1]} out: tokens a second and USD/h")
            said = {name_of(plan): (plan.get("simulated") or plan)["tokens_per_second"] for plan in plans}
            for config, value in sorted(here.items(), key=lambda item: -item[1]):
                print(f"  {config:33} measured {value:7.1f}{'   chosen' if config == found['choice'] else ''}"
                      f"{'' if config in said else '   (not among the plans)'}")
            print(f"  {found['words']}")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": processor.machine(), "turns": arguments.turns, "rows": rows}, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.SubprocessError) as error:
        sys.exit(f"choice: {error}")

# SPDX-License-Identifier: Apache-2.0
"""A load that needs twice the slots there are: with a spill tier and with recomputation alone, in turns, on clusters of their own."""

import argparse
import json
import statistics
import subprocess
import tempfile

import cluster
import remote
from programs import BIN

NEAR = 1.3  # A sequence read back takes so many times its bytes over the measured read, at most.
ATTEND = 0.95  # Attention of others reads so much of what it reads without the tier, at least.
FASTER = 1.5  # Tokens a second over recomputation alone, where that is predicted.


def load_on(running, arguments):
    """What `lamina bench` says of it."""
    done = subprocess.run(
        [BIN / "lamina", "bench", "--json", "--server", running.address, "--concurrency", str(arguments.rows), "--requests",
         str(arguments.rows), "--input-tokens", str(arguments.context), "--output-tokens", str(arguments.output)],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def turn(arguments, spills):
    """Figures of one load. Weights are widened, or each start might choose another form of them."""
    tier = (arguments.path, arguments.tier) if spills else None
    with cluster.Cluster(arguments.lanes, memory_nodes=1, capacity=arguments.capacity, running_max=arguments.rows, spill=tier, weights="bf16", kv_form=arguments.kv,
                         sequence_tokens_max=2 * (arguments.context + arguments.output)) as running:
        before = running.status()
        load, after = load_on(running, arguments), running.status()
    node = next(node for node in after["nodes"] if node["name"] == "m0")
    return {"tokens_per_second": load["output_tokens_per_second"], "seconds": load["seconds"], "failed": load["failed"],
            "preemptions": after["preemptions"] - before["preemptions"], "slots": node["slots_total"],
            "attend_bytes_per_second": node["kv_bytes_read"] / max(node["part_seconds"].get("attend", 0), 1e-9),
            "copy_seconds": node["part_seconds"].get("spill", 0.0), "spill": node["spill"]}


def tier_counts(status):
    """Sums over the nodes' spill tiers; empty where there is none."""
    tiers = [node["spill"] for node in status["nodes"] if node["spill"]]
    return {key: sum(tier[key] for tier in tiers) for key in ("sequences_out", "sequences_in", "bytes_out", "bytes_in", "seconds_in") if tiers}


def on_one(arguments):
    """The load on a cluster that serves: whether it has a tier, and how many slots, is its own setting."""
    with cluster.Remote(arguments.server) as running:
        what = cluster.described(running)
        before = running.status()
        load, after = load_on(running, arguments), running.status()
    slots = sum(node["slots_total"] for node in after["nodes"])
    counts = tier_counts(before)
    row = {"tokens_per_second": load["output_tokens_per_second"], "seconds": load["seconds"], "failed": load["failed"],
           "preemptions": after["preemptions"] - before["preemptions"], "slots": slots,
           "spill": {key: value - counts.get(key, 0) for key, value in tier_counts(after).items()}}
    print(f"{what}\n{arguments.rows} requests of {arguments.context} + {arguments.output} tokens, "
          f"{arguments.rows * (arguments.context + arguments.output) / max(slots, 1):.2f} times the {slots} slots: "
          f"{row['tokens_per_second']:.1f} tokens/s, {row['preemptions']} preempted, {row['failed']} failed")
    spill = row["spill"]
    print("no spill tier" if not spill else
          f"{spill['sequences_out']} sequences out ({spill['bytes_out'] / 1e6:.0f} MB), {spill['sequences_in']} back "
          f"({spill['bytes_in'] / 1e6:.0f} MB), in {1e3 * spill['seconds_in'] / max(spill['sequences_in'], 1):.1f} ms each")
    remote.write(arguments.json, what, [row])


def mean(turns, key):
    return statistics.mean(one[key] for one in turns)


def report(spilled, recomputed):
    """Of both ways, and the three ratios."""
    print("| preempted sequences | tokens/s | preempted | attention reads | failed |\n|---|---|---|---|---|")
    for name, turns in (("recomputed", recomputed), ("spilled where that is faster", spilled)):
        print(f"| {name} | {mean(turns, 'tokens_per_second'):.1f} | {mean(turns, 'preemptions'):.0f} | "
              f"{mean(turns, 'attend_bytes_per_second') / 1e9:.2f} GB/s | {sum(one['failed'] for one in turns)} |")
    tiers = [one["spill"] for one in spilled]
    out, back = (sum(tier[key] for tier in tiers) for key in ("sequences_out", "sequences_in"))
    print(f"\n{out} sequences out ({sum(tier['bytes_out'] for tier in tiers) / 1e6:.0f} MB), {back} back "
          f"({sum(tier['bytes_in'] for tier in tiers) / 1e6:.0f} MB); the data thread copied for {mean(spilled, 'copy_seconds'):.2f} s of "
          f"{mean(spilled, 'seconds'):.1f} s")
    ratios = {"tokens_per_second_ratio": mean(spilled, "tokens_per_second") / mean(recomputed, "tokens_per_second"),
              "attention_ratio": mean(spilled, "attend_bytes_per_second") / mean(recomputed, "attend_bytes_per_second")}
    print(f"tokens/s over recomputation: {ratios['tokens_per_second_ratio']:.2f} (target {FASTER})")
    print(f"attention over that without the tier: {ratios['attention_ratio']:.3f} (target at least {ATTEND})")
    if back > 0:
        bound = sum(tier["bytes_in"] / tier["read_bytes_per_second"] for tier in tiers)
        ratios["restore_ratio"] = sum(tier["seconds_in"] for tier in tiers) / bound
        print(f"read back in {1e3 * sum(tier['seconds_in'] for tier in tiers) / back:.1f} ms each, {ratios['restore_ratio']:.2f} of bytes over "
              f"the measured read of {statistics.mean(tier['read_bytes_per_second'] for tier in tiers) / 1e9:.2f} GB/s (target at most {NEAR})")
    return ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", default="160MiB", help="of the memory node")
    parser.add_argument("--rows", type=int, default=14, help="requests at once")
    parser.add_argument("--context", type=int, default=600, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=400, help="tokens of each answer")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2, help="of each way")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16", help="the form of K and V")
    parser.add_argument("--path", default=tempfile.gettempdir(), help="folder of the tier")
    parser.add_argument("--tier", default="1GiB", help="its capacity")
    parser.add_argument("--json", help="also write the figures to this file")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        on_one(arguments)
        return
    spilled, recomputed = [], []
    for _ in range(arguments.turns):
        recomputed.append(turn(arguments, spills=False))
        spilled.append(turn(arguments, spills=True))
    slots = spilled[0]["slots"]
    print(f"{arguments.rows} requests of {arguments.context} + {arguments.output} tokens, "
          f"{arguments.rows * (arguments.context + arguments.output) / slots:.2f} times the {slots} slots\n")
    ratios = report(spilled, recomputed)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"spilled": spilled, "recomputed": recomputed, **ratios}, file, indent=2)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""KVPR on this machine: decode steps of policy fetch_recompute over a throttled link, against full transfer in the same run.

The paper's set-up is a GPU behind PCIe with KV in the host's memory; here a compute node on one core fetches from a memory node over a link
of shared memory that is slowed down, a multi-head LLaMA of random weights, activations over the link (column by column); weights resident, or
streamed over the same bus, where lanes share each layer that comes: the paper's batches, one after the other through a layer.
c is the time to make K and V of a token over the time to send them; the link is set for each c from the time that the compute node takes.
With activations of half the bytes of K and V the best step takes (1/2 + c) / (1 + c) of full transfer, if nothing else takes time; with several
lanes, which transfer while another one makes K and V, the larger of 1/2 and c / (c + 1/2). One lane whose windows have room for the next layer
is between the two: the first layer of a step has nothing to transfer behind (ADR 0228).

With --resident activations stay on the compute node (fetch.resident, room for all): the paper's row-by-row schedule, next to full transfer with
K and V of other tokens kept in the same bytes (fetch_heads), of half as many, since these have twice the bytes.

That is the paper's claims by c: --claims. Its figures and its Table 2 in shape are in paper_kvpr_figures.py; some of them alone: --figure or --table.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

import cluster
import paper_kvpr_figures
import processor
import random_llama
from paper_shared import IMAGES, add_parts, bus, draw, each, link, run_asked, split_time, streamed_gain, streamed_time, streamed_time_of_lanes, streamed_time_of_the_paper, verdict

SHAPE = random_llama.Shape(layers=4, width=512, hidden=1024, heads=8, kv_heads=8)
# With weights that come over the same bus, a layer's of which are an eighth of its K and V of 8 rows.
STREAMED = random_llama.Shape(layers=6, width=512, hidden=512, heads=8, kv_heads=8)
STREAMED_CONTEXT = 1792
WINDOW = "512MiB"
PAPER_LATENCY = 35.8  # Per cent lower, weights resident, at best.
PAPER_THROUGHPUT = 46.2  # Per cent higher, weights streamed, at best.
NEAR = 0.10  # Of the formulas.
NEAR_SWEEP = 0.05  # Of the best of the sweep.


class Bench:
    def __init__(self, model, rows, context, lanes=1, budget=None):
        self.model, self.rows, self.context, self.lanes, self.budget = model, rows, context, lanes, budget

    def run(self, percent, transport, resident=0):
        """Seconds of a step at the context, seconds to make K and V of a token in a layer, and the split in words.
        `percent` None: nothing is recomputed, by fetch_heads. `resident`: bytes that stay on the compute node, activations or K and V."""
        keys, limits = {"window": WINDOW}, {}
        if percent is not None:
            keys["recompute_percent"] = percent
        if resident:
            keys["resident"] = f"{resident}B"
            limits["running_max"] = self.rows  # Who may run has an equal share of the room.
        with cluster.Cluster(self.lanes, memory_nodes=1, transport=transport, model=self.model, weights_budget=self.budget,
                             fetch=("fetch_heads" if percent is None else "fetch_recompute", keys), **limits) as running:
            stretches = running.decode_stretches(self.rows, self.context)
            metrics = running.metrics("c0")
            words = running.status().get("fetch_choice", "")
        # Answers grow while they are measured.
        asked = self.rows * self.context
        step = statistics.median(self.rows / one.tokens_per_second * asked / one.context_tokens for one in stretches)
        tokens = sum(value for name, value in metrics.items() if name.startswith("lamina_recomputed_tokens_total"))
        seconds = sum(value for name, value in metrics.items() if 'part="recompute"' in name)
        return step, seconds / tokens if tokens else 0.0, words


def streamed(folder, make, ratios, rows, lanes):
    """Weights come over the bus too: (c, full transfer, split by the policy, bound of the throughput)."""
    random_llama.write(pathlib.Path(folder), STREAMED)
    # Slots, and what does not stream; embeddings and LM head are small.
    budget = (2 if lanes == 1 else 3) * STREAMED.layer_bytes() + (3 << 20)
    bench = Bench(folder, rows, STREAMED_CONTEXT, lanes, budget)
    kv = rows * STREAMED_CONTEXT * STREAMED.kv_bytes()
    share = kv / STREAMED.layer_bytes()
    time = streamed_time if lanes == 1 else streamed_time_of_lanes
    print(f"\nWeights streamed over the same bus: {STREAMED.layers} layers, K and V {share:.1f} times their bytes, {rows} rows in {lanes} lanes\n")
    print("| c | bus, MB/s | full transfer, ms a step | split by the policy | ms a step | throughput | the paper's bound | bound of these lanes |\n"
          "|---|---|---|---|---|---|---|---|")
    points = []
    for c in each(ratios, lambda c: f"weights streamed, c = {c:g}"):
        bandwidth = c * STREAMED.kv_bytes() / make
        full, _, _ = bench.run(0, bus(bandwidth))
        step, _, words = bench.run("auto", bus(bandwidth))
        bounds = streamed_gain(share, c, streamed_time_of_the_paper), streamed_gain(share, c, time)
        points.append({"c": c, "lanes": lanes, "bandwidth": bandwidth, "full_s": full, "step_s": step, "higher": full / step - 1,
                       "bound": bounds[0], "bound_of_lanes": bounds[1], "words": words})
        print(f"| {c:g} | {bandwidth / 1e6:.0f} | {1e3 * full:.0f} | {words.split(':')[0]} | {1e3 * step:.0f} | {100 * (full / step - 1):+.1f}% | "
              f"{100 * bounds[0]:+.1f}% | {100 * bounds[1]:+.1f}% |", flush=True)
    return points


def row_by_row(bench, make, ratios):
    """Activations of all tokens on the compute node, K and V of half of them in the same bytes, and neither."""
    room = bench.rows * bench.context * SHAPE.layers * SHAPE.activation_bytes() * 5 // 4  # Answers grow while they are measured.
    print(f"\nRow by row: {room / 2**20:.0f} MiB on the compute node, activations or K and V\n")
    print("| c | full transfer, ms a step | K and V in these bytes | activations in them | split by the policy | over full transfer (formula) | over K and V in these bytes |\n"
          "|---|---|---|---|---|---|---|")
    points = []
    for c in each(ratios, lambda c: f"row by row, c = {c:g}"):
        bandwidth = c * SHAPE.kv_bytes() / make
        full, _, _ = bench.run(0, link(bandwidth))
        kept, _, _ = bench.run(None, link(bandwidth), room)
        step, _, words = bench.run("auto", link(bandwidth), room)
        points.append({"c": c, "bandwidth": bandwidth, "full_s": full, "kv_kept_s": kept, "step_s": step, "formula": c / (1 + c), "words": words})
        print(f"| {c:g} | {1e3 * full:.0f} | {1e3 * kept:.0f} | {1e3 * step:.0f} | {words.split(':')[0]} | {step / full:.3f} ({c / (1 + c):.3f}) | {step / kept:.3f} |", flush=True)
    return points


def sweep(bench, make, c, percents):
    """[(per cent, seconds of a step)] with so many per cent of the tokens recomputed, whatever is best."""
    print(f"\n| recomputed at c = {c:g} | ms a step |\n|---|---|")
    steps = []
    for percent in each(percents, lambda percent: f"c = {c:g}, {percent}% recomputed"):
        step, _, _ = bench.run(percent, link(c * SHAPE.kv_bytes() / make))
        steps.append((percent, step))
        print(f"| {percent}% | {1e3 * step:.0f} |", flush=True)
    return steps


def judge_sweeps(points, sweeps):
    """Where the policy's own split was measured too, over the best of the swept ones."""
    for swept in sweeps:
        best = min(step for _, step in swept["steps"])
        for point in points:
            if point["c"] == swept["c"]:
                print(f"At c = {point['c']:g} the chosen split takes {point['step_s'] / best:.3f} of the best of the sweep (asked: at most {1 + NEAR_SWEEP}): "
                      f"{verdict(point['step_s'] <= best * (1 + NEAR_SWEEP))}.")


def off_formulas(point):
    """By which share a ratio is above the paper's equation, or below that of a lane which is a layer ahead all the time; not above 0 between them."""
    return max(point["ratio"] / point["formula"], point["ahead"] / point["ratio"]) - 1


def run_claims(arguments):
    """{what: figures} of the claims by c."""
    with tempfile.TemporaryDirectory(prefix="lamina-kvpr-") as folder:
        random_llama.write(pathlib.Path(folder), SHAPE)
        bench = Bench(folder, arguments.rows, arguments.context)
        _, make, _ = bench.run(100, "shm")
        print(f"K and V of a token in a layer: {1e6 * make:.1f} us to make, {SHAPE.kv_bytes()} bytes; its activation {SHAPE.activation_bytes()} bytes")
        points = []
        print("\n| c | link, MB/s | full transfer, ms a step | split by the policy | ms a step | ratio | formula | a layer ahead |\n|---|---|---|---|---|---|---|---|")
        for c in each([float(text) for text in arguments.ratios.split(",")], lambda c: f"c = {c:g}"):
            bandwidth = c * SHAPE.kv_bytes() / make
            full, _, _ = bench.run(0, link(bandwidth))
            step, _, words = bench.run("auto", link(bandwidth))
            ahead = streamed_time_of_lanes(0, c)
            points.append({"c": c, "bandwidth": bandwidth, "full_s": full, "step_s": step, "ratio": step / full, "formula": split_time(c), "ahead": ahead, "words": words})
            print(f"| {c:g} | {bandwidth / 1e6:.0f} | {1e3 * full:.0f} | {words.split(':')[0]} | {1e3 * step:.0f} | {step / full:.3f} | {split_time(c):.3f} | {ahead:.3f} |",
                  flush=True)
        percents = [int(text) for text in arguments.sweep.split(",")]
        sweeps = [{"c": c, "steps": sweep(bench, make, c, percents)} for c in (float(text) for text in arguments.sweep_ratios.split(",") if text)]
        kept = row_by_row(bench, make, (0.25, 1)) if arguments.resident else []
    with tempfile.TemporaryDirectory(prefix="lamina-kvpr-") as folder:
        with_weights = streamed(folder, make, [float(text) for text in arguments.streamed_ratios.split(",") if text], arguments.rows, arguments.streamed_lanes)
    quarter = next((point for point in points if point["c"] == 0.25), None)
    print()
    best_throughput = max((point["higher"] for point in with_weights), default=None)
    if best_throughput is not None:
        print(f"With weights streamed, throughput is {100 * best_throughput:.1f}% higher at best (the paper's best {PAPER_THROUGHPUT}%): "
              f"{verdict(100 * best_throughput >= PAPER_THROUGHPUT)}.")
    if quarter:
        lower = 100 * (1 - quarter["ratio"])
        print(f"At c = 1/4 a step is {lower:.1f}% shorter than full transfer (the paper's best {PAPER_LATENCY}%, its equation 40%, a layer ahead 50%): {verdict(lower >= PAPER_LATENCY)}.")
    judge_sweeps(points, sweeps)
    worst = max(points, key=off_formulas)
    print(f"Farthest off the formulas: c = {worst['c']:g}, {worst['ratio']:.3f} for {worst['ahead']:.3f} to {worst['formula']:.3f} "
          f"(asked: within {100 * NEAR:.0f}%): {verdict(off_formulas(worst) <= NEAR)}.")
    draw(arguments.images, "kvpr_latency", "KVPR: a step over full transfer", "c", "ratio",
         [("measured", [(point["c"], point["ratio"]) for point in points]), ("formula", [(point["c"], point["formula"]) for point in points]),
          ("a layer ahead", [(point["c"], point["ahead"]) for point in points])])
    return {"make_s": make, "points": points, "sweeps": sweeps, "row_by_row": kept, "streamed": with_weights}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--only", choices=["kvpr"], default="kvpr", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--ratios", default="0.125,0.25,0.5,1,2,4", help="values of c")
    parser.add_argument("--streamed-ratios", default="0.25,1", help="values of c with streamed weights")
    parser.add_argument("--streamed-lanes", type=int, default=8, help="lanes with streamed weights: the paper's batches")
    parser.add_argument("--sweep", default="0,20,40,60,80,100", help="per cent of tokens recomputed, at each c of --sweep-ratios")
    parser.add_argument("--sweep-ratios", default="0.25,1", help="values of c at which splits are swept: one whose best split is all tokens, one whose is between")
    parser.add_argument("--resident", action="store_true", help="with --claims: activations on the compute node, too: 8 minutes")
    parser.add_argument("--images", default=IMAGES, help="folder of the SVG figures")
    names = paper_kvpr_figures.PARTS
    add_parts(parser, names, paper_kvpr_figures.MINUTES)
    arguments = parser.parse_args()
    if arguments.resident and not arguments.claims:
        parser.error("--resident is a set-up of --claims: give both")
    print(f"machine {processor.machine()}")
    found = run_asked(arguments, names, paper_kvpr_figures.Bench, run_claims, paper_kvpr_figures.MINUTES)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), **found}, out, indent=1)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""HybridServe on this machine: decode steps of policy fetch_hybrid over a throttled link, against K and V alone and activations alone.

The paper's set-up is a GPU behind PCIe with KV and weights in the host's memory; here a compute node on one core fetches from a memory node
over a link of shared memory that is slowed down, a multi-head LLaMA of random weights, weights resident. c is the time to make K and V of
a token over the time to send them; the link is set for each c from the time that the compute node takes. With activations of half the bytes of
K and V a step takes as long as the busier side: link 1 - x / 2 or device x c + o for a share x of activations, in units of what K and V alone
take on the link, with o what the compute node does else (attention above all), measured with K and V alone.

With --resident a further set-up has the activations on the compute node too (fetch.resident, room for all of them), as the paper's device has
some: the link carries K and V of the other tokens alone, 1 - x, the device has x c + o as before. Without o that is at most 1 + 1 / c times K and
V alone, where the mix has 1 + 1 / (2 c). And once more with weights that come over the same bus, which is the paper's set-up as a whole: w, a layer's
weights over its K and V, is the link's in both, so that the bound is 1 + 1 / c up to w = c, and 1 + 1 / w behind it.

That is the paper's claims by c: --claims. Its figures in shape are in paper_hybridserve_figures.py; some of them alone: --figure.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import statistics
import tempfile
import time

import cluster
import paper_hybridserve_figures
import processor
import random_llama
from paper_shared import IMAGES, add_parts, bus, draw, each, link, run_asked, settle_share, verdict

SHAPE = random_llama.Shape(layers=4, width=512, hidden=1024, heads=8, kv_heads=8)
# The model whose weights come over the same bus is as wide, so that K and V of a token take as long to make.
STREAMED = random_llama.Shape(layers=6, width=512, hidden=512, heads=8, kv_heads=8)
WINDOW = "512MiB"
AT_LEAST = 1.35  # Times both, at c = 1.
NEAR = 0.10  # Of the formula.


@dataclasses.dataclass
class Point:
    step: float  # Seconds.
    make: float  # Seconds to make K and V of a token in a layer.
    megabytes: float  # That came in a step.
    busy: float  # Share of the time in which the compute node made K and V.
    other: float  # Seconds of a step in which it did anything else than wait.
    share: float  # Per cent of tokens held as activations.
    words: str


def total(metrics, start, label=""):
    return sum(value for name, value in metrics.items() if name.startswith(start) and label in name)


class Bench:
    """`budget`: bytes that the compute node has for weights, of which the others stream; None: all stay."""

    def __init__(self, model, rows, context, lanes, shape=SHAPE, budget=None):
        self.model, self.rows, self.context, self.lanes, self.shape, self.budget = model, rows, context, lanes, shape, budget

    def run(self, percent, transport, resident=False):
        """`resident`: activations stay on the compute node, which has room for those of all tokens."""
        keys, limits = {"window": WINDOW, "activation_percent": percent}, {}
        if resident:
            limits["running_max"] = self.rows  # Who may run has an equal share of the room.
            keys["resident"] = f"{self.rows * cluster.SEQUENCE_TOKENS_MAX * self.shape.layers * self.shape.activation_bytes()}B"
        with cluster.Cluster(self.lanes, memory_nodes=1, transport=transport, model=self.model, weights_budget=self.budget, fetch=("fetch_hybrid", keys), **limits) as running:
            if percent == "auto":
                words = settle_share(running, lambda: running.decode_stretches(self.rows, self.context))
            else:
                words = running.status()["fetch_choice"]
            before, start = running.metrics("c0"), time.monotonic()
            stretches = running.decode_stretches(self.rows, self.context)
            after, seconds = running.metrics("c0"), time.monotonic() - start
        tokens = total(after, "lamina_recomputed_tokens_total")
        making = total(after, "lamina_", 'part="recompute"')
        made = making - total(before, "lamina_", 'part="recompute"')
        # Answers grow while they are measured: a step at the context asked for.
        asked = self.rows * self.context
        step = statistics.median(self.rows / one.tokens_per_second * asked / one.context_tokens for one in stretches)
        other = statistics.median(step * sum(seconds for (node, part), seconds in one.shares.items()
                                             if node == "c0" and part != "recompute" and not part.startswith("wait")) for one in stretches)
        share = float(words.split("%")[0]) if "%" in words else 0.0
        activation = 0 if resident else self.shape.activation_bytes()
        kv = self.rows * self.context * self.shape.layers * (self.shape.kv_bytes() * (1 - share / 100) + activation * share / 100)
        return Point(step, making / tokens if tokens else 0.0, kv / 1e6, made / seconds, other, share, words)


def formula(c, other):
    """Of K and V alone, at the share of activations that is best, with what else the compute node does; all over the time of K and V on the link."""
    share = min(1.0, max(0.0, (1 - other) / (c + 0.5)))
    return max(1 - share / 2, share * c + other) / max(1.0, other)


def resident_formula(c, other, weights=0.0):
    """Where activations are on the compute node, and the link has K and V of the other tokens alone, and weights; over K and V of all, and weights."""
    share = min(1.0, max(0.0, (weights + 1 - other) / (c + 1)))
    return max(weights + 1 - share, share * c + other) / max(weights + 1, other)


def resident_bound(c, weights=0.0):
    """Times K and V alone, where the compute node does nothing else."""
    return 1 / resident_formula(c, 0.0, weights)


def judge_resident(gains, text, bounds):
    """A verdict on {point: times K and V alone}, of which those count whose bound allows the paper's mean. `text` says what was measured."""
    paper = paper_hybridserve_figures.PAPER_OVER_KV
    within = {point: gain for point, gain in gains.items() if bounds[point] >= paper}
    if within:
        best = max(within, key=within.get)
        print(f"{text}: {within[best]:.2f} times K and V alone at c = {best[0]:g} (bound {bounds[best]:.2f}; the paper's mean over another engine {paper}): "
              f"{verdict(within[best] >= paper)}.")
    else:
        print(f"{text}: none was asked for whose bound allows the paper's {paper}: not measured.")


def streamed_resident(folder, make, arguments):
    """The paper's set-up: weights come over the same bus, activations are on the compute node. The points, measured."""
    random_llama.write(pathlib.Path(folder), STREAMED)
    # Slots, and what does not stream; embeddings and LM head are small.
    budget = (2 if arguments.lanes == 1 else 3) * STREAMED.layer_bytes() + (3 << 20)
    ratios = [float(text) for text in arguments.streamed_ratios.split(",") if text]
    contexts = [int(text) for text in arguments.streamed_contexts.split(",")]
    print(f"\nWeights streamed over the same bus: {STREAMED.layers} layers, {arguments.rows} rows in {arguments.lanes} lanes\n")
    print("| c | tokens of a row | weights over K and V | bus, MB/s | K and V alone, ms a step | activations on the compute node | held as activations | over K and V alone (formula; bound) |"
          "\n|---|---|---|---|---|---|---|---|")
    points = []
    for c, context in each(itertools.product(ratios, contexts), lambda one: f"weights streamed, c = {one[0]:g}, {one[1]} tokens: K and V alone, activations on the compute node"):
        bench = Bench(folder, arguments.rows, context, arguments.lanes, STREAMED, budget)
        bandwidth = c * STREAMED.kv_bytes() / make
        kv, stays = bench.run(0, bus(bandwidth)), bench.run("auto", bus(bandwidth), resident=True)
        weights = STREAMED.layer_bytes() / (arguments.rows * context * STREAMED.kv_bytes())
        other = kv.other / (1e6 * kv.megabytes / bandwidth)
        points.append({"c": c, "context": context, "weights": weights, "bandwidth": bandwidth, "gain": kv.step / stays.step, "formula": 1 / resident_formula(c, other, weights),
                       "bound": resident_bound(c, weights), "kv": dataclasses.asdict(kv), "resident": dataclasses.asdict(stays)})
        print(f"| {c:g} | {context} | {weights:.2f} | {bandwidth / 1e6:.0f} | {1e3 * kv.step:.0f} | {1e3 * stays.step:.0f} | {stays.share:.0f}% "
              f"| {points[-1]['gain']:.2f} ({points[-1]['formula']:.2f}; {points[-1]['bound']:.2f}) |", flush=True)
    return points


def judge_streamed(points):
    """Next to the paper's mean, and to the formula."""
    by = {(point["c"], point["context"]): point for point in points}
    print()
    judge_resident({key: point["gain"] for key, point in by.items()}, "With weights streamed and activations on the compute node, as in the paper", {key: point["bound"] for key, point in by.items()})
    worst = max(points, key=lambda point: abs(point["gain"] / point["formula"] - 1))
    print(f"Farthest from the formula: c = {worst['c']:g} at {worst['context']} tokens, {worst['gain']:.2f} for {worst['formula']:.2f} (asked: within {100 * NEAR:.0f}%): "
          f"{verdict(abs(worst['gain'] / worst['formula'] - 1) <= NEAR)}.")


def print_resident(points):
    """The set-up with activations on the compute node, next to the others of the same run."""
    print("\n| c | activations on the compute node, ms a step | held as activations | over K and V alone (formula; bound) | over the mix | MB a step |\n|---|---|---|---|---|---|")
    reached = {}
    for point in points:
        c, kv, mix, stays = point["c"], point["kv"], point["hybrid"], point["resident"]
        reached[c] = kv["step"] / stays["step"]
        print(f"| {c:g} | {1e3 * stays['step']:.0f} | {stays['share']:.0f}% | {reached[c]:.2f} ({1 / point['resident_formula']:.2f}; {resident_bound(c):.2f}) "
              f"| {mix['step'] / stays['step']:.2f} | {stays['megabytes']:.0f} |")
    print()
    judge_resident({(c,): gain for c, gain in reached.items()}, "With weights and activations on the compute node", {(c,): resident_bound(c) for c in reached})


def run_claims(arguments):
    """{what: figures} of the claims by c."""
    points = []
    with tempfile.TemporaryDirectory(prefix="lamina-hybridserve-") as folder:
        random_llama.write(pathlib.Path(folder), SHAPE)
        bench = Bench(folder, arguments.rows, arguments.context, arguments.lanes)
        make = bench.run(100, "shm").make
        print(f"K and V of a token in a layer: {1e6 * make:.1f} us to make, {SHAPE.kv_bytes()} bytes; its activation {SHAPE.activation_bytes()} bytes; "
              f"{arguments.rows} rows at {arguments.context} tokens, {arguments.lanes} lanes")
        print("\n| c | link, MB/s | K and V alone, ms a step | activations alone | half of each | chosen | held as activations | over K and V alone (formula) | over activations alone |"
              "\n|---|---|---|---|---|---|---|---|---|")
        for c in each([float(text) for text in arguments.ratios.split(",")], lambda c: f"c = {c:g}: K and V alone, activations alone, half of each, chosen"):
            transport = link(c * SHAPE.kv_bytes() / make)
            kv, act, half, chosen = (bench.run(percent, transport) for percent in (0, 100, 50, "auto"))
            other = kv.other / (1e6 * kv.megabytes / (c * SHAPE.kv_bytes() / make))
            stays = {"resident": dataclasses.asdict(bench.run("auto", transport, resident=True)), "resident_formula": resident_formula(c, other)} if arguments.resident else {}
            points.append({"c": c, "bandwidth": c * SHAPE.kv_bytes() / make, "formula": formula(c, other), **stays,
                           **{name: dataclasses.asdict(point) for name, point in (("kv", kv), ("activations", act), ("half", half), ("hybrid", chosen))}})
            print(f"| {c:g} | {points[-1]['bandwidth'] / 1e6:.0f} | {1e3 * kv.step:.0f} | {1e3 * act.step:.0f} | {1e3 * half.step:.0f} | {1e3 * chosen.step:.0f} | {chosen.share:.0f}% "
                  f"| {kv.step / chosen.step:.2f} ({1 / points[-1]['formula']:.2f}) | {act.step / chosen.step:.2f} |", flush=True)
    print("\n| c | MB of K, V and activations a step: K and V alone, chosen | compute node making K and V, share of time: activations alone, chosen |\n|---|---|---|")
    for point in points:
        print(f"| {point['c']:g} | {point['kv']['megabytes']:.0f}, {point['hybrid']['megabytes']:.0f} | {point['activations']['busy']:.0%}, {point['hybrid']['busy']:.0%} |")
    with_weights = []
    if arguments.resident:
        print_resident(points)
        if arguments.streamed_ratios:
            with tempfile.TemporaryDirectory(prefix="lamina-hybridserve-") as folder:
                with_weights = streamed_resident(folder, make, arguments)
            judge_streamed(with_weights)
    print()
    one = next((point for point in points if point["c"] == 1), None)
    if one:
        over_kv, over_act = one["kv"]["step"] / one["hybrid"]["step"], one["activations"]["step"] / one["hybrid"]["step"]
        print(f"At c = 1, where 1.5 is the bound over both, {over_kv:.2f} times K and V alone and {over_act:.2f} times activations alone (asked: {AT_LEAST}): "
              f"{verdict(min(over_kv, over_act) >= AT_LEAST)}.")
    last = points[-1]
    print(f"The share of Algorithm 1 over half of each, at c = {last['c']:g}: {last['half']['step'] / last['hybrid']['step']:.2f} times as fast.")
    worst = max(points, key=lambda point: abs(point["hybrid"]["step"] / point["kv"]["step"] / point["formula"] - 1))
    measured = worst["hybrid"]["step"] / worst["kv"]["step"]
    print(f"Farthest from the formula: c = {worst['c']:g}, {measured:.3f} of K and V alone for {worst['formula']:.3f} (asked: within {100 * NEAR:.0f}%): "
          f"{verdict(abs(measured / worst['formula'] - 1) <= NEAR)}.")
    draw(arguments.images, "hybridserve_step", "HybridServe: a step over K and V alone", "c", "ratio",
         [("hybrid", [(point["c"], point["hybrid"]["step"] / point["kv"]["step"]) for point in points]),
          ("activations alone", [(point["c"], point["activations"]["step"] / point["kv"]["step"]) for point in points]),
          ("activations on the compute node", [(point["c"], point["resident"]["step"] / point["kv"]["step"]) for point in points if arguments.resident]),
          ("formula", [(point["c"], point["formula"]) for point in points])])
    return {"make_s": make, "points": points, "streamed": with_weights}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--only", choices=["hybridserve"], default="hybridserve", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--lanes", type=int, default=2, help="mini-batches: one's K and V are on the link while another one's are made")
    parser.add_argument("--resident", action="store_true", help="with --claims: activations on the compute node, too: 8 minutes")
    parser.add_argument("--ratios", default="0.5,1,2,4", help="values of c")
    parser.add_argument("--streamed-ratios", default="0.5,1", help="with --resident: values of c with weights streamed too; empty: none")
    parser.add_argument("--streamed-contexts", default="448,1792", help="tokens of a row there: a layer's weights have a half and an eighth of the bytes of its K and V")
    parser.add_argument("--c", type=float, default=paper_hybridserve_figures.C, help="of the narrowest model, for the figures in shape")
    parser.add_argument("--images", default=IMAGES, help="folder of the SVG figures")
    names = paper_hybridserve_figures.PARTS
    add_parts(parser, names, paper_hybridserve_figures.MINUTES)
    arguments = parser.parse_args()
    if arguments.resident and not arguments.claims:
        parser.error("--resident is a set-up of --claims: give both")
    print(f"machine {processor.machine()}")
    found = run_asked(arguments, names, lambda folder, images: paper_hybridserve_figures.Bench(folder, images, arguments.c), run_claims,
                      paper_hybridserve_figures.MINUTES)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), **found}, out, indent=1)


if __name__ == "__main__":
    main()

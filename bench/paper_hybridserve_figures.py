# SPDX-License-Identifier: Apache-2.0
"""HybridServe's Figures 4, 6 and 12 to 15 in shape: OPT of random weights, a sixteenth as wide and an eighth as deep as the paper's.

One core computes, a memory node on another holds K, V and activations; weights stream over the same bus, whose bandwidth gives the narrowest
model the c asked for, 1 by default, on a core of its own. Figures 12 to 15 come from the same runs: K and V alone, activations alone, half of each, and the share that the policy settles on.
Prompts are a quarter, answers a sixteenth of the paper's.
"""

import math
import statistics

import paper_shared as shared
from paper_shared import MODELS, NOT_BUILT, Cluster, each, generate, geometric_mean, verdict

C = 1.0
ROWS, LANES = 16, 2
LENGTHS = (32, 128, 480)
ANSWER = 8
SETTLING_ANSWER = 64  # A load counts once rows have decoded for a quarter of a second.
BATCHES = (4, 8, 16)
BATCH_LENGTH = 128
COMPARED = ("OPT-6.7B", "OPT-30B")
WAYS = {"K and V alone": 0, "activations alone": 100, "half of each": 50, "chosen": "auto"}
PACKED = {"half of each, packed": 50, "chosen, packed": "auto"}  # Figure 15 alone.
NO_LAYER = ("head", "lay_out")  # Parts of a step that no layer takes.

PAPER_TOKENS = {0: 1.0, 0.5: 1.45}  # Figure 4, OPT-30B, of the latency without recomputation.
PAPER_REDUCTION = 78  # Per cent, Figure 6, geometric mean.
PAPER_OVER_KV, PAPER_OVER_ACTIVATIONS = 2.19, 1.35  # Figure 12, means; of OPT-6.7B 2.05 over K and V alone.
PAPER_TRAFFIC = {32: 1.27, 64: 1.38}  # Figure 13, at best, by batch.
PAPER_BUSY = {"K and V alone": (8.2, 12.6), "chosen": (35.6, 78.2)}  # Per cent, Figure 14, batch 32 and 128.
PAPER_STEPS = {"OPT-6.7B": ("1.23", "little more"), "OPT-30B": ("1.33 (mean)", "1.6")}  # Figure 15, over activations alone.


class Bench(shared.Bench):
    def __init__(self, folder, images, c=C):
        super().__init__(folder, images)
        self.c = c
        self.points = None

    def hybrid(self, name, percent, transport, lanes, packing=False, **keys):
        return Cluster(lanes, model=self.model(name), transport=transport, capacity="1GiB",
                       fetch=("fetch_hybrid", {"window": shared.WINDOW, "activation_percent": percent, "packing": packing}), **keys)

    def streamed(self, name, percent, bandwidth, packing=False):
        return self.hybrid(name, percent, shared.bus(bandwidth), LANES, packing, weights_budget=f"{shared.weights_budget(MODELS[name], LANES)}B")

    def from_tokens(self, name, percent, bandwidth):
        """K and V of so many per cent of the tokens before each row are made from token numbers in every step."""
        return Cluster(LANES, model=self.model(name), transport=shared.bus(bandwidth), capacity="1GiB", weights_budget=f"{shared.weights_budget(MODELS[name], LANES)}B",
                       fetch=("fetch_recompute", {"window": shared.WINDOW, "recompute": "tokens", "recompute_percent": percent}))


def settle(running, length=BATCH_LENGTH):
    """Waits for the share that the policy chooses, by a load of its own; returns it in words."""
    return shared.settle_share(running, lambda: generate(running, ROWS, length, [SETTLING_ANSWER]))


def share_of(words):
    """Per cent of tokens held as activations."""
    return float(words.split("%")[0]) if "%" in words else 0.0


def lane_moves(running):
    """How many requests have gone from lane to lane so far."""
    return int(running.status().get("lane_moves", 0))


def point_of(found, rows, answer, token_seconds):
    """What Figures 12 to 14 need of a generation. `token_seconds`: of K and V of a token in a layer on the bus."""
    made = found.steps * found.recomputed
    return {"tokens_per_second": rows * answer / (found.prompt_seconds + found.seconds[answer]), "decode": rows * answer / found.seconds[answer], "busy": found.busy(),
            "sent": {kind: found.sent["to", kind] for kind in ("weights", "kv", "activations")},
            "c": found.parts.get("recompute", 0.0) * found.span_seconds / made / token_seconds if made else None}


def measured(bench):
    """{(model, way): {"share": per cent, (length, rows): point}}, once for all figures."""
    if bench.points is None:
        bandwidth = bench.bandwidth(bench.c)
        print(f"  {ROWS} rows in {LANES} lanes, weights streamed, bus of {bandwidth / 1e6:.0f} MB/s", flush=True)
        bench.points = {}
        for name in COMPARED:
            token_seconds = MODELS[name].kv_bytes() / bandwidth
            for way, percent in {**WAYS, **PACKED}.items():
                found = {}
                # A share is that of a load, and stays for a minute: each length has a cluster of its own.
                for lengths in [[length] for length in LENGTHS] if percent == "auto" else [LENGTHS]:
                    with bench.streamed(name, percent, bandwidth, way in PACKED) as running:
                        share = share_of(settle(running, lengths[0])) if percent == "auto" else percent
                        for length in lengths:
                            before = lane_moves(running)
                            point = point_of(generate(running, ROWS, length, [ANSWER]), ROWS, ANSWER, token_seconds)
                            found[length, ROWS] = {**point, "share": share, "moves": lane_moves(running) - before}
                        for rows in BATCHES if BATCH_LENGTH in lengths and way in PAPER_BUSY else ():
                            if (BATCH_LENGTH, rows) not in found:
                                found[BATCH_LENGTH, rows] = point_of(generate(running, rows, BATCH_LENGTH, [ANSWER]), rows, ANSWER, token_seconds)
                found["share"] = found[BATCH_LENGTH, ROWS]["share"]
                bench.points[name, way] = found
                print(f"  {name}, {way}: {found['share']:.0f}% as activations", flush=True)
    return bench.points


def for_json(points):
    return [{"model": name, "way": way, "share": of["share"], "points": [{"length": key[0], "rows": key[1], **value} for key, value in of.items() if key != "share"]}
            for (name, way), of in points.items()]


def ratios(points, over, way="chosen", what="tokens_per_second"):
    """{(model, length): throughput of `way` over that of another}."""
    return {(name, length): points[name, way][length, ROWS][what] / points[name, over][length, ROWS][what] for name in COMPARED for length in LENGTHS}


def figure12(bench):
    """Throughput by prompt length, prompts included."""
    points = measured(bench)
    over_kv, over_activations = ratios(points, "K and V alone"), ratios(points, "activations alone")
    print(f"Figure 12: tokens/s, prompts included, {ANSWER} tokens each (paper: batch 128, 128 tokens)")
    shared.table(("model, prompt", *WAYS, "held as activations", "chosen over K and V alone", "over activations alone"),
                 [(f"{name}, {length}", *(f"{points[name, way][length, ROWS]['tokens_per_second']:.1f}" for way in WAYS), f"{points[name, 'chosen'][length, ROWS].get('share', points[name, 'chosen']['share']):.0f}%",
                   f"{over_kv[name, length]:.2f}", f"{over_activations[name, length]:.2f}") for name in COMPARED for length in LENGTHS])
    decode_kv, decode_activations = (ratios(points, over, what="decode") for over in ("K and V alone", "activations alone"))
    print("Decode steps alone, and c while they ran (other work on the cores makes K and V dearer than they were when the bus was set)")
    shared.table(("model, prompt", "chosen over K and V alone", "over activations alone", "c, chosen", "c, activations alone"),
                 [(f"{name}, {length}", f"{decode_kv[name, length]:.2f}", f"{decode_activations[name, length]:.2f}",
                   *(f"{points[name, way][length, ROWS]['c'] or 0:.1f}" for way in ("chosen", "activations alone"))) for name in COMPARED for length in LENGTHS])
    print(f"Activations kept on the device, as in the paper: not in these figures (--claims --resident). FlexGen and DeepSpeed: {NOT_BUILT} (other engines); K and V alone is by the same executor.")
    for values, paper, text in ((over_kv, PAPER_OVER_KV, "K and V alone"), (over_activations, PAPER_OVER_ACTIVATIONS, "activations alone")):
        mean = statistics.mean(values.values())
        print(f"Over {text} {mean:.2f} times in the mean, {min(values.values()):.2f} to {max(values.values()):.2f} (paper {paper}): {verdict(mean >= paper)}.")
    print(f"The chosen mix is never slower than either alone, within 3%: {verdict(min(*over_kv.values(), *over_activations.values()) >= 0.97)}.")
    shared.draw(bench.images, "hybridserve_figure12", "HybridServe, Figure 12: throughput", "prompt, tokens", "tokens/s",
                [(f"{name[4:]}, {way}", [(length, points[name, way][length, ROWS]["tokens_per_second"]) for length in LENGTHS])
                 for name in COMPARED for way in ("K and V alone", "activations alone", "chosen")])
    return for_json(points)


def figure13(bench):
    """Bytes that came in a step, by kind, as the bus counted them."""
    points = measured(bench)
    rows, best = [], 0.0
    for name in COMPARED:
        for length in LENGTHS:
            kv, chosen = (points[name, way][length, ROWS]["sent"] for way in ("K and V alone", "chosen"))
            less = sum(kv.values()) / sum(chosen.values())
            best = max(best, less)
            rows.append((f"{name}, {length}", *(" / ".join(f"{of[kind] / 1e6:.1f}" for kind in ("weights", "kv", "activations")) for of in (kv, chosen)), f"{less:.2f}"))
    print("Figure 13: MB that come to the compute node in a step: weights / K and V / activations")
    shared.table(("model, prompt", "K and V alone", "chosen", "times less"), rows)
    print(f"At best {best:.2f} times less (paper: {PAPER_TRAFFIC[32]} at batch 32, {PAPER_TRAFFIC[64]} at 64, of traffic that its FlexGen has): {verdict(best >= PAPER_TRAFFIC[32])}.")
    shared.draw(bench.images, "hybridserve_figure13", "HybridServe, Figure 13: bytes of a step", "prompt, tokens", "MB",
                [(f"{name[4:]}, {way}", [(length, sum(points[name, way][length, ROWS]["sent"].values()) / 1e6) for length in LENGTHS]) for name in COMPARED for way in PAPER_BUSY])
    return for_json(points)


def figure14(bench):
    """Time in which the compute node did not wait."""
    points = measured(bench)
    print("Figure 14: time in which the compute node computes; with prompts of the same length by batch, and with the same batch by length")
    columns = [(BATCH_LENGTH, rows) for rows in BATCHES] + [(length, ROWS) for length in LENGTHS if length != BATCH_LENGTH]
    shared.table(("", *(f"{rows} rows, {length}" for length, rows in columns), "paper, batch 32 to 128"),
                 [(f"{name}, {way}", *(f"{points[name, way][key]['busy']:.0%}" for key in columns), "{} to {}%".format(*PAPER_BUSY[way])) for name in COMPARED for way in PAPER_BUSY])
    more = {(name, key): points[name, "chosen"][key]["busy"] / points[name, "K and V alone"][key]["busy"] for name in COMPARED for key in columns}
    print(f"Busier by {min(more.values()):.1f} to {max(more.values()):.1f} times (paper: 7.39 in the mean, against another engine): {verdict(min(more.values()) > 1)} in direction; "
          f"the paper's mean: {verdict(statistics.mean(more.values()) >= 7.39)}.")
    shared.draw(bench.images, "hybridserve_figure14", "HybridServe, Figure 14: compute node busy", "rows", "%",
                [(f"{name[4:]}, {way}", [(rows, 100 * points[name, way][BATCH_LENGTH, rows]["busy"]) for rows in BATCHES]) for name in COMPARED for way in PAPER_BUSY])
    return for_json(points)


def figure15(bench):
    """One thing after the other, and packing without allocation."""
    points = measured(bench)
    gains = {way: ratios(points, "activations alone", way) for way in ("half of each", "chosen", *PACKED)}
    print("Figure 15: throughput over activations alone, the geometric mean of the prompt lengths")
    means = {(name, way): geometric_mean([gains[way][name, length] for length in LENGTHS]) for name in COMPARED for way in gains}
    shared.table(("model", "activations alone", "+ hybrid, half of each", "paper", "half of each, packed", "+ allocation by Algorithm 1", "+ packing of mini-batches", "paper, with both"),
                 [(name, "1", f"{means[name, 'half of each']:.2f}", PAPER_STEPS[name][0], *(f"{means[name, way]:.2f}" for way in ("half of each, packed", "chosen", "chosen, packed")), PAPER_STEPS[name][1])
                  for name in COMPARED])
    print("Requests that went from lane to lane while they were measured, by packing as by evening out, and the share held as activations")
    shared.table(("model, prompt", *(way for plain in ("half of each", "chosen") for way in (plain, f"{plain}, packed"))),
                 [(f"{name}, {length}", *("{moves}, {share:.0f}%".format(**points[name, way][length, ROWS]) for plain in ("half of each", "chosen") for way in (plain, f"{plain}, packed")))
                  for name in COMPARED for length in LENGTHS])
    print(f"Half of each is faster than activations alone: {verdict(min(means[name, 'half of each'] for name in COMPARED) > 1)}; "
          f"allocation adds to it: {verdict(all(means[name, 'chosen'] >= means[name, 'half of each'] for name in COMPARED))}, "
          f"more for the wider model: {verdict(means[COMPARED[1], 'chosen'] > means[COMPARED[0], 'chosen'])}.")
    packed = {(name, plain): means[name, f"{plain}, packed"] / means[name, plain] for name in COMPARED for plain in ("half of each", "chosen")}
    print(f"Packing is {min(packed.values()):.2f} to {max(packed.values()):.2f} times as fast as requests where they join: never slower, within 3%: {verdict(min(packed.values()) >= 0.97)}; "
          f"adds to the chosen share: {verdict(all(packed[name, 'chosen'] > 1 for name in COMPARED))}.")
    shared.draw(bench.images, "hybridserve_figure15", "HybridServe, Figure 15: over activations alone", "1 activations, 2 half of each, 3 chosen, 4 packed", "times",
                [(name, [(1, 1.0), *((2 + i, means[name, way]) for i, way in enumerate(("half of each", "chosen", "chosen, packed")))]) for name in COMPARED], x_log=False)
    return for_json(points)


def layer_seconds(parts):
    """Of {part: seconds}, what layers took."""
    return sum(seconds for part, seconds in parts.items() if not part.startswith("wait") and part not in NO_LAYER)


def prompt_seconds(running, rows, context):
    """What the compute node computed in layers for `rows` prompts."""
    before = shared.counters(running.metrics("c0"))[0]
    shared.requests(running, rows, context, 1)
    after = shared.counters(running.metrics("c0"))[0]
    return layer_seconds({part: seconds - before.get(part, 0.0) for part, seconds in after.items()})


def composed_step(found, bandwidth, share, prompts):
    """Seconds of a step that makes K and V of a share of the tokens from their numbers, `prompts` seconds of a compute node's work: the busier side, and what neither side explains of
    the step `found`, in which K and V of all tokens come. As if all that is computed hid behind what comes, and the other way round: a step that is built is no shorter."""
    comes = sum(sent for (way, _), sent in found.sent.items() if way == "to") / bandwidth
    computes = found.busy() * found.step()
    rest = max(0.0, found.step() - max(comes, computes))
    return max(comes - share * found.sent["to", "kv"] / bandwidth, computes + prompts) + rest


def figure4(bench, model="OPT-30B", context=256, recomputed=(0.125, 0.25, 0.5)):
    """Steps with K and V of some tokens made from their numbers, and with activations in place of as many tokens' K and V, measured; and composed of a step without either and of prompts, whose work it is."""
    bandwidth = bench.bandwidth(bench.c)
    held = {share: round(100 * share) for share in recomputed}
    with bench.streamed(model, 0, bandwidth) as running:
        whole = generate(running, ROWS, context, [ANSWER])
    step, activations, measured_tokens = whole.step(), {}, {}
    for share in each(recomputed, lambda share: f"{held[share]}% held as activations, and made from their numbers"):
        with bench.streamed(model, held[share], bandwidth) as running:
            activations[share] = generate(running, ROWS, context, [ANSWER]).step()
        # Whole tiles are made: rounded up, so that the tile which the share ends with is among them.
        with bench.from_tokens(model, math.ceil(100 * share), bandwidth) as running:
            measured_tokens[share] = generate(running, ROWS, context, [ANSWER]).step()
    with Cluster(1, model=bench.model(model), local=True, capacity="1GiB") as running:
        prompt_seconds(running, ROWS, context)  # Memory is touched for the first time.
        prompts = {share: prompt_seconds(running, ROWS, int(share * context)) for share in recomputed}
    tokens = {share: composed_step(whole, bandwidth, share, prompts[share]) for share in recomputed}
    print(f"Figure 4: tokens of the context recomputed from their numbers, {model}'s shape, {ROWS} rows at {context} tokens (paper: 64 at 1,024), weights streamed; "
          f"a step with all K and V fetched takes {1e3 * step:.0f} ms")
    shared.table(("recomputed", *(f"{share:.1%}" for share in recomputed)),
                 [("prompts of so many tokens, all rows, ms", *(f"{1e3 * prompts[share]:.0f}" for share in recomputed)),
                  ("over what they would save, K and V of as many tokens", *(f"{prompts[share] / (share * step):.2f}" for share in recomputed)),
                  ("step with tokens, over that without: measured", *(f"{measured_tokens[share] / step:.2f}" for share in recomputed)),
                  ("step with tokens, over that without: measured prefill + measured fetch (composed)", *(f"{tokens[share] / step:.2f}" for share in recomputed)),
                  ("paper, with tokens", *(f"{PAPER_TOKENS[share]:.2f}" if share in PAPER_TOKENS else "not in its text" for share in recomputed)),
                  ("step with as many held as activations, over that without: measured", *(f"{activations[share] / step:.2f}" for share in recomputed))])
    print("The composed step is the busier of the link, with K and V of the other tokens, and of the compute node, with the prompts' work, "
          "and what neither explains of the measured step; it hides all that can hide.")
    least = min(prompts[share] / (share * step) for share in recomputed)
    print(f"Recomputation from tokens takes longer than what it saves: {verdict(least > 1)}, by its parts ({least:.2f} times at least).")
    half = max(recomputed)
    made = measured_tokens
    print(f"A step is longer with tokens recomputed, {made[half] / step:.2f} times at {half:.0%} (paper: {PAPER_TOKENS[0.5]} at 50%): {verdict(all(found > step for found in made.values()))}; "
          f"as much longer as in the paper: {verdict(made[half] / step >= PAPER_TOKENS[0.5])}.")
    print(f"It is shorter with activations than with tokens at every share, {min(made[share] / activations[share] for share in recomputed):.2f} to "
          f"{max(made[share] / activations[share] for share in recomputed):.2f} times: {verdict(all(made[share] > activations[share] for share in recomputed))}.")
    shared.draw(bench.images, "hybridserve_figure4", "HybridServe, Figure 4: recomputation from tokens", "per cent of tokens", "ms",
                [("prompts' work", [(100 * share, 1e3 * prompts[share]) for share in recomputed]), ("saved at most", [(100 * share, 1e3 * share * step) for share in recomputed])], x_log=False)
    shared.draw(bench.images, "hybridserve_figure4_step", "HybridServe, Figure 4: a step over that with K and V alone", "per cent of tokens", "times",
                [("tokens", [(0, 1.0), *((100 * share, made[share] / step) for share in recomputed)]),
                 ("tokens (composed)", [(0, 1.0), *((100 * share, tokens[share] / step) for share in recomputed)]),
                 ("activations", [(0, 1.0), *((held[share], activations[share] / step) for share in recomputed)]),
                 ("paper, tokens", [(100 * share, times) for share, times in PAPER_TOKENS.items()])], x_log=False)
    return {"step_s": step, "prompts_s": prompts, "tokens_s": made, "tokens_composed_s": tokens, "activations_s": activations}


def figure6(bench, model="OPT-30B", batches=(4, 8, 16), contexts=(128, 256, 512)):
    """A layer that makes K and V again from tokens, and one that makes them from activations."""
    layers = MODELS[model].layers
    points = []
    found = {}
    with bench.hybrid(model, 100, "shm", 1) as running:
        for rows in batches:
            for context in contexts:
                done = generate(running, rows, context, [8])
                found[rows, context] = layer_seconds(done.parts) * done.span_seconds / done.steps / layers
    with Cluster(1, model=bench.model(model), local=True, capacity="1GiB") as running:
        prompt_seconds(running, max(batches), max(contexts))
        for rows in batches:
            for context in contexts:
                points.append({"rows": rows, "context": context, "tokens_s": prompt_seconds(running, rows, context) / layers, "activations_s": found[rows, context]})
    print(f"Figure 6: what a compute node computes for a layer, ms, {model}'s shape, weights resident, nothing slowed down: K and V of all rows from tokens (a prompt's work) or from activations (a step)")
    shared.table(("batch, context", *(f"{p['rows']}, {p['context']}" for p in points)),
                 [("from tokens", *(f"{1e3 * p['tokens_s']:.1f}" for p in points)), ("from activations", *(f"{1e3 * p['activations_s']:.1f}" for p in points)),
                  ("less", *(f"{1 - p['activations_s'] / p['tokens_s']:.0%}" for p in points))])
    less = 100 * (1 - geometric_mean([p["activations_s"] / p["tokens_s"] for p in points]))
    print(f"{less:.0f}% less in the geometric mean (paper: {PAPER_REDUCTION}%): {verdict(less >= PAPER_REDUCTION)}.")
    print("K and V take 1/6 of an OPT layer's products, so that 83% is the bound but for attention and the token itself.")
    shared.draw(bench.images, "hybridserve_figure6", "HybridServe, Figure 6: a layer", "context, tokens", "ms",
                [(f"{rows} rows, {text}", [(p["context"], 1e3 * p[key]) for p in points if p["rows"] == rows]) for rows in batches
                 for text, key in (("tokens", "tokens_s"), ("activations", "activations_s"))], y_log=True)
    return points


PARTS = {"figure 4": figure4, "figure 6": figure6, "figure 12": figure12, "figure 13": figure13, "figure 14": figure14, "figure 15": figure15}
# On two quiet cores. Figures 12 to 15 are of one set of runs, whichever comes first.
MINUTES = {"figure 4": 2, "figure 6": 1, "figure 12": 3, "figure 13": 0, "figure 14": 0, "figure 15": 0, shared.CLAIMS: 4}

# SPDX-License-Identifier: Apache-2.0
"""KVPR's Figures 6, 7, 9, 10, 12 and 14 and Table 2 in shape: OPT of random weights, a sixteenth as wide and an eighth as deep as the paper's.

One core computes, a memory node on another holds K and V. The link is set once, from the time that the narrowest model takes to make K and V of
a token, to the c that a figure names. Full transfer is policy fetch_recompute with nothing recomputed; KVPR's split is the policy's own. Weights
that stream come over the same bus, and lanes share each layer that comes: the column-by-column schedule. Prompts and answers are shorter than
the paper's by one factor for each figure.
"""

import contextlib
import time

import cluster
import paper_shared as shared
from paper_shared import MODELS, NOT_BUILT, SMALLEST, Cluster, generate, verdict

SHORTER = 4  # Prompts of streamed weights.
ANSWERS_SHORTER = 8
LATENCY_ANSWERS_SHORTER = 8
LATENCY_C, STREAMED_C = 0.25, 0.5
LATENCY_ROWS = 8
LANES, COLUMN_ROWS = 4, 16
NOISE = 0.03  # Of a figure that is measured once.
# Table 2: {way: (per cent recomputed, whether W_k and W_v come first)}, and how many layers come ahead: with none a node has room for one.
FULL, IN_ORDER, FIRST = "full transfer", "all matrices first", "W_k and W_v first"
STREAMED_WAYS = {FULL: (0, False), IN_ORDER: ("auto", False), FIRST: ("auto", True)}
AHEAD = {1: "one layer ahead", 0: "room for one layer"}

# Tables 3 and 4, seconds: {(prompt, generated): (Accelerate, KVPR)}.
PAPER_LATENCY = {
    "OPT-6.7B": {(128, 32): (8.905, 6.651), (128, 128): (71.327, 45.766), (256, 32): (26.825, 19.138), (256, 128): (88.354, 61.597),
                 (512, 32): (24.390, 20.349), (512, 128): (110.277, 93.932)},
    "OPT-13B": {(128, 32): (11.409, 9.148), (128, 128): (73.896, 66.119), (256, 32): (19.381, 16.654), (256, 128): (104.115, 88.492),
                (512, 32): (35.066, 29.215), (512, 128): (168.155, 138.377)},
}
PAPER_BEST = {"OPT-6.7B": 15.1, "OPT-13B": 46.2, "OPT-30B": 29.0}  # Per cent more throughput, Figure 6.
PAPER_BATCHES = (1, 2, 4, 8, 16, 32)
PAPER_TABLE2 = {"full transfer": (1.761, 3.488, 6.646, 12.826, 23.795, 41.210), "without hiding": (1.749, 3.461, 6.766, 12.930, 23.613, 43.462),
                "with hiding": (1.774, 3.586, 6.696, 12.986, 24.557, 43.945)}
PAPER_SHARES = {"load-cache": (58, 38), "load-activation": (0, 8), "compute": (2.3, 13.3)}  # Per cent, Figure 10: full transfer, KVPR.
PAPER_SPLIT = (182, 128)  # Tokens, Figure 12, behind 1 token and behind 32, by its text; the figure's axis ends at 205.


class Bench(shared.Bench):
    def resident(self, name, percent, transport, **keys):
        return Cluster(1, model=self.model(name), transport=transport, capacity="1GiB",
                       fetch=("fetch_recompute", {"window": shared.WINDOW, "recompute_percent": percent}), **keys)

    def streamed(self, name, percent, bandwidth, lanes, first=True, ahead=1):
        return Cluster(lanes, model=self.model(name), transport=shared.bus(bandwidth), capacity="1GiB",
                       weights_budget=f"{shared.weights_budget(MODELS[name], lanes, ahead)}B", weights_ahead=ahead,
                       fetch=("fetch_recompute", {"window": shared.WINDOW, "recompute_percent": percent, "kv_weights_first": first}))

    def streamed_whole(self, name, form, bandwidth, lanes):
        """K and V in one form, all of them fetched."""
        return Cluster(lanes, model=self.model(name), transport=shared.bus(bandwidth), capacity="1GiB", kv_form=form,
                       weights_budget=f"{shared.weights_budget(MODELS[name], lanes)}B", fetch=("fetch_heads", {"window": shared.WINDOW}))


def gain(full, split):
    """Per cent more throughput than full transfer, of seconds."""
    return 100 * (full / split - 1)


def figure7(bench, models=("OPT-6.7B", "OPT-13B"), prompts=(128, 256, 512), answers=(32, 128)):
    """Decode latency, weights resident."""
    marks = [count // LATENCY_ANSWERS_SHORTER for count in answers]
    transport = shared.link(bench.bandwidth(LATENCY_C))
    points = []
    for model in models:
        found = {}
        for name, percent in (("full", 0), ("split", "auto")):
            with bench.resident(model, percent, transport) as running:
                shared.learn_times(running, LATENCY_ROWS, min(prompts))
                for prompt in prompts:
                    found[name, prompt] = generate(running, LATENCY_ROWS, prompt, marks)
        for prompt in prompts:
            for count, mark in zip(answers, marks):
                points.append({"model": model, "prompt": prompt, "answer": count, "full_s": found["full", prompt].seconds[mark], "split_s": found["split", prompt].seconds[mark],
                               "paper_s": PAPER_LATENCY[model][prompt, count]})
    print(f"Figure 7: decode latency of {LATENCY_ROWS} rows (paper: 64), answers an eighth of the paper's, link {bench.bandwidth(LATENCY_C) / 1e6:.0f} MB/s, c = {LATENCY_C} for the narrowest")
    shared.table(("model", "prompt, answer", "full transfer, s", "KVPR, s", "shorter", "paper: Accelerate, s", "KVPR, s", "shorter"),
                 [(p["model"], f"{p['prompt']}, {p['answer'] // LATENCY_ANSWERS_SHORTER}", f"{p['full_s']:.2f}", f"{p['split_s']:.2f}", f"{100 * (1 - p['split_s'] / p['full_s']):.1f}%",
                   *(f"{value:.1f}" for value in p["paper_s"]), f"{100 * (1 - p['paper_s'][1] / p['paper_s'][0]):.1f}%") for p in points])
    print(f"Row by row with activations kept on the device: {NOT_BUILT} (activations come over the link). DeepSpeed: {NOT_BUILT} (another engine).")
    lower = [100 * (1 - p["split_s"] / p["full_s"]) for p in points]
    print(f"KVPR is faster at every length: {verdict(min(lower) > 0)} ({min(lower):.1f} to {max(lower):.1f}% shorter).")
    print(f"At best at least 35.8% shorter: {verdict(max(lower) >= 35.8)}.")
    shared.draw(bench.images, "kvpr_figure7", "KVPR, Figure 7: decode latency, weights resident", "prompt, tokens", "s",
                [(f"{model}, {name}", [(p["prompt"], p[key]) for p in points if p["model"] == model and p["answer"] == max(answers)])
                 for model in models for name, key in (("full", "full_s"), ("KVPR", "split_s"))])
    return points


def figure6(bench, models=tuple(MODELS), prompts=(256, 512, 1024), answers=(32, 128), batches=(1, 4, COLUMN_ROWS)):
    """Throughput, weights streamed, several lanes share each layer."""
    marks = [count // ANSWERS_SHORTER for count in answers]
    bandwidth = bench.bandwidth(STREAMED_C)
    lengths, sizes = [], []
    for model in models:
        found = {}
        for name, percent in (("full", 0), ("split", "auto")):
            with bench.streamed(model, percent, bandwidth, LANES) as running:
                shared.learn_times(running, COLUMN_ROWS, min(prompts) // SHORTER)
                for prompt in prompts:
                    found[name, prompt] = generate(running, COLUMN_ROWS, prompt // SHORTER, marks)
                for rows in batches:
                    known = found[name, max(prompts)] if rows == COLUMN_ROWS else None
                    found[name, "rows", rows] = known or generate(running, rows, max(prompts) // SHORTER, marks[:1])
        for prompt in prompts:
            for mark in marks:
                full, split = found["full", prompt], found["split", prompt]
                lengths.append({"model": model, "prompt": prompt // SHORTER, "answer": mark, "full": COLUMN_ROWS * mark / full.seconds[mark], "split": COLUMN_ROWS * mark / split.seconds[mark],
                                "kv_over_weights": full.sent["to", "kv"] / full.sent["to", "weights"], "bound": 100 * shared.streamed_gain(
                                    full.sent["to", "kv"] / full.sent["to", "weights"], STREAMED_C * MODELS[model].width / MODELS[SMALLEST].width, shared.streamed_time_of_lanes)})
        for rows in batches:
            sizes.append({"model": model, "rows": rows, **{name: rows * marks[0] / found[name, "rows", rows].seconds[marks[0]] for name in ("full", "split")}})
        print(f"  {model} done", flush=True)
    print_figure6(bench, models, lengths, sizes)
    return {"lengths": lengths, "batches": sizes}


def print_figure6(bench, models, lengths, sizes):
    print(f"Figure 6, first row: {COLUMN_ROWS} rows in {LANES} lanes (paper: 32 x 8), weights streamed over the bus, {bench.bandwidth(STREAMED_C) / 1e6:.0f} MB/s; "
          f"prompts a quarter, answers an eighth of the paper's")
    shared.table(("model", "prompt + answer", "K and V over weights, bytes", "full transfer, tokens/s", "KVPR", "more", "bound", "paper, at best"),
                 [(p["model"], f"{p['prompt']} + {p['answer']}", f"{p['kv_over_weights']:.1f}", f"{p['full']:.1f}", f"{p['split']:.1f}", f"{100 * (p['split'] / p['full'] - 1):+.1f}%",
                   f"{p['bound']:+.0f}%", f"+{PAPER_BEST[p['model']]}%") for p in lengths])
    print("Second row: by batch, the longest prompt")
    shared.table(("model", "rows", "full transfer, tokens/s", "KVPR", "more"),
                 [(p["model"], p["rows"], f"{p['full']:.1f}", f"{p['split']:.1f}", f"{100 * (p['split'] / p['full'] - 1):+.1f}%") for p in sizes])
    longer = [p for p in lengths if p["answer"] == max(q["answer"] for q in lengths)]
    for model in models:
        best = max((p for p in longer if p["model"] == model), key=lambda p: p["split"] / p["full"])
        more = 100 * (best["split"] / best["full"] - 1)
        noise = "" if more <= best["bound"] else "; above its bound, which other work on the cores must have done"
        print(f"{model}: at best {more:+.1f}% with the longer answers (paper +{PAPER_BEST[model]}%): {verdict(more >= PAPER_BEST[model])}{noise}.")
    worst = min(p["split"] / p["full"] - 1 for p in (*longer, *sizes))
    print(f"KVPR is faster at every length and batch, or within {100 * NOISE:.0f}%: {verdict(worst >= -NOISE)} (worst {100 * worst:+.1f}%).")
    for name, title, points, key in (("lengths", "by prompt", longer, "prompt"), ("batches", "by batch", sizes, "rows")):
        shared.draw(bench.images, f"kvpr_figure6_{name}", f"KVPR, Figure 6: throughput {title}", "prompt, tokens" if key == "prompt" else "rows", "tokens/s",
                    [(f"{model}, {text}", [(p[key], p[which]) for p in points if p["model"] == model]) for model in models for text, which in (("full", "full"), ("KVPR", "split"))])


def figure9(bench, model="OPT-13B", prompts=(256, 512, 1024), answers=(32, 128)):
    """Compressed K and V, weights streamed."""
    marks = [count // ANSWERS_SHORTER for count in answers]
    bandwidth = bench.bandwidth(STREAMED_C)
    ways = {"all K and V, bf16": bench.streamed_whole(model, "bf16", bandwidth, LANES), "all K and V, INT8": bench.streamed_whole(model, "int8", bandwidth, LANES),
            "KVPR, bf16": bench.streamed(model, "auto", bandwidth, LANES)}
    found = {}
    for way, made in ways.items():
        with made as running:
            for prompt in prompts:
                done = generate(running, COLUMN_ROWS, prompt // SHORTER, marks)
                found[way, prompt] = {mark: COLUMN_ROWS * mark / done.seconds[mark] for mark in marks}
    print(f"Figure 9: K and V compressed, {model}'s shape, {COLUMN_ROWS} rows in {LANES} lanes, weights streamed, {bandwidth / 1e6:.0f} MB/s; tokens/s")
    lengths = [(prompt, mark) for prompt in prompts for mark in marks]
    shared.table(("prompt + answer", *(f"{prompt // SHORTER} + {mark}" for prompt, mark in lengths)),
                 [(way, *(f"{found[way, prompt][mark]:.1f}" for prompt, mark in lengths)) for way in ways] +
                 [("KVPR, INT8", *("as all K and V" for _ in lengths))])
    print("KVPR with compressed K and V recomputes nothing: an activation in bf16 has 0.94 or more of the bytes of K and V in INT8, so that fetch_recompute fetches these. "
          f"4 bits by groups, as in the paper: {NOT_BUILT}.")
    best = max(found["all K and V, INT8", prompt][mark] / found["all K and V, bf16", prompt][mark] for prompt, mark in lengths)
    least = min(found["all K and V, INT8", prompt][mark] / found["all K and V, bf16", prompt][mark] for prompt, mark in lengths)
    print(f"Compression raises throughput: {verdict(least > 1)} with all K and V fetched ({least:.2f} to {best:.2f} times); on top of KVPR: not reproduced, there is nothing to recompute.")
    shared.draw(bench.images, "kvpr_figure9", "KVPR, Figure 9: compressed K and V", "prompt, tokens", "tokens/s",
                [(way, [(prompt // SHORTER, found[way, prompt][marks[-1]]) for prompt in prompts]) for way in ways])
    return [{"way": way, "prompt": prompt // SHORTER, "tokens_per_second": rates} for (way, prompt), rates in found.items()]


def breakdown(found, bandwidth):
    """Seconds of a step by what they went into, each as if it had the bus or the processor to itself."""
    waits = {part: share for part, share in found.parts.items() if part.startswith("wait")}
    step = found.span_seconds / found.steps
    return {"load-weight": found.sent["to", "weights"] / bandwidth, "load-cache": found.sent["to", "kv"] / bandwidth, "load-activation": found.sent["to", "activations"] / bandwidth,
            "compute": step * (sum(found.parts.values()) - sum(waits.values())), "store-cache": found.sent["from", "kv"] / bandwidth,
            "store-activation": found.sent["from", "activations"] / bandwidth}


def figure10(bench, model=SMALLEST, prompt=256, answer=8):
    """What a step's time goes into."""
    bandwidth = bench.bandwidth(STREAMED_C)
    shares = {}
    for name, percent in (("full transfer", 0), ("KVPR", "auto")):
        with bench.streamed(model, percent, bandwidth, LANES) as running:
            parts = breakdown(generate(running, COLUMN_ROWS, prompt, [answer]), bandwidth)
        shares[name] = {part: 100 * seconds / sum(parts.values()) for part, seconds in parts.items()}
    print(f"Figure 10: parts of a step, per cent of their sum; {model}'s shape, {COLUMN_ROWS} rows at {prompt} tokens, weights streamed. Transfers: bytes on the bus by its bandwidth; compute: what the "
          "compute node did besides waiting, of all of a layer (paper: of its attention block)")
    shared.table(("", *shares, "paper: FlexGen", "KVPR"),
                 [(part, *(f"{of[part]:.1f}%" for of in shares.values()), *(f"{value:g}%" for value in PAPER_SHARES.get(part, ()))) if part in PAPER_SHARES
                  else (part, *(f"{of[part]:.1f}%" for of in shares.values()), "not in its text", "not in its text") for part in shares["KVPR"]])
    full, split = shares["full transfer"], shares["KVPR"]
    print(f"K and V take a smaller share: {verdict(split['load-cache'] < full['load-cache'])} ({full['load-cache']:.0f} to {split['load-cache']:.0f}%); "
          f"activations less than half of that (paper: 8 and 38%): {verdict(split['load-activation'] < split['load-cache'] / 2)} ({split['load-activation']:.0f}%); "
          f"compute more: {verdict(split['compute'] > full['compute'])} ({full['compute']:.1f} to {split['compute']:.1f}%).")
    shared.draw(bench.images, "kvpr_figure10", "KVPR, Figure 10: parts of a step", "part (1 weights, 2 K and V, 3 activations, 4 compute)", "%",
                [(name, list(enumerate(list(of.values())[:4], 1))) for name, of in shares.items()], x_log=False)
    return shares


def figure12(bench, prompt=256, marks=(1, 4, 8, 12, 16, 20, 24, 28, 32)):
    """The split as answers grow, by the tokens that were in fact recomputed."""
    transport = shared.link(bench.bandwidth(LATENCY_C))
    shape = MODELS[SMALLEST]
    points = []
    with bench.resident(SMALLEST, "auto", transport) as running:
        shared.learn_times(running, LATENCY_ROWS, prompt)
        shared.all_decoding(running, LATENCY_ROWS, prompt)
        _, begin = running.step_end()
        context = running.context_tokens() / LATENCY_ROWS
        recomputed, seen = shared.counters(running.metrics("c0"))[2], begin
        for mark in marks:
            _, now = shared.until_each_has(running, LATENCY_ROWS, time.monotonic(), begin, mark)
            total = shared.counters(running.metrics("c0"))[2]
            middle = context + (seen + now - 2 * begin) / 2 / LATENCY_ROWS
            points.append({"generated": mark, "context": middle, "recomputed": (total - recomputed) / ((now - seen) * shape.layers)})
            recomputed, seen = total, now
        running.end_load()
    optimum = shared.ahead_share(LATENCY_C)
    print(f"Figure 12: tokens recomputed of each row by tokens generated; {LATENCY_ROWS} rows, prompts of {prompt} tokens, c = {LATENCY_C}; counted, not planned")
    shared.table(("generated", *(point["generated"] for point in points)),
                 [("tokens before the row", *(f"{point['context']:.0f}" for point in points)), ("recomputed", *(f"{point['recomputed']:.0f}" for point in points)),
                  ("of them", *(f"{point['recomputed'] / point['context']:.2f}" for point in points)), ("optimum, the next layer ahead", *(f"{optimum:.2f}" for _ in points)),
                  ("the paper's equation, 1 / (1 + c)", *(f"{shared.split_share(LATENCY_C):.2f}" for _ in points)),
                  ("paper", PAPER_SPLIT[0], *("" for _ in points[2:]), PAPER_SPLIT[1])])
    print("The paper's text has 182 behind one token and 128 behind 32, and prompts of 128 tokens; 182 exceeds these, and its figure's axis goes from 180 to 205. With prompts of 256 tokens 182 and 205 would be 0.71 of all tokens.")
    first, last = points[0], points[-1]
    share = [point["recomputed"] / point["context"] for point in points]
    print(f"The split grows with the answer, at one share of the tokens: {verdict(last['recomputed'] > first['recomputed'] and max(share) - min(share) < 0.1)} "
          f"({first['recomputed']:.0f} to {last['recomputed']:.0f}; {min(share):.2f} to {max(share):.2f}).")
    shared.draw(bench.images, "kvpr_figure12", "KVPR, Figure 12: tokens recomputed", "tokens generated", "tokens",
                [("recomputed", [(point["generated"], point["recomputed"]) for point in points]), ("optimum", [(point["generated"], optimum * point["context"]) for point in points])], x_log=False)
    return points


def together(clusters, rows, prompt, seconds):
    """Tokens a second of each of several clusters that serve at the same time."""
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(one) for one in clusters]
        for one in running:
            one.begin_load(rows, prompt)
        while not all([one.all_decode() for one in running]):
            time.sleep(cluster.POLL_SECONDS)
        time.sleep(cluster.SETTLE_SECONDS)
        begins = [one.step_end() for one in running]
        time.sleep(seconds)
        ends = [one.step_end() for one in running]
        for one in running:
            one.end_load()
    return [(end[1] - begin[1]) / (end[0] - begin[0]) for begin, end in zip(begins, ends)]


def figure14(bench, prompt=256, seconds=4.0, most=2):
    """The processor that attends is shared by several compute nodes; links are not."""
    transport = shared.link(bench.bandwidth(LATENCY_C))
    model = bench.model(SMALLEST)

    def attending():
        return Cluster(2, model=model, transport="shm", capacity="512MiB")

    def fetching():
        return bench.resident(SMALLEST, "auto", transport)

    rates = {name: {count: min(together([make() for _ in range(count)], LATENCY_ROWS, prompt, seconds)) for count in range(1, most + 1)}
             for name, make in (("KVPR", fetching), ("attention on the memory node's processor", attending))}
    kept = {name: of[most] / of[1] for name, of in rates.items()}
    print(f"Figure 14: tokens/s of each of several processes, {LATENCY_ROWS} rows at {prompt} tokens. One core for all memory nodes, one for all compute nodes; the paper's have a GPU each, "
          "so that more than two would measure the compute nodes' core. FastDecode stands as policy attend_remote over shm, KVPR has a link of its own for each")
    shared.table(("processes", *range(1, most + 1), 4, 8, "kept"),
                 [(name, *(f"{rate:.1f}" for rate in of.values()), "not measured", "not measured", f"{kept[name]:.2f}") for name, of in rates.items()])
    names = list(rates)
    print(f"KVPR keeps more of its throughput than attention on a shared processor: {verdict(kept[names[0]] > kept[names[1]])}. "
          f"Where the two cross is not in the paper's text; here the link is so slow that KVPR is the slower one by {rates[names[1]][most] / rates[names[0]][most]:.0f} times.")
    shared.draw(bench.images, "kvpr_figure14", "KVPR, Figure 14: throughput of each process", "processes", "over one process",
                [(name.split(" ")[0], [(count, rate / of[1]) for count, rate in of.items()]) for name, of in rates.items()], x_log=False)
    return rates


def run_table2(bench, bandwidth, prompt, answer, batches, turns):
    """{(layers ahead, way, rows): what the best of some turns gave}. The ways take turns."""
    runs = {}
    for ahead in AHEAD:
        for _ in range(turns):
            for way, (percent, first) in STREAMED_WAYS.items():
                with bench.streamed(SMALLEST, percent, bandwidth, 1, first, ahead) as running:
                    for rows in batches:
                        runs.setdefault((ahead, way, rows), []).append(generate(running, rows, prompt, [answer]))
    shape = MODELS[SMALLEST]
    return {key: {"tokens_per_second": max(key[2] * answer / one.seconds[answer] for one in done), "recomputed": done[-1].recomputed / key[2] / shape.layers,
                  "kv_over_attention": done[0].sent["to", "kv"] / shape.layers / shape.attention_bytes()} for key, done in runs.items()}


def table2_rows(found, batches, ahead):
    """What is measured with so many layers ahead."""
    words = AHEAD[ahead]
    rate = {way: [found[ahead, way, rows]["tokens_per_second"] for rows in batches] for way in STREAMED_WAYS}
    recomputing = [way for way in STREAMED_WAYS if way != FULL]
    return [*((f"{words}: {way}", *(f"{value:.1f}" for value in rate[way])) for way in STREAMED_WAYS),
            *((f"{words}: {way}, over full transfer", *(f"{a / b:.3f}" for a, b in zip(rate[way], rate[FULL]))) for way in recomputing),
            *((f"{words}: {way}, tokens recomputed of each row", *(f"{found[ahead, way, rows]['recomputed']:.0f}" for rows in batches)) for way in recomputing)]


def table2(bench, prompt=32, answer=16, batches=PAPER_BATCHES, turns=3):
    """Little K and V, weights streamed: never slower than full transfer, W_k and W_v first or not, with one layer ahead and with room for one."""
    bandwidth = bench.bandwidth(STREAMED_C)
    found = run_table2(bench, bandwidth, prompt, answer, batches, turns)
    over = {(ahead, way): [found[ahead, way, rows]["tokens_per_second"] / found[ahead, FULL, rows]["tokens_per_second"] for rows in batches] for ahead in AHEAD for way in STREAMED_WAYS}
    print(f"Table 2: weights streamed at {bandwidth / 1e6:.0f} MB/s, {SMALLEST}'s shape, one lane, prompts of {prompt} tokens, {answer} generated, the best of {turns} turns; tokens/s. "
          "The paper calls its numbers latencies, but they grow with the batch as throughput does")
    shared.table(("rows", *batches),
                 [("K and V over the matrices of attention, bytes (paper: 3/128 to 64/128)", *(f"{found[1, FULL, rows]['kv_over_attention']:.2f}" for rows in batches)),
                  *(row for ahead in AHEAD for row in table2_rows(found, batches, ahead)),
                  *((f"paper: {name}", *values) for name, values in PAPER_TABLE2.items())])
    print("The split is in whole tiles of 16 tokens, unless it is all of them.")
    for (ahead, way), ratios in over.items():
        if way != FULL:
            print(f"Never slower than full transfer, {way}, {AHEAD[ahead]}, within {100 * NOISE:.0f}%: {verdict(min(ratios) >= 1 - NOISE)} (worst {min(ratios):.3f} of its throughput).")
    gains = {ahead: shared.geometric_mean([a / b for a, b in zip(over[ahead, FIRST], over[ahead, IN_ORDER])]) for ahead in AHEAD}
    print(f"{FIRST} over {IN_ORDER}, {AHEAD[0]}: {gains[0]:.3f} in the mean (paper: {shared.geometric_mean([a / b for a, b in zip(PAPER_TABLE2['with hiding'], PAPER_TABLE2['without hiding'])]):.3f}): "
          f"{verdict(gains[0] > 1)}.")
    print(f"With {AHEAD[1]} nothing is left to hide, within {100 * NOISE:.0f}%: {verdict(abs(gains[1] - 1) <= NOISE)} ({gains[1]:.3f} in the mean).")
    shared.draw(bench.images, "kvpr_table2", "KVPR, Table 2: little K and V, weights streamed", "rows", "over full transfer",
                [*((f"{way}, {AHEAD[ahead]}", list(zip(batches, ratios))) for (ahead, way), ratios in over.items() if way != FULL),
                 *((f"paper, {name}", [(rows, a / b) for rows, a, b in zip(PAPER_BATCHES, PAPER_TABLE2[name], PAPER_TABLE2["full transfer"])]) for name in ("without hiding", "with hiding"))])
    return [{"ahead": ahead, "way": way, "rows": rows, **of} for (ahead, way, rows), of in found.items()]


PARTS = {"table 2": table2, "figure 6": figure6, "figure 7": figure7, "figure 9": figure9, "figure 10": figure10, "figure 12": figure12, "figure 14": figure14}
# On two quiet cores.
MINUTES = {"table 2": 3, "figure 6": 3, "figure 7": 1, "figure 9": 1, "figure 10": 0.5, "figure 12": 0.5, "figure 14": 1, shared.CLAIMS: 7}

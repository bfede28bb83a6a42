# SPDX-License-Identifier: Apache-2.0
"""ALISA's Figures 9 to 12 in shape, as far as they are built: throughput by batch, what a layer's attention takes, and what each technique brings.

The model is an OPT of random weights, a sixteenth as wide and an eighth as deep as OPT-6.7B. The paper's requests have 128 tokens in and 512 out;
here steps at 384 tokens, their mean, are measured, and whole requests of two batches. The compute node keeps K and V of as many recent tokens as two
such requests have (fetch.resident). With INT8 it keeps as many as the same bytes hold, closed blocks as INT8 and of each row that may run the open one as
bf16, so that a cluster for each number of rows says how many run. FlexGen's static split is attention to all tokens with as much on the device, by
fetch_sparse, whose attention gives out weights too, or by fetch_heads, which has none: gains are over the faster of these. Policy local has everything there.
"""

import functools
import json
import re
import statistics

import paper_shared as shared
from paper_shared import NOT_BUILT, SMALLEST, Cluster, generate, verdict

SPARSITY = shared.ROOT / "tests/fidelity/goldens/alisa_sparsity.json"
BANDWIDTH = 200e6
CONTEXT = 384
ANSWER = 8
BATCHES = (4, 8, 16, 32, 64)
SPARSE = 0.2  # Of the tokens, kept.
REQUEST = (128, 512)  # Tokens in and out.
WHOLE_ROWS = (4, 16)  # Whole requests at once.
RESIDENT_TOKENS = 2 * sum(REQUEST)  # Two whole requests.
PHASE_ROWS, PHASE_CONTEXTS = 16, (32, 64, 128, 256, 512, 1024)
RATIOS = (0.8, 0.5, 0.2)
ABLATION_ROWS = 16
ATTENTION_ROWS, ATTENTION_CONTEXT = 64, 128

STORE, STATIC = "dense, all on the store", "dense, split statically between device and store"
HEADS = "dense, split statically, without weights (fetch_heads)"
PLACES = ("all on the store", "recent ones on the device", "all on the store, INT8", "recent ones on the device, INT8")
LOCAL = "dense, all on the device"

PAPER_OVER_FLEXGEN = (1.4, 3.0)  # Figure 9, at 80% sparsity.
PAPER_OVER_VLLM = 1.9  # At best, at large batches.
PAPER_SPARSITY = (0.8, 0.95)  # Of dense attention, Figure 3 and its text.
PAPER_RECOMPUTATION = (1.2, 1.3)  # Figure 12(b).
ROOM = re.compile(r" resident [^(]*\((\d+) tokens(?: of closed blocks, and (\d+) open blocks)?\)")


def kept(ratio, place):
    """What attention to so many of the tokens is called, where K and V are in one of PLACES."""
    return f"{100 * ratio:g}% of the tokens, {place}"


KEPT_STORE, KEPT_RECENT, KEPT_INT8, KEPT_BOTH = (kept(SPARSE, place) for place in PLACES)


def resident_bytes(tokens):
    """The bytes of so many tokens' K and V in bf16."""
    return tokens * shared.MODELS[SMALLEST].layers * shared.MODELS[SMALLEST].kv_bytes()


def room_in(log):
    """(Tokens, open blocks in addition) for whose K and V a compute node has room, as it says itself; (0, 0): nothing stays."""
    said = ROOM.findall(log)
    return tuple(int(number or 0) for number in said[-1]) if said else (0, 0)


class Bench(shared.Bench):
    def __init__(self, folder, images):
        super().__init__(folder, images)
        self.rates = {}
        self.rooms = {}  # {(way, rows): what room_in() found}

    def fetching(self, policy, transport, form, resident, running_max=None, **options):
        """What stays on the device has the bytes of so many tokens' K and V in bf16."""
        keys = {"running_max": running_max} if running_max else {}
        if resident:
            options["resident"] = f"{resident_bytes(resident)}B"
        return Cluster(1, model=self.model(SMALLEST), transport=transport, capacity="2GiB", kv_form=form, fetch=(policy, {"window": shared.WINDOW, **options}), **keys)

    def dense(self, transport, form="bf16", resident=0):
        return self.fetching("fetch_heads", transport, form, resident)

    def sparse(self, ratio, transport, form="bf16", resident=0, running_max=None):
        return self.fetching("fetch_sparse", transport, form, resident, running_max, caching_ratio=ratio, sparse="window_sums")

    def sparse_in(self, place, ratio, transport, rows):
        """K and V are in one of PLACES. What stays as INT8 has an open block of each row that may run, so that no more rows may."""
        int8, resident = "INT8" in place, RESIDENT_TOKENS if "on the device" in place else 0
        return self.sparse(ratio, transport, "int8" if int8 else "bf16", resident, rows if int8 and resident else None)

    def local(self):
        return Cluster(1, model=self.model(SMALLEST), local=True, capacity="2GiB")

    def rate(self, way, make, rows):
        """Tokens a second of decode steps, measured once for all figures: {rows: rate}."""
        missing = [count for count in rows if (way, count) not in self.rates]
        if missing:
            with make() as running:
                for count in missing:
                    self.rates[way, count] = count / generate(running, count, CONTEXT, [ANSWER]).step()
                    self.rooms[way, count] = (0, 0) if way == LOCAL else room_in(running.log("c0"))
        return {count: self.rates[way, count] for count in rows}


def ways(bench):
    """{name: what starts its cluster}, of Figure 9; that of INT8 with recent tokens on the device asks how many rows run at most."""
    transport = shared.link(BANDWIDTH)
    kept_in = {kept(SPARSE, place): functools.partial(bench.sparse_in, place, SPARSE, transport, max(BATCHES)) for place in PLACES[:3]}
    return {STORE: lambda: bench.dense(transport), STATIC: lambda: bench.sparse(1.0, transport, resident=RESIDENT_TOKENS),
            HEADS: lambda: bench.dense(transport, resident=RESIDENT_TOKENS), **kept_in,
            KEPT_BOTH: functools.partial(bench.sparse_in, PLACES[3], SPARSE, transport), LOCAL: bench.local}


def by_rows(way, make, rows, measure):
    """{rows: what measure(make, rows) has of them}, of one cluster, or of a cluster for each number of rows where it asks how many these are."""
    if way != KEPT_BOTH:
        return measure(make, rows)
    return {count: found for each in rows for count, found in measure(functools.partial(make, each), (each,)).items()}


def whole_requests(make, rows):
    """{rows: tokens of answers a second} of requests of the paper's lengths, all at once, prompts included."""
    with make() as running:
        shared.requests(running, 1, REQUEST[0], ANSWER)  # Memory is touched for the first time.
        return {count: shared.requests(running, count, *REQUEST)["output_tokens_per_second"] for count in rows}


def gains_of(rates, way):
    """{rows: rate of `way` over the faster static split}"""
    return {rows: rate / max(rates[STATIC][rows], rates[HEADS][rows]) for rows, rate in rates[way].items()}


def print_rates(head, rates, ways_over):
    gains = {way: gains_of(rates, way) for way in ways_over}
    shared.table((head, *next(iter(rates.values()))), [(way, *(f"{rate:.0f}" for rate in of.values())) for way, of in rates.items()] +
                 [(f"{way}, over the faster static split", *(f"{gain:.2f}" for gain in of.values())) for way, of in gains.items()])


def print_room(rooms, batches):
    """`rooms`: {(way, rows): what room_in() found}."""
    def words(tokens, open_blocks):
        return f"{tokens:,} + {open_blocks} open blocks" if open_blocks else f"{tokens:,}"

    print(f"Tokens for which the device has room in {resident_bytes(RESIDENT_TOKENS) / shared.MIB:g} MiB, as the compute node says; a row without room for its open block keeps none:")
    shared.table(("batch", *batches), [(way, *(words(*rooms.get((way, rows), (0, 0))) for rows in batches)) for way in (STATIC, HEADS, KEPT_RECENT, KEPT_BOTH)])


def judge_gains(way, gains):
    print(f"{way}: at least {PAPER_OVER_FLEXGEN[0]} times the faster static split at batch {min(gains)}: {verdict(gains[min(gains)] >= PAPER_OVER_FLEXGEN[0])} ({gains[min(gains)]:.2f}); "
          f"{PAPER_OVER_FLEXGEN[1]:g} times at the best batch: {verdict(max(gains.values()) >= PAPER_OVER_FLEXGEN[1])} ({max(gains.values()):.2f}).")


def judge_both(rates):
    """INT8 with recent tokens on the device against each of the two by itself, as far as `rates` has them: {way: {rows: rate}}."""
    for way in (KEPT_RECENT, KEPT_INT8):
        if way in rates:
            over = [rate / rates[way][rows] for rows, rate in rates[KEPT_BOTH].items()]
            print(f"{KEPT_BOTH}, over {way}: {min(over):.2f} to {max(over):.2f} times; adds at every batch: {verdict(min(over) > 1)}.")


def figure9(bench):
    """Throughput by batch at 80% sparsity."""
    asked = ways(bench)
    rates = {way: by_rows(way, make, BATCHES, functools.partial(bench.rate, way)) for way, make in shared.each(asked.items(), lambda one: f"steps, {one[0]}")}
    print(f"Figure 9: tokens/s of decode steps at {CONTEXT} tokens by batch, link {BANDWIDTH / 1e6:.0f} MB/s, {RESIDENT_TOKENS} tokens on the device where some are, with INT8 as many as their bytes hold")
    print_rates("batch", rates, (KEPT_STORE, KEPT_RECENT, KEPT_INT8, KEPT_BOTH))
    print_room(bench.rooms, BATCHES)
    print("DeepSpeed, Accelerate and vLLM: other engines; the last way has room for everything, and no link to wait for.")
    for way in (KEPT_RECENT, KEPT_BOTH):
        judge_gains(way, gains_of(rates, way))
    judge_both(rates)
    print(f"Over vLLM up to {PAPER_OVER_VLLM} times: not tried: no memory bounds policy local here.")
    whole = {way: by_rows(way, asked[way], WHOLE_ROWS, whole_requests) for way in shared.each((STATIC, HEADS, KEPT_RECENT, KEPT_BOTH), lambda way: f"whole requests, {way}")}
    print(f"\nWhole requests of {REQUEST[0]} tokens in and {REQUEST[1]} out, all at once: tokens/s of answers, prompts included")
    print_rates("requests", whole, (KEPT_RECENT, KEPT_BOTH))
    for way in (KEPT_RECENT, KEPT_BOTH):
        judge_gains(way, gains_of(whole, way))
    judge_both(whole)
    shared.draw(bench.images, "alisa_figure9", "ALISA, Figure 9: throughput by batch", "batch", "tokens/s", [(way, list(of.items())) for way, of in rates.items()], y_log=True)
    return {"steps": rates, "requests": whole, "room": [{"way": way, "rows": rows, "tokens": room[0], "open_blocks": room[1]} for (way, rows), room in bench.rooms.items() if room[0]]}


def figure10(bench):
    """How sparse the weights of attention are, by the float64 reference: the kernel gives out their sums alone."""
    golden = json.loads(SPARSITY.read_text())
    dense = next(run["zeros"] for run in golden["runs"] if run["pattern"] == "dense")
    sparse = {run["ratio"]: run["zeros"] for run in golden["runs"] if run["pattern"] == "window_sums"}
    print(f"Figure 10: share of attention weights below {golden['below']:.0%} of their row's largest, SmolLM2 135M, {golden['rows']} decode rows behind {golden['prompt']} tokens. "
          "From the float64 reference (tests/fidelity/make_alisa_sparsity.py), not from the system, whose kernel gives out sums over heads alone")
    shared.table(("sparsity of K and V", "0 (dense)", *(f"{1 - ratio:.0%}" for ratio in sparse)), [("attention weights", f"{dense:.1%}", *(f"{zeros:.1%}" for zeros in sparse.values()))])
    values = list(sparse.values())
    print(f"Dense attention is {100 * PAPER_SPARSITY[0]:.0f} to {100 * PAPER_SPARSITY[1]:.0f}% sparse: {verdict(PAPER_SPARSITY[0] <= dense <= PAPER_SPARSITY[1])}; "
          f"more sparse K and V make sparser weights: {verdict(all(a < b for a, b in zip([dense, *values], values)))}. Larger models need more of it to come near dense: not tried, one model.")
    shared.draw(bench.images, "alisa_figure10", "ALISA, Figure 10: sparsity of weights (float64)", "sparsity of K and V, %", "% zeros",
                [("window sums", [(100 * (1 - ratio), 100 * zeros) for ratio, zeros in sparse.items()]), ("dense", [(100 * (1 - ratio), 100 * dense) for ratio in sparse])], x_log=False)
    return golden


def shares_of(make, rows, context):
    """{(node, part): seconds of a step} at the context asked for: answers grow while they are measured, and fast ones more than slow ones."""
    with make() as running:
        stretches = running.decode_stretches(rows, context)
    steps = [rows / one.tokens_per_second * rows * context / one.context_tokens for one in stretches]
    return {key: statistics.median(step * one.shares.get(key, 0.0) for step, one in zip(steps, stretches)) for key in stretches[0].shares}


def attention_parts(parts, layers):
    """Milliseconds of a layer: attention with the choice of tokens, rows put out, K and V gathered by the memory node."""
    return [1e3 * parts.get(key, 0.0) / layers for key in (("c0", "attend"), ("c0", "send"), ("m0", "reply"), ("m0", "tables"))]


def figure11(bench):
    """What a layer's attention takes, nothing slowed down."""
    layers = shared.MODELS[SMALLEST].layers
    found = {"dense": shares_of(lambda: bench.dense("shm"), ATTENTION_ROWS, ATTENTION_CONTEXT)}
    for ratio in (1.0, *RATIOS):
        found[f"{100 * (1 - ratio):.0f}% sparsity"] = shares_of(lambda r=ratio: bench.sparse(r, "shm"), ATTENTION_ROWS, ATTENTION_CONTEXT)
    print(f"Figure 11: a layer's attention, ms, {ATTENTION_ROWS} rows at {ATTENTION_CONTEXT} tokens, link not slowed down")
    shared.table(("", "attention, choice and sums", "rows put out", "K and V gathered and sent", "tables", "all of it"),
                 [(way, *(f"{value:.3f}" for value in attention_parts(parts, layers)), f"{sum(attention_parts(parts, layers)):.3f}") for way, parts in found.items()])
    print(f"QK^T, sums and gathering by themselves: {NOT_BUILT}: the kernel does the first two in one pass (`bench/run.sh attention -- --only weights` says what sums cost it).")
    totals = [sum(attention_parts(parts, layers)) for parts in found.values()]
    sparse = totals[1:]
    print(f"The choice costs: with all tokens kept {sparse[0] / totals[0]:.2f} times dense: {verdict(sparse[0] > totals[0])}; higher sparsity takes less: "
          f"{verdict(all(a > b for a, b in zip(sparse, sparse[1:])))}.")
    shared.draw(bench.images, "alisa_figure11", "ALISA, Figure 11: a layer's attention", "sparsity, %", "ms",
                [("sparse", [(100 * (1 - ratio), total) for ratio, total in zip((1.0, *RATIOS), sparse)]), ("dense", [(100 * (1 - ratio), totals[0]) for ratio in (1.0, *RATIOS)])], x_log=False)
    return {way: attention_parts(parts, layers) for way, parts in found.items()}


def phases(bench):
    """Figure 12(a): steps while the device has room, and behind that."""
    transport = shared.link(BANDWIDTH)
    found = {}
    for way, resident in (("all on the store", 0), ("recent ones on the device", RESIDENT_TOKENS)):
        with bench.sparse(SPARSE, transport, resident=resident) as running:
            found[way] = {context: 1e3 * generate(running, PHASE_ROWS, context, [ANSWER]).step() for context in PHASE_CONTEXTS}
            words = running.status()["fetch_choice"]
    full = RESIDENT_TOKENS / PHASE_ROWS
    print(f"Figure 12(a): ms of a step by context, {PHASE_ROWS} rows, {100 * SPARSE:g}% of the tokens; the device is full from {full:.0f} tokens of each row on, which ends phase I")
    shared.table(("context", *PHASE_CONTEXTS), [(way, *(f"{of[context]:.1f}" for context in PHASE_CONTEXTS)) for way, of in found.items()] +
                 [("phase", *("I" if context + ANSWER <= full else "II" for context in PHASE_CONTEXTS))])
    # By the search for as many rows as may run, of the longest length.
    print(f"Phase III, recomputation ({PAPER_RECOMPUTATION[0]} to {PAPER_RECOMPUTATION[1]} times, Figure 12(b)): {verdict(False)}: {words.split('; ', 1)[1]}")
    shared.draw(bench.images, "alisa_figure12a", "ALISA, Figure 12(a): a step by context", "context", "ms", [(way, list(of.items())) for way, of in found.items()])
    return found


def ablation(bench, transport):
    """{(share of the tokens, place of K and V): throughput over the static split}. What Figure 9 has measured in the same run is not measured again."""
    static = bench.rate(STATIC, ways(bench)[STATIC], (ABLATION_ROWS,))[ABLATION_ROWS]
    points = [(ratio, place) for ratio in RATIOS for place in PLACES]
    return {(ratio, place): bench.rate(kept(ratio, place), functools.partial(bench.sparse_in, place, ratio, transport, ABLATION_ROWS), (ABLATION_ROWS,))[ABLATION_ROWS] / static
            for ratio, place in shared.each(points, lambda point: f"ablation, {kept(*point)}")}


def figure12(bench):
    """What each technique brings: phases, and the ablation."""
    steps = phases(bench)
    gains = ablation(bench, shared.link(BANDWIDTH))
    store, recent, int8, both = PLACES

    def adds(place, other):
        return verdict(all(gains[ratio, place] > gains[ratio, other] for ratio in RATIOS))

    print(f"Figure 12(c): throughput over dense attention with a static split, {ABLATION_ROWS} rows at {CONTEXT} tokens, link {BANDWIDTH / 1e6:.0f} MB/s; "
          f"where some tokens are on the device, {resident_bytes(RESIDENT_TOKENS) / shared.MIB:g} MiB of them")
    shared.table(("sparsity", "static split", "sparse window attention, all on the store", "+ dynamic scheduling: recent tokens on the device", "INT8, without the scheduling",
                  "sparse attention + recent tokens on the device + INT8"),
                 [(f"{100 * (1 - ratio):.0f}%", "1", *(f"{gains[ratio, place]:.2f}" for place in PLACES)) for ratio in RATIOS])
    print(f"Gains grow with sparsity: {verdict(all(gains[a, place] < gains[b, place] for place in PLACES for a, b in zip(RATIOS, RATIOS[1:])))}; scheduling adds at each: "
          f"{adds(recent, store)}; compression does: {adds(int8, store)}; compression adds to the scheduling: {adds(both, recent)}, and the scheduling to compression: {adds(both, int8)}.")
    shared.draw(bench.images, "alisa_figure12", "ALISA, Figure 12(c): over a static split", "sparsity, %", "times",
                [(place, [(100 * (1 - ratio), gains[ratio, place]) for ratio in RATIOS]) for place in PLACES], x_log=False)
    return {"phases": steps, "ablation": [{"ratio": ratio, "way": place, "over_static": value} for (ratio, place), value in gains.items()]}


PARTS = {"figure 9": figure9, "figure 10": figure10, "figure 11": figure11, "figure 12": figure12}
# On two quiet cores.
MINUTES = {"figure 9": 4, "figure 10": 0, "figure 11": 1.5, "figure 12": 3, shared.CLAIMS: 8}

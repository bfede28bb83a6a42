# SPDX-License-Identifier: Apache-2.0
"""HeadInfer on this machine: policy fetch_heads by groups of KV heads, against whole layers by the same executor in the same run.

The paper's set-up is a GPU behind PCIe with KV in the host's memory; here a compute node on one core fetches from a memory node on another over a
link of shared memory that is slowed down. Both windows together have the same size in all runs, so that a group of fewer heads leaves room for
longer contexts. Prompts are prefilled in chunks throughout (the paper's head=8/group=1 is a whole layer with chunked prefill).
What the compute node takes is what it accounts for itself (`lamina status`), checked against the peak of the resident set of its process.
--long has a context of 128k tokens, one head a group, in a model of two layers of width 128.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time

import cluster
import headinfer_models
import headinfer_streaming
import node_memory
import processor
import random_llama
from paper_shared import IMAGES, NOT_BUILT, Steps, draw, minutes_in_words, requests, table, verdict
from programs import BIN, need

KIB, MIB, GIB = 2**10, 2**20, 2**30
SHAPE = random_llama.Shape(layers=4, width=256, hidden=512, heads=8, kv_heads=8)
LONGEST = 64 * KIB  # Tokens that fit with one head to a group.
LONG_SHAPE = random_llama.Shape(layers=2, width=128, hidden=256, heads=8, kv_heads=8)
LONG = 128 * KIB  # Tokens that fit into as large windows with one head of half the width.
CHUNK = 1024
DECODED = 17
GROUPS = (8, 4, 2, 1)
CONTEXTS = (1, 4, 8, 16, 32, 64)  # Ki tokens.
TILE = 16
ELEMENT = 2
RESIDENT_NEAR = (0.05, 32 * MIB)
RESIDENT_TELLS = 2  # What a node has over idle, in tolerances, so that one that accounts for nothing of it is found out.
HEAVY, HEAVY_CHUNK = 32 * KIB, 8 * KIB  # Tokens of whole layers in windows of the node that weighs, and rows of its prompts in a step.

LLAMA = headinfer_models.MODELS["Llama-3-8B"]
PAPER_TABLE5 = {"standard": 25, "layer by layer": 45, "chunked prefill": 30, 8: 550, 4: 1100, 2: 2100, 1: 4096}  # Thousands of tokens in 24 GB.
PAPER_TABLE10 = {"standard": (15.08, 128, 64, 207), "chunked prefill": (15.08, 128, 0.625, 143), "layer by layer": (15.08, 8, 64, 87), "head by head": (15.08, 1, 0.625, 16.7)}
PAPER_GAIN = PAPER_TABLE5[1] / PAPER_TABLE5[8]
GAIN_ASKED, DECODE_ASKED, TOTAL_ASKED = 7.0, 1.05, 17.0
MINUTES = {"table 3": 1, "table 14": 1.5, "tables 5 to 7, 10 and memory": 6}  # On two quiet cores.
LONG_MINUTES = 4


def tokens(count):
    return f"{count // KIB}k" if count % KIB == 0 else f"{count:,}"


class Bench:
    def __init__(self, model, link, window, shape=SHAPE):
        self.model, self.link, self.window, self.shape = model, link, window, shape

    def cluster(self, heads, longest, more=None, **keys):
        """`more`: further keys of `fetch:`."""
        options = {"transport": self.link, "model": self.model, "memory_nodes": 1, "running_max": 1, "chunk_tokens": CHUNK, "scratch_tokens": CHUNK,
                   "sequence_tokens_max": longest, "capacity": f"{2 * longest * self.shape.layers * self.shape.kv_bytes()}B",
                   "fetch": ("fetch_heads", {"window": f"{self.window}B", "heads": heads} | (more or {})), **keys}
        return cluster.Cluster(1, **options)

    def accepts(self, heads, longest):
        """Whether a coordinator takes the cluster file: it checks windows before it waits for nodes."""
        asked = self.cluster(heads, longest)
        with tempfile.NamedTemporaryFile("w+") as log:
            process = subprocess.Popen([BIN / "lamina-coordinator", "--cluster", asked.config, "--name", "coordinator"], stdout=log, stderr=log)
            try:
                while process.poll() is None:
                    text = pathlib.Path(log.name).read_text()
                    if "listening on" in text:
                        return True
                    time.sleep(0.02)
                return False
            finally:
                process.terminate()
                process.wait()
                asked.folder.cleanup()


def measure(running, context):
    """Seconds of the prompt, and of a decoded token behind it."""
    report = requests(running, 1, context, DECODED)
    return report["ttft_ms"]["p50"] / 1e3, report["tpot_ms"]["p50"] / 1e3


def windows_of(count, shape):
    """Bytes of two windows that hold K and V of a head and so many tokens each."""
    return 2 * count * 2 * ELEMENT * shape.head_dim


def longest_of(window, heads, shape=SHAPE):
    """By the layout of windows: two, each with a header's page, of whole tiles."""
    return window // 2 // (2 * ELEMENT * shape.head_dim * heads) // TILE * TILE


def run_tables(bench, groups, contexts):
    """{heads: {context: (prefill, decode)}}, and the memory of the nodes that served the longest."""
    times, nodes, steps = {}, {}, Steps(len(groups))
    several = longest_of(bench.window, 2, bench.shape)  # Behind it there is one head a group, whoever chooses, which takes two minutes by itself.
    for heads in groups:
        longest = longest_of(bench.window, 1 if heads == "auto" else heads, bench.shape)
        times[heads] = {}
        steps.say(f"heads {heads}: contexts of up to {tokens(longest)} tokens")
        with bench.cluster(heads, longest) as running, node_memory.Peak(running, "c0") as peak:
            measure(running, KIB)  # Memory is touched for the first time.
            for context in contexts:
                prompt = context * KIB - DECODED - 1 if context * KIB >= longest else context * KIB
                if prompt + DECODED > longest or (heads == "auto" and prompt + DECODED > several):
                    continue
                times[heads][context] = measure(running, prompt)
                print(f"  heads {heads}: {context}k tokens: prompt {times[heads][context][0]:.2f} s, token {1e3 * times[heads][context][1]:.1f} ms", flush=True)
            nodes[heads] = node_memory.of(running, "c0", peak)
    return times, nodes


def print_times(times, contexts, which, unit):
    rows = []
    for heads, points in times.items():
        rows.append([f"{heads} heads a group" if heads != "auto" else "auto"] +
                    [f"{unit * points[context][which]:.3g}" if context in points else "-" for context in contexts])
    table(["", *(f"{context}k" for context in contexts)], rows)


def heavy_node(bench):
    """The memory of a node whose windows, scratch and activations are many times the tolerance, all of them used, over a link that is not slowed down."""
    heads = bench.shape.kv_heads
    heavy = Bench(bench.model, "shm", heads * windows_of(HEAVY, bench.shape), bench.shape)
    with heavy.cluster(heads, HEAVY, chunk_tokens=HEAVY_CHUNK, scratch_tokens=HEAVY_CHUNK) as running, node_memory.Peak(running, "c0") as peak:
        measure(running, HEAVY - DECODED - 1)
        return node_memory.of(running, "c0", peak)


def check_resident(bench, nodes):
    """(Whether the check holds, the table's rows.) Peaks of the process over that of a node with little to account for, against what both account for. It
    holds if all are near and one of the nodes weighs so much that one that accounts for nothing would not be: what it was measured at says nothing else."""
    longest = 2 * KIB
    with Bench(bench.model, bench.link, windows_of(longest, bench.shape), bench.shape).cluster(1, longest) as running, node_memory.Peak(running, "c0") as peak:
        measure(running, KIB)
        idle = node_memory.of(running, "c0", peak)
    rows, near, tells = [], True, False
    for name, node in [*nodes, (f"{bench.shape.kv_heads} heads, {tokens(HEAVY)}, chunks of {tokens(HEAVY_CHUNK)}", heavy_node(bench))]:
        grown, accounted = node.resident - idle.resident, node.accounted - idle.accounted
        tolerance = max(RESIDENT_NEAR[0] * node.accounted, RESIDENT_NEAR[1])
        holds, weighs = abs(grown - accounted) <= tolerance, accounted > RESIDENT_TELLS * tolerance
        near, tells = near and holds, tells or weighs
        rows.append([name, *(f"{node.parts[part] / MIB:.1f}" for part in ("weights", "windows", "kv", "activations")), f"{node.accounted / MIB:.1f}",
                     f"{node.resident / MIB:.1f}", f"{accounted / MIB:.1f}", f"{grown / MIB:.1f}", f"{(grown - accounted) / MIB:+.1f}", f"{tolerance / MIB:.1f}",
                     "no" if not holds else "yes" if weighs else "too little to tell"])
    table(["MiB", "weights", "windows", "scratch K and V", "activations", "accounted", "resident", "accounted over idle", "resident over idle", "not accounted",
           "tolerance", "near"], rows)
    return near and tells, rows


def draw_ways(images, name, title, labels, ways, series, **axes):
    """`series`: {line: {way: value}}. Ways are told by their numbers, from 1 on."""
    draw(images, name, title, *labels, [(line, [(i, of[way]) for i, way in enumerate(ways, 1)]) for line, of in series.items()],
         x_log=False, x_ticks=range(1, len(ways) + 1), **axes)


def draw_table10(images, ours):
    """`ours`: {way: GiB of weights, K and V, activations}"""
    parts = {part: {way: of[i] for way, of in ours.items()} for i, part in enumerate(("weights", "K and V", "activations"))}
    whole = {"all": {way: sum(of) for way, of in ours.items()}, "all, paper": {way: of[3] for way, of in PAPER_TABLE10.items()}}
    labels = ", ".join(f"{i} {way}" for i, way in enumerate(ours, 1)), "GiB"
    draw_ways(images, "headinfer_table10", "HeadInfer, Table 10: Llama-3-8B at 1M tokens", labels, ours, whole | parts, y_log=True)


def draw_table5(images, contexts):
    """`contexts`: {way, or heads a group: tokens}"""
    labels = "1 standard, 2 layer by layer, 3 chunked prefill, then 8, 4, 2, 1 heads", "tokens"
    paper = {way: 1000 * thousands for way, thousands in PAPER_TABLE5.items()}
    draw_ways(images, "headinfer_table5", "HeadInfer, Table 5: Llama-3-8B in 24 GiB", labels, ("standard", "layer by layer", "chunked prefill", *GROUPS), {"ours": contexts, "paper": paper}, y_log=True)


def draw_table14(images, found):
    """`found`: {"whole" or "half": {"prompt" and "token": seconds}}"""
    series = {}
    for which, label in (("prompt", "prompt"), ("token", "decoded token")):
        whole, half = headinfer_streaming.PAPER[which]
        series[label] = {way: of[which] / found["whole"][which] for way, of in found.items()}
        series[f"{label}, paper"] = {"whole": 1.0, "half": half / whole}
    draw_ways(images, "headinfer_table14", "HeadInfer, Table 14: half of the heads streaming", ("1 all heads whole, 2 half streaming", "of all heads whole"), ("whole", "half"), series)


def print_llama(counted, windows, images):
    """Tables 10 and 5; `windows`: bytes at 1M tokens, one head a group."""
    shape, head, whole = LLAMA.shape, counted.head, counted.activation_line.at(MIB)
    ours = {"standard": (counted.weights, counted.token_kv * MIB, whole), "chunked prefill": (counted.weights, counted.token_kv * MIB, counted.activations),
            "layer by layer": (counted.weights, windows + (shape.kv_heads - 1) * 2 * MIB * head, whole),
            "head by head": (counted.weights, windows + counted.scratch, counted.activations)}
    table(["GiB at 1M tokens", "weights", "K and V", "activations", "all", "paper: weights / K and V / activations / all"],
          [[name, *(f"{part / GIB:.2f}" for part in of), f"{sum(of) / GIB:.1f}", " / ".join(f"{part:g}" for part in PAPER_TABLE10[name])] for name, of in ours.items()])
    contexts = counted.contexts(GROUPS)
    table(["", "tokens in 24 GiB", "paper"], [[f"{name} heads a group" if name in GROUPS else name, f"{contexts[name] / 1000:,.0f}k", f"{PAPER_TABLE5[name]:,}k"] for name in contexts])
    draw_table10(images, {name: [part / GIB for part in of] for name, of in ours.items()})
    draw_table5(images, contexts)
    order = headinfer_models.order
    same = {"Table 10": order({name: sum(of) for name, of in ours.items()}) == order({name: of[3] for name, of in PAPER_TABLE10.items()}),
            "Table 5": order(contexts) == order({name: PAPER_TABLE5[name] for name in contexts}),
            "Table 5, groups of heads": order({name: contexts[name] for name in GROUPS}) == order({name: PAPER_TABLE5[name] for name in GROUPS})}
    return sum(ours["head by head"]) / GIB, same, contexts


def table3(images):
    """Longest contexts of five models, by accounting."""
    print(f"Longest contexts of real models' shapes in 24 GiB (Table 3), by accounting of nodes with two layers of each, chunks of {headinfer_models.chosen_chunk()} tokens, "
          f"at most what {headinfer_models.STORES // GIB} GiB of stores hold; all run as a LLaMA:", flush=True)
    head, rows, found, same = headinfer_models.table3()
    table(head, rows)
    print(f"K and V in 4 bits: {NOT_BUILT}; INT8 is the smallest form.")
    gain = {name: of["head by head"] / of["layer by layer"] for name, of in found.items()}
    print(f"Head by head has the longest context of every model: {verdict(all(max(of, key=of.get) == 'head by head' for of in found.values()))}; over layer by layer "
          f"{min(gain.values()):.0f} to {max(gain.values()):.0f} times (paper: 17 to 91): {verdict(min(gain.values()) >= 17)}.")
    print(f"Order of Table 3 by model: {', '.join(f'{name} {verdict(holds)}' for name, holds in same.items())}.")
    draw_ways(images, "headinfer_table3", "HeadInfer, Table 3: longest contexts in 24 GiB", (f"model ({', '.join(f'{i} {name}' for i, name in enumerate(found, 1))})", "tokens"), found,
              {way: {name: of[way] for name, of in found.items()} for way in next(iter(found.values()))}, y_log=True)
    return found


def long_context(folder, link):
    """Tables 6 and 7 at 128k tokens, and the memory of the node that had them."""
    random_llama.write(pathlib.Path(folder), LONG_SHAPE)
    bench = Bench(folder, link, windows_of(LONG, LONG_SHAPE), LONG_SHAPE)
    print(f"{LONG_SHAPE.layers} layers, width {LONG_SHAPE.width}, {LONG_SHAPE.kv_heads} KV heads of {LONG_SHAPE.head_dim}; both windows {bench.window / MIB:.0f} MiB, "
          f"in which whole layers have room for {tokens(longest_of(bench.window, LONG_SHAPE.kv_heads, LONG_SHAPE))} tokens; chunks of {CHUNK} tokens; {link}", flush=True)
    contexts = (1, LONG // KIB)
    times, nodes = run_tables(bench, (1,), contexts)
    for which, unit, words in ((0, 1, "Seconds of a prompt (Table 6):"), (1, 1e3, "Milliseconds of a decoded token (Table 7):")):
        print(words)
        print_times(times, contexts, which, unit)
    near, rows = check_resident(bench, [(f"1 head, {tokens(LONG)}", nodes[1])])
    print(f"The process has what is accounted for, within 5% or 32 MiB: {'yes' if near else 'no'}.")
    return {"times": times, "resident": rows}


def table14(bench, folder, context, bandwidth, images):
    print(f"Half of the heads streaming (Table 14), sink {headinfer_streaming.SINK}, window {headinfer_streaming.WINDOW}, "
          f"{context}k tokens, prompts in steps of {headinfer_streaming.CHUNK} rows, link {bandwidth}/s:", flush=True)
    found = headinfer_streaming.run(bench.cluster, folder, SHAPE, context, DECODED, bandwidth)
    table(["", "all heads whole", "half streaming", "times", "paper", "asked", ""], headinfer_streaming.rows_and_verdicts(found))
    draw_table14(images, found)
    return found


def write(arguments, **found):
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), **found}, out, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=minutes_in_words(MINUTES))
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--only", choices=["headinfer"], default="headinfer", help=argparse.SUPPRESS)
    parser.add_argument("--bandwidth", default="1000MB", help="of the link in each direction, a second")
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="Ki tokens")
    parser.add_argument("--images", default=IMAGES, help="folder of the SVG figures")
    parser.add_argument("--streaming-bandwidth", default="100MB", help="of the link for Table 14, which is to be what steps wait for")
    parser.add_argument("--streaming-context", type=int, default=8, help="Ki tokens, for Table 14")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--table", choices=["3", "14"], help="this table alone")
    which.add_argument("--long", action="store_true", help=f"a context of 128k tokens alone, in a model of two layers of width 128: {LONG_MINUTES} minutes")
    arguments = parser.parse_args()
    contexts = [int(text) for text in arguments.contexts.split(",")]
    print(f"machine {processor.machine()}")
    if arguments.table == "3":
        write(arguments, table3=table3(arguments.images))
        return
    window, link = windows_of(LONGEST, SHAPE), f"throttle(bandwidth={arguments.bandwidth})+shm"
    with tempfile.TemporaryDirectory(prefix="lamina-headinfer-") as folder:
        if arguments.long:
            write(arguments, long=long_context(folder, link))
            return
        random_llama.write(pathlib.Path(folder), SHAPE)
        bench = Bench(folder, link, window)
        print(f"{SHAPE.layers} layers, width {SHAPE.width}, {SHAPE.kv_heads} KV heads of {SHAPE.head_dim}; both windows {window / MIB:.0f} MiB; chunks of {CHUNK} tokens; link {arguments.bandwidth}/s")
        if arguments.table is None:
            print(minutes_in_words(MINUTES), flush=True)
            need("lamina-bench-heads")  # Not built between measurements.
        streaming = table14(bench, folder, arguments.streaming_context, arguments.streaming_bandwidth, arguments.images)
        if arguments.table == "14":
            write(arguments, streaming=streaming)
            return
        print("\nLongest contexts, by the coordinator's own check of these windows:")
        longest = {}
        for heads in GROUPS:
            longest[heads] = longest_of(window, heads)
            if not bench.accepts(heads, longest[heads]) or bench.accepts(heads, longest[heads] + TILE):
                raise RuntimeError(f"{longest[heads]} tokens are not the most that windows of {heads} heads have room for")
        table(["heads a group", *map(str, GROUPS)], [["tokens", *(tokens(longest[heads]) for heads in GROUPS)]])
        times, nodes = run_tables(bench, (*GROUPS, "auto"), contexts)
        print("\nSeconds of a prompt (Table 6):")
        print_times(times, contexts, 0, 1)
        print("Milliseconds of a decoded token (Table 7):")
        print_times(times, contexts, 1, 1e3)
        print("Memory of the compute node, as it accounts for it and as its process has it:")
        near, resident = check_resident(bench, [(f"{heads} heads, {tokens(longest[heads])}", nodes[heads]) for heads in (2, 1)])
    chunk = headinfer_models.chosen_chunk()
    print(f"Llama-3-8B's shape by the same accounting, chunks of {chunk} tokens, the largest with which {headinfer_models.ALL // GIB} GiB have room for 1M tokens:")
    parts = headinfer_models.node_parts(LLAMA, MIB, chunk)
    counted = headinfer_models.accounting(LLAMA, parts, MIB, chunk)
    total, same, llama_contexts = print_llama(counted, parts[-1]["windows"], arguments.images)
    models = table3(arguments.images)
    gain = longest[1] / longest[8]
    both = [context for context in contexts if context in times[8]]
    slower = max(times["auto"][context][1] / times[8][context][1] for context in both)
    prompt = max(times["auto"][context][0] / times[8][context][0] for context in both)
    print(f"Context at equal windows: {gain:.1f} times that of whole layers (paper {PAPER_GAIN:.1f}, asked {GAIN_ASKED:g}): {verdict(gain >= GAIN_ASKED)}.")
    print(f"Decode by groups of adaptive size, at worst {slower:.3f} of whole layers where both fit (asked {DECODE_ASKED}): {verdict(slower <= DECODE_ASKED)}; prompts {prompt:.3f}.")
    print(f"Llama-3-8B's shape at 1M tokens: {total:.1f} GiB (paper 16.7, asked at most {TOTAL_ASKED:g}): {verdict(total <= TOTAL_ASKED)}.")
    for name, holds in same.items():
        print(f"Order of {name}: {verdict(holds)}.")
    print(f"Activations are {counted.token / KIB:.0f} KiB a token here, of values that cross an attention, and {counted.activation_line.fixed / MIB:.0f} MiB whatever the chunk; "
          "by the paper's formula 64 KiB a token.")
    print(f"The process has what is accounted for, within 5% or 32 MiB: {'yes' if near else 'no'}.")
    for which, name, label in ((0, "headinfer_prefill", "seconds of a prompt"), (1, "headinfer_decode", "seconds of a token")):
        draw(arguments.images, name, f"HeadInfer: {label}", "tokens", "s",
             [(f"{heads} heads" if heads != "auto" else "auto", [(context * KIB, point[which]) for context, point in points.items()]) for heads, points in times.items()], y_log=True)
    write(arguments, longest=longest, times=times, resident=resident, llama_total_gib=total, llama_contexts=llama_contexts, table3=models,
          streaming=streaming)


if __name__ == "__main__":
    main()

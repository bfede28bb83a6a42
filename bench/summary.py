# SPDX-License-Identifier: Apache-2.0
"""One table of the figures that `bench/run.sh all --json FILE -- --long` wrote, each next to what is asked for on that class of processor.

By itself this prints it. In docs/performance.md it is the table `summary` (tables.py). What was not measured is said to be so, and suites that
were cut off are named.
"""

import argparse
import json
import pathlib
import re
import sys

from floor import bar_of

ARROW = {">=": lambda value, asked: value >= asked, "<=": lambda value, asked: value <= asked}
# Prompts on one node over vLLM by tokens of a prompt, for a kind of processor; others have no bar.
PROMPTS_ASKED = {"AMX": {1024: 1.2, 4096: 1.2}, "Zen 5": {1024: 1.05, 4096: 1.2}, "Zen 4": {1024: 1.25, 4096: 1.4}}
PROMPT_POINTS = ((1, 1024), (16, 1024), (1, 4096), (16, 4096))
DECODE_POINTS = ((1, 1024), (4, 1024), (16, 1024), (64, 512), (64, 1024), (32, 2048), (16, 4096))
# What bench/run.sh decode measures by default, and the other suites of a few points.
FLOOR_POINTS = ((1, 1024), (16, 1024), (64, 512), (64, 1024), (32, 2048), (16, 4096))
SAMPLING_POINTS, THREADS_POINTS = ((16, 1024),), ((1, 1024), (64, 1024))
CORES_OF_VLLM = 2  # The prompts of two pools run on one.
OVER_VLLM_BF16, OVER_VLLM, OVER_LLAMA = 1.5, 2.0, 4.0
FEW_OVER_VLLM = {(1, 1024): 2.2}
FEW_OVER_LLAMA = {(1, 1024): 1.3, (4, 1024): 2.5}
ROWS_OF_MANY = 16
DENSE_ASKED, ATTENTION_ASKED = 0.90, 0.85
CANONICAL_KINDS = ("AMX", "Zen 4")  # Those whose canonical attention has a bar.
INT8_ASKED, PERPLEXITY_ASKED = 1.5, 0.002
SLOWER_ASKED, LOST_ASKED = 0.03, {1: 0.4, 64: 0.1}
LOSS_ASKED = 0.05


def kind_of(machine):
    """The kind that has bars of its own: AMX, Zen 5, Zen 4; else the class."""
    name = machine.removeprefix("class ").split(":")[0]
    family = re.search(r"AMD.*family (\d+)", machine)
    return {"25": "Zen 4", "26": "Zen 5"}.get(family[1], name) if name == "AVX-512 BF16" and family else name


class Lines:
    """Rows of the table."""

    def __init__(self):
        self.rows = []

    def add(self, what, value, asked=None, sign=">=", form="{:.2f}", detail=""):
        """`value` None: not measured; `asked` None: there is no bar."""
        if value is None:
            measured, verdict = "not measured", ""
        else:
            measured = form.format(value) + (f" ({detail})" if detail else "")
            verdict = "" if asked is None else "reached" if ARROW[sign](value, asked) else "missed"
        self.rows.append([what, measured, "no bar" if asked is None else f"{sign} {form.format(asked)}", verdict])


def median_of(row, kind, name):
    return ((row or {}).get(kind, {}).get(name) or {}).get("median")


def rates(row, kind, names):
    """Tokens a second of those that were measured, in words."""
    found = [(name, median_of(row, kind, name)) for name in names]
    return ", ".join(f"{name} {value:,.0f}" for name, value in found if value is not None)


def ratio_of(row, name, kind, peer):
    return (row or {}).get("ratios", {}).get(name, {}).get(kind, {}).get(peer)


def prompts(lines, peers, kind):
    for rows, context in PROMPT_POINTS:
        row = peers.get((rows, context))
        asked = PROMPTS_ASKED.get(kind, {}).get(context)
        lines.add(f"prompts, {rows} x {context:,}: one node over vLLM", ratio_of(row, "local", "prompt", "vLLM"), asked,
                  detail=rates(row, "prompt", ("local", "vLLM")))
        pools = ratio_of(row, "lamina", "prompt", "vLLM")
        lines.add(f"prompts, {rows} x {context:,}: two pools over vLLM, a core", None if pools is None else CORES_OF_VLLM * pools, 1.0,
                  detail=rates(row, "prompt", ("lamina",)))


def decoding(lines, peers, kind):
    few = kind in PROMPTS_ASKED  # These have bars of their own for few rows.
    for point in DECODE_POINTS:
        row = peers.get(point)
        where = f"decoding, {point[0]} x {point[1]:,}"
        ours = (row or {}).get("ours") or "auto"
        if point[0] != 4:
            lines.add(f"{where}: weights bf16 over vLLM", ratio_of(row, "local_bf16", "decode", "vLLM"), OVER_VLLM_BF16,
                      detail=rates(row, "decode", ("local_bf16", "vLLM")))
            lines.add(f"{where}: the file's weights over vLLM", ratio_of(row, ours, "decode", "vLLM"), FEW_OVER_VLLM.get(point, OVER_VLLM) if few else OVER_VLLM,
                      detail=rates(row, "decode", ("lamina", "local", "auto")))
        lines.add(f"{where}: over llama.cpp", ratio_of(row, ours, "decode", "llama.cpp"),
                  OVER_LLAMA if point[0] >= ROWS_OF_MANY else FEW_OVER_LLAMA.get(point) if few else None, detail=rates(row, "decode", ("llama.cpp",)))
        lines.add(f"{where}: what `auto` loses to the better fixed mode", (row or {}).get("auto_loss"), LOSS_ASKED, "<=", "{:.1%}")


def at_points(rows, points):
    """{(rows, context): its row} of these points, None where there is none, and of the others that were measured."""
    there = {(row["rows"], row["context"]): row for row in rows}
    return {point: there.get(point) for point in (*points, *there)}


def floors(lines, result):
    for policy, name in (("pools", "two pools"), ("local", "one node")):
        rows = [row for row in result.get("rows", []) if row["policy"] == policy]
        for (count, context), row in at_points(rows, FLOOR_POINTS).items():
            lines.add(f"floor / step, {count} x {context:,}: {name}", row and row["ratio"], bar_of(count), detail=f"{row['step_ms']:.1f} ms" if row else "")


def dense(lines, result):
    for model in ("smollm2", "llama3-8b"):
        rows = [row for row in result.get("rows", []) if row["shape"].startswith(model)]
        # Files of before have the share of oneDNN alone, 0 where it does not know the type.
        key, whose = ("share_of_onednn", "oneDNN") if rows and "share_of_better" not in rows[0] else ("share_of_better", "the better of oneDNN and the bound")
        shares = [row[key] for row in rows if row[key] > 0]
        mean = f"on average {sum(shares) / len(shares):.2f}" if shares else ""
        lines.add(f"dense layers of {model}, share of {whose}, the lowest", min(shares, default=None), DENSE_ASKED, detail=mean)


def attention(lines, result, what, groups, asked):
    """The lowest share at 1,024 tokens and above of the groups, by head size."""
    for head_dim in (64, 128):
        of = [row for row in result.get("decode", []) if row["head_dim"] == head_dim and row["group"] in groups and row["context"] >= 1024]
        detail = ", ".join(f"group {row['group']} {row['share']:.2f}" for row in of if row["context"] == 1024)
        lines.add(f"{what}, head size {head_dim}, share of reads, the lowest", min((row["share"] for row in of), default=None), asked,
                  detail=detail)


def rest(lines, result_of):
    int8 = result_of("weights_int8")
    first = next((row for row in int8.get("rows", []) if (row["rows"], row["context"]) == (1, 1024)), None)
    lines.add("INT8 weights over bf16, 1 x 1,024", None if first is None else 1 / first["int8"]["ratio"], INT8_ASKED)
    one = next(iter(int8.get("perplexity", [])), None)
    lines.add(f"INT8 weights, perplexity of {one['text'] if one else 'the committed text'} next to bf16", one and abs(one["ratio"] - 1),
              PERPLEXITY_ASKED, "<=", "{:.2%}")
    for (rows, context), row in at_points(result_of("sampling").get("rows", []), SAMPLING_POINTS).items():
        lines.add(f"temperature 1 and top-p 0.9, {rows} x {context:,}: slower than greedy", row and row["slower"], SLOWER_ASKED, "<=", "{:.1%}")
    for (rows, context), row in at_points(result_of("threads").get("rows", []), THREADS_POINTS).items():
        lines.add(f"16 threads on two cores, {rows} x {context:,}: lost", row and row["lost"], LOST_ASKED.get(rows), "<=", "{:.1%}")


def lines_of(figures):
    """[what, measured, asked, verdict] of each line."""
    def result_of(suite):
        return figures["suites"].get(suite, {}).get("result", {})

    lines = Lines()
    peers = {(row["rows"], row["context"]): row for row in result_of("peers").get("rows", [])}
    kind = kind_of(figures["machine"])
    prompts(lines, peers, kind)
    decoding(lines, peers, kind)
    floors(lines, result_of("decode"))
    dense(lines, result_of("dense"))
    attention(lines, result_of("attention_auto"), "attention that `auto` serves", (1, 3, 4, 8), ATTENTION_ASKED if kind in PROMPTS_ASKED else None)
    attention(lines, result_of("attention"), "canonical attention", (1, 3, 4), ATTENTION_ASKED if kind in CANONICAL_KINDS else None)
    rest(lines, result_of)
    return lines.rows


def heading(figures):
    """Which suites the file has figures of, where and when they ran, and which of them were cut off."""
    machine = figures["machine"].removeprefix("class ")
    there = {name: suite for name, suite in figures["suites"].items() if "result" in suite}
    if there:
        dates = sorted(suite["date"] for suite in there.values())
        dtype = there.get("peers", {}).get("result", {}).get("vllm_dtype")
        words = f"`bench/run.sh all`, {', '.join(there)}, {machine}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}{f', vLLM in {dtype}' if dtype else ''}"
    else:
        words = f"`bench/run.sh all`, {machine}: nothing was measured"
    cut = ", ".join(f"{name} ({suite['problem']}; {'what it wrote before counts' if name in there else 'no figures'})"
                    for name, suite in figures["suites"].items() if "problem" in suite)
    return f"{words}.{f' Cut off: {cut}.' if cut else ''}"


def table(figures):
    rows = "".join(f"| {' | '.join(row)} |\n" for row in lines_of(figures))
    return f"{heading(figures)}\n\n| | measured | asked | |\n|---|---|---|---|\n{rows}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="what `bench/run.sh all --json FILE -- --long` wrote")
    try:
        sys.stdout.write(table(json.loads(parser.parse_args().file.read_text())))
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

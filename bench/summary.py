# SPDX-License-Identifier: Apache-2.0
"""One table of the figures that `bench/run.sh all --json FILE -- --long` wrote, each next to what is asked for on that class of processor.

By itself this prints it. In docs/performance.md it is the table `summary` (tables.py). What was not measured is said to be so.
"""

import argparse
import json
import pathlib
import re
import sys

ARROW = {">=": lambda value, asked: value >= asked, "<=": lambda value, asked: value <= asked}
# Prompts on one node over vLLM by tokens of a prompt, for a kind of processor; others have no bar.
PROMPTS_ASKED = {"AMX": {1024: 1.2, 4096: 1.2}, "Zen 5": {1024: 1.05, 4096: 1.2}, "Zen 4": {1024: 1.25, 4096: 1.4}}
PROMPT_POINTS = ((1, 1024), (16, 1024), (1, 4096), (16, 4096))
DECODE_POINTS = ((1, 1024), (4, 1024), (16, 1024), (64, 512), (64, 1024), (32, 2048), (16, 4096))
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


def floors(lines, result):
    for row in result.get("rows", []):
        name = "two pools" if row["policy"] == "pools" else "one node"
        lines.add(f"floor / step, {row['rows']} x {row['context']:,}: {name}", row["ratio"], row["bar"], detail=f"{row['step_ms']:.1f} ms")


def dense(lines, result):
    for model in ("smollm2", "llama3-8b"):
        shares = [row["share_of_onednn"] for row in result.get("rows", []) if row["shape"].startswith(model) and row["share_of_onednn"] > 0]
        mean = f"on average {sum(shares) / len(shares):.2f}" if shares else ""
        lines.add(f"dense layers of {model}, share of oneDNN, the lowest", min(shares, default=None), DENSE_ASKED, detail=mean)


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
    for one in int8.get("perplexity", [])[:1]:
        lines.add(f"INT8 weights, perplexity of {one['text']} next to bf16", abs(one["ratio"] - 1), PERPLEXITY_ASKED, "<=", "{:.2%}")
    for row in result_of("sampling").get("rows", [{"rows": 16, "context": 1024, "slower": None}]):
        lines.add(f"temperature 1 and top-p 0.9, {row['rows']} x {row['context']:,}: slower than greedy", row["slower"], SLOWER_ASKED, "<=", "{:.1%}")
    for row in result_of("threads").get("rows", [{"rows": rows, "context": 1024, "lost": None} for rows in LOST_ASKED]):
        lines.add(f"16 threads on two cores, {row['rows']} x {row['context']:,}: lost", row["lost"], LOST_ASKED.get(row["rows"]), "<=", "{:.1%}")


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


def table(figures):
    dates = sorted({suite["date"] for suite in figures["suites"].values()})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "nothing measured"
    rows = "".join(f"| {' | '.join(row)} |\n" for row in lines_of(figures))
    return f"`bench/run.sh all -- --long`, {figures['machine'].removeprefix('class ')}, {when}:\n\n| | measured | asked | |\n|---|---|---|---|\n{rows}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=pathlib.Path, help="what `bench/run.sh all --json FILE -- --long` wrote")
    try:
        sys.stdout.write(table(json.loads(parser.parse_args().file.read_text())))
    except (OSError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

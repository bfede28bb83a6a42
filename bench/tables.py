# SPDX-License-Identifier: Apache-2.0
"""Makes tables of docs/performance.md from the figures that `bench/run.sh all --json FILE` wrote.

A table stands between two lines,

  <!-- table SUITE FILE -->
  <!-- end of table -->

with FILE as the tree has it; SUITE `summary` is one table of all suites (summary.py). Without arguments every such table is written anew; with --check nothing is written, and tables that are
not what their files give are named.
"""

import argparse
import json
import pathlib
import re
import sys

import summary

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/performance.md"
TABLE = re.compile(r"(<!-- table (?P<suite>\S+) (?P<file>\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
NAMES = {"lamina": "two pools", "local": "one node (`local`)", "local_bf16": "one node, weights bf16", "auto": "`auto`"}


def markdown(head, rows):
    lines = [" ".join(["|", " | ".join(line), "|\n"]) for line in (head, *rows)]
    return "".join([lines[0], "|" + "---|" * len(head) + "\n", *lines[1:]])


def number(value, form="{:,.0f}"):
    return "" if value is None else form.format(value)


def attention(result):
    contexts = sorted({row["context"] for row in result["decode"]})
    groups = {}
    for row in result["decode"]:
        groups.setdefault((row["head_dim"], row["group"]), {})[row["context"]] = row["share"]
    kernel = result.get("kernel", "not named")
    return f"Kernel {kernel}.\n\n" + markdown(["head size, group", *(f"share of reads at {context:,}" for context in contexts)],
                                              [[f"{head}, {group}", *(number(of.get(context), "{:.2f}") for context in contexts)]
                                               for (head, group), of in sorted(groups.items())])


def attention_auto(result):
    return f"What nodes take with `attention: auto`. {attention(result)}"


def dense(result):
    shares, better = {}, {}
    for row in result["rows"]:
        shares.setdefault(row["shape"], {})[row["rows"]] = row["share_of_onednn"]
        if "share_of_better" in row:
            better.setdefault(row["shape"], []).append(row["share_of_better"])
    counts = sorted({row["rows"] for row in result["rows"]})
    last = ["the lowest share of the better of oneDNN and the bound"] if better else []
    return markdown(["share of oneDNN", *(f"{count} row{'s' if count > 1 else ''}" for count in counts), *last],
                    [[shape, *(number(of.get(count), "{:.2f}") for count in counts),
                      *([number(min(better.get(shape, []), default=None), "{:.2f}")] if last else [])] for shape, of in shares.items()])


def weights_int8(result):
    scored = result["perplexity"]
    text = markdown(["rows x context", "int8, tokens/s", "bf16, tokens/s", "gain", "gain by turns"], [
        [f"{row['rows']} x {row['context']}", number(row["int8"]["tokens_per_second"]), number(row["bf16"]["tokens_per_second"]),
         number(1 / row["int8"]["ratio"], "{:.2f}"),
         f"{1 / max(row['int8']['ratios']):.2f} to {1 / min(row['int8']['ratios']):.2f}"] for row in result["rows"]])
    for one in scored:
        text += (f"\nPerplexity of {one['text']}, {one['tokens']:,} tokens: {one['int8']:.4f} with INT8 and {one['bf16']:.4f} with bf16, "
                 f"{one['ratio']:.5f} times (standard error {one['standard_error']:.5f}).\n")
    return text


def decode(result):
    return markdown(["cluster", "rows x context", "lanes", "weights, MiB", "reads, GB/s", "a step, ms", "floor, ms", "floor / step", "tokens/s"], [
        ["two pools" if row["policy"] == "pools" else "one node (`local`)", f"{row['rows']} x {row['context']}", str(row["lanes"]),
         number(row["weight_bytes"] / 2**20), number(row["bounds"]["read_bytes_per_second"] / 1e9, "{:.1f}"), number(row["step_ms"], "{:.1f}"),
         number(row["floor_ms"], "{:.1f}"), number(row["ratio"], "{:.2f}"), number(row["tokens_per_second"])] for row in result["rows"]])


def peers(result):
    ours = [name for name in result["systems"] if name in NAMES]
    others = [name for name in result["systems"] if name not in NAMES]
    head = ["tokens/s", "rows x context", *(NAMES[name] for name in ours), *(column for name in others for column in (name, "ratio"))]
    rows = []
    for kind, words in (("decode", "decoding"), ("prompt", "prompts")):
        for row in result["rows"]:
            median = {name: (row[kind].get(name) or {}).get("median") for name in result["systems"]}
            cells = [number(median[name]) + (auto_words(row) if name == "auto" and kind == "decode" else "") for name in ours]
            for name in others:
                cells += [number(median[name]), number(row[f"{kind}_ratio"].get(name), "{:.2f}")]
            rows.append([words, f"{row['rows']} x {row['context']}", *cells])
    return f"{markdown(head, rows)}\n{turns_words(result)}\n"


def turns_words(result):
    """How many turns the medians are of, the versions of the peers, and the type in which vLLM computed."""
    counts = [one["turns"] for row in result["rows"] for kind in ("decode", "prompt") for one in row[kind].values() if one is not None]
    least, most = min(counts, default=0), max(counts, default=0)
    words = f"Medians of {least if least == most else f'{least} to {most}'} turn{'' if most == 1 else 's'}."
    forms = {"vLLM": f" in {result['vllm_dtype']}"} if "vllm_dtype" in result else {}
    versions = ", ".join(f"{name} {version}{forms.get(name, '')}" for name, version in result.get("versions", {}).items())
    return f"{words} Versions: {versions}." if versions else words


def auto_words(row):
    if row.get("auto_loss") is None:
        return ""
    return f" (took `{row['auto_took']}`, loses {100 * max(0.0, row['auto_loss']):.1f}%)"


def sampling(result):
    return markdown(["rows x context", f"drawn ({' '.join(result['draws'])}), tokens/s", "greedy, tokens/s", "slower", "slower by turns"], [
        [f"{row['rows']} x {row['context']}", number(row["drawn"]["tokens_per_second"]), number(row["greedy"]["tokens_per_second"]),
         f"{row['slower']:.1%}", f"{min(row['drawn']['ratios']) - 1:.1%} to {max(row['drawn']['ratios']) - 1:.1%}"] for row in result["rows"]])


def threads(result):
    many, few = result["threads"]
    return markdown(["rows x context", f"{many} threads, tokens/s", f"{few} threads, tokens/s", "lost", "lost by turns"], [
        [f"{row['rows']} x {row['context']}", number(row["many"]["tokens_per_second"]), number(row["few"]["tokens_per_second"]),
         f"{row['lost']:.1%}", f"{1 - 1 / min(row['many']['ratios']):.1%} to {1 - 1 / max(row['many']['ratios']):.1%}"]
        for row in result["rows"]])


TABLES = {"attention": attention, "attention_auto": attention_auto, "dense": dense, "weights_int8": weights_int8, "decode": decode, "peers": peers, "sampling": sampling,
          "threads": threads}


def table(suite, path):
    """Errors: ValueError, of a suite that has no table or no figures in the file."""
    figures = json.loads((ROOT / path).read_text())
    if suite == "summary":
        return summary.table(figures)
    if suite not in TABLES:
        raise ValueError(f"suite {suite} has no table; those that have one: {', '.join(TABLES)}, summary")
    found = figures["suites"].get(suite, {})
    if "result" not in found:
        raise ValueError(f"{path} has no figures of {suite}")
    part = f" ({found['problem']}; what it wrote before)" if "problem" in found else ""
    return f"`{found['command']}`{part}, {figures['machine'].removeprefix('class ')}, {found['date']}:\n\n{TABLES[suite](found['result'])}"


def remade(text):
    """The page with its tables as their files give them."""
    return TABLE.sub(lambda match: f"{match[1]}{table(match['suite'], match['file'])}{match[4]}", text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where a table is not what its file gives")
    arguments = parser.parse_args()
    text = PAGE.read_text()
    try:
        new = remade(text)
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{PAGE.relative_to(ROOT)}: {error}")
    if not arguments.check:
        PAGE.write_text(new)
        return
    odd = [f"{old['suite']} of {old['file']}" for old, now in zip(TABLE.finditer(text), TABLE.finditer(new)) if old[0] != now[0]]
    if odd:
        sys.exit(f"{PAGE.relative_to(ROOT)}: not what the figures give: {'; '.join(odd)}; python3 bench/tables.py makes them")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""ALISA on this machine: perplexity and decode steps of policy fetch_sparse, against whole attention by the same executor in the same run.

The paper's set-up is a GPU behind PCIe with OPT and LLaMA models of 6.7 to 30 billion parameters; here SmolLM2 (135 million) on one core fetches from a
memory node on another. Quality: a prompt of 768 tokens attends to all before them, 768 more go through decode steps (lamina score --decode-from), for
each share of tokens kept, and as many of the most recent ones, and at a fixed stride. What Algorithm 1 gives in float64 on the same text stands next to
it (tests/fidelity/goldens/alisa.json). Speed: decode steps over a link that is slowed down, by the share of tokens kept, window and memory alike.

That is Figure 8 and the claims: --claims. Figures 9 to 12, as far as they are built, are in paper_alisa_figures.py; some of them alone: --figure.
"""

import argparse
import itertools
import json
import math
import pathlib
import subprocess

import cluster
import paper_alisa_figures
import processor
from paper_shared import IMAGES, add_parts, draw as chart, each, run_asked, verdict
from programs import BIN

ROOT = pathlib.Path(__file__).resolve().parent.parent
GOLDENS = ROOT / "tests/fidelity/goldens"
PATTERNS = ("window_sums", "local", "strided")
WINDOW = "64MiB"
LOSS = 1.05  # Of the perplexity, which the paper's Figure 8 calls negligible up to 80% sparsity.
HALF = 1.03  # Asked at a ratio of 0.5.
NEAR = 0.005  # Of float64.
PAPER_SPARSITY = 80


def fetching(policy, **keys):
    return policy, {"window": WINDOW, **keys}


def perplexity(fetch, tokens, prompt, form):
    """Of the tokens behind the prompt, which go through decode steps. `form`: of K and V."""
    with cluster.Cluster(1, memory_nodes=1, fetch=fetch, sequence_tokens_max=2048, kv_form=form) as running:
        done = subprocess.run([BIN / "lamina", "score", "--json", "--server", running.address, "--tokens", ",".join(map(str, tokens)),
                               "--decode-from", str(prompt)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    behind = json.loads(done.stdout)["logprobs"][prompt:]
    return math.exp(-sum(behind) / len(behind))


def quality(arguments):
    goldens = json.loads((GOLDENS / "alisa.json").read_text())
    text = json.loads((GOLDENS / "smollm2.json").read_text())["text"]["tokens"]
    prompt = goldens["prompt"]
    points = []
    for passage in goldens["passages"][:arguments.passages]:
        tokens = text[passage["first"]:passage["first"] + goldens["tokens"]]
        reference = {(run["pattern"], run["ratio"], run.get("kv", "bf16")): run["perplexity"] for run in passage["runs"]}
        dense = {}
        print(f"\nPassage from token {passage['first']}; dense is bf16's\n")
        print("| K and V | pattern | tokens kept | perplexity | over dense | in float64 | off by |\n|---|---|---|---|---|---|---|")
        for form in arguments.forms:
            dense[form] = perplexity(fetching("fetch_heads"), tokens, prompt, form)
            if "bf16" not in dense:
                dense["bf16"] = perplexity(fetching("fetch_heads"), tokens, prompt, "bf16")
            print(row(form, "dense", 1.0, dense[form], dense["bf16"], reference.get(("dense", 1.0, form), math.nan)), flush=True)
            runs = itertools.product(arguments.patterns, arguments.ratios)
            for pattern, ratio in each(runs, lambda run, form=form: f"{form}, {run[0]}, {100 * run[1]:g}% of the tokens"):
                found = perplexity(fetching("fetch_sparse", caching_ratio=ratio, sparse=pattern), tokens, prompt, form)
                wanted = reference.get((pattern, ratio, form), math.nan)
                points.append({"first": passage["first"], "kv": form, "pattern": pattern, "ratio": ratio, "perplexity": found,
                               "dense": dense["bf16"], "float64": wanted})
                print(row(form, pattern, ratio, found, dense["bf16"], wanted), flush=True)
    return points


def row(form, pattern, ratio, found, dense, wanted):
    known = "not computed | " if math.isnan(wanted) else f"{wanted:.3f} | {100 * (found / wanted - 1):+.2f}%"
    return f"| {form} | {pattern} | {100 * ratio:g}% | {found:.3f} | {found / dense:.3f} | {known} |"


def step_seconds(fetch, arguments, form):
    """At the context asked for: answers of fast steps grow more while they are measured."""
    with cluster.Cluster(1, memory_nodes=1, fetch=fetch, transport=arguments.link, sequence_tokens_max=2048, kv_form=form) as running:
        return running.row_seconds(arguments.rows, arguments.context)


def speed(arguments):
    whole = step_seconds(fetching("fetch_heads"), arguments, "bf16")
    points = [{"ratio": None, "kv": "bf16", "step_s": whole}]
    print(f"\n{arguments.rows} rows at {arguments.context} tokens, link {arguments.link}\n\n| K and V | tokens kept | ms a step | of whole attention |\n|---|---|---|---|")
    print(f"| bf16 | all, fetch_heads | {1e3 * whole:.0f} | 1 |", flush=True)
    runs = itertools.product(arguments.forms, (1.0, *arguments.ratios))
    for form, ratio in each(runs, lambda run: f"steps, {run[0]}, {100 * run[1]:g}% of the tokens"):
        seconds = step_seconds(fetching("fetch_sparse", caching_ratio=ratio), arguments, form)
        points.append({"ratio": ratio, "kv": form, "step_s": seconds})
        print(f"| {form} | {100 * ratio:g}% | {1e3 * seconds:.0f} | {seconds / whole:.2f} |", flush=True)
    return points


def judge_form(form, all_points):
    points = [point for point in all_points if point["kv"] == form]
    sums = [point for point in points if point["pattern"] == "window_sums"]
    print(f"\nK and V as {form}:")
    if not sums:
        print("Window sums were not measured (--patterns): no verdict.")
        return
    kept = [point["ratio"] for point in sums if point["perplexity"] <= LOSS * point["dense"]]
    least = min((ratio for ratio in kept if all(other["perplexity"] <= LOSS * other["dense"] for other in sums if other["ratio"] >= ratio)), default=1.0)
    print(f"\nLoss stays below {100 * (LOSS - 1):.0f}% up to a sparsity of {100 * (1 - least):.0f}% (the paper: {PAPER_SPARSITY}%): {verdict(100 * (1 - least) >= PAPER_SPARSITY)}.")
    half = [point["perplexity"] / point["dense"] for point in sums if point["ratio"] == 0.5]
    if half:
        print(f"At half the tokens {max(half):.3f} of dense perplexity (asked: at most {HALF}): {verdict(max(half) <= HALF)}.")
    ordered = all(point["perplexity"] < other["perplexity"] for point in sums for other in points
                  if other["pattern"] != "window_sums" and (other["first"], other["ratio"]) == (point["first"], point["ratio"]))
    if len(points) > len(sums):
        print(f"Window sums are better than the most recent tokens and than a stride at every ratio: {verdict(ordered)}.")
    firsts = dict.fromkeys(point["first"] for point in points)
    for first in firsts:
        print_order([point for point in points if point["first"] == first], f", from token {first}" if len(firsts) > 1 else "")
    worst = max((abs(point["perplexity"] / point["float64"] - 1) for point in sums if not math.isnan(point["float64"])), default=None)
    if worst is None:
        print("Algorithm 1 was not computed in float64 at these ratios: no verdict.")
        return
    print(f"Farthest from Algorithm 1 in float64: {100 * worst:.2f}% (asked: {100 * NEAR}%): {verdict(worst <= NEAR)}.")


def print_order(points, where):
    """Which of the other two patterns is the better one in a passage, by ratio, here and in float64. `where`: the passage in words."""
    def better(which):
        recent, strided = ({point["ratio"]: point[which] for point in points if point["pattern"] == pattern and not math.isnan(point[which])}
                           for pattern in ("local", "strided"))
        return ", ".join(f"{100 * ratio:g}% {'the most recent' if recent[ratio] < strided[ratio] else 'a stride'}" for ratio in recent if ratio in strided)

    if better("perplexity"):
        print(f"Of the other two the better one{where}: {better('perplexity')}; in float64: {better('float64') or 'not computed'}.")


def judge_int8(points):
    """What INT8 costs each pattern, where both forms were measured: {pattern: [perplexity over bf16's]}."""
    found = {(point["first"], point["kv"], point["pattern"], point["ratio"]): point["perplexity"] for point in points}
    over = {}
    for (first, form, pattern, ratio), value in found.items():
        if form == "int8" and (first, "bf16", pattern, ratio) in found:
            over.setdefault(pattern, []).append(value / found[first, "bf16", pattern, ratio])
    for pattern, values in over.items():
        print(f"INT8 with {pattern}: {min(values):.3f} to {max(values):.3f} times bf16's perplexity at the same tokens.")
    return over


def judge(points):
    for form in dict.fromkeys(point["kv"] for point in points):
        judge_form(form, points)
    judge_int8(points)


def draw(points, steps, images):
    first = [point for point in points if (point["first"], point["kv"]) == (points[0]["first"], points[0]["kv"]) and point["pattern"] == "window_sums"]
    if first:
        draw_quality(first, images)
    kept = [point for point in steps if point["ratio"] is not None and point["kv"] == points[0]["kv"]]
    chart(images, "alisa_speed", "ALISA: a decode step over a slow link", "tokens kept", "ms",
          [("fetch_sparse", [(point["ratio"], 1e3 * point["step_s"]) for point in kept]), ("fetch_heads, all tokens", [(point["ratio"], 1e3 * steps[0]["step_s"]) for point in kept])])


def draw_quality(first, images):
    chart(images, "alisa_quality", "ALISA: perplexity over dense, window sums", "tokens kept", "ratio",
          [("here", [(point["ratio"], point["perplexity"] / point["dense"]) for point in first]), ("float64", [(point["ratio"], point["float64"] / point["dense"]) for point in first if not math.isnan(point["float64"])])])


def run_claims(arguments):
    """{what: figures} of Figure 8 and of decode steps by the tokens kept."""
    points = quality(arguments)
    steps = speed(arguments) if arguments.speed else []
    judge(points)
    if steps:
        draw(points, steps, arguments.images)
    return {"quality": points, "speed": steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--only", choices=["alisa"], default="alisa", help=argparse.SUPPRESS)
    parser.add_argument("--ratios", type=lambda text: [float(one) for one in text.split(",")], default=[0.8, 0.5, 0.35, 0.2], help="shares of tokens kept")
    parser.add_argument("--forms", type=lambda text: text.split(","), default=["bf16"], help="of K and V: bf16, int8; each takes as long. With both INT8 is judged by bf16, pattern by pattern")
    parser.add_argument("--patterns", type=lambda text: text.split(","), default=list(PATTERNS), help="which tokens are kept")
    parser.add_argument("--no-speed", dest="speed", action="store_false", help="perplexity alone")
    parser.add_argument("--passages", type=int, default=1, help="how many of the text's passages are scored")
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--link", default="throttle(bandwidth=500MB)+shm", help="transport of the speed figure")
    parser.add_argument("--images", default=IMAGES, help="folder of the SVG figures")
    names = paper_alisa_figures.PARTS
    add_parts(parser, names, paper_alisa_figures.MINUTES)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    found = run_asked(arguments, names, paper_alisa_figures.Bench, run_claims, paper_alisa_figures.MINUTES)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), **found}, out, indent=1)


if __name__ == "__main__":
    main()

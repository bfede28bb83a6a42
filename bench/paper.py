# SPDX-License-Identifier: Apache-2.0
"""The paper's economics by the cost model, next to the paper's numbers: Tables 1 and 3, Figures 1, 12, 13 and 17.

Of the figures the text has ranges only; where it has no number, the shape stands. Nothing here is measured: it is the cost model over
cost/catalogues/paper.yaml, and `lamina plan` over the default catalogue for today's prices.
"""

import argparse
import json
import os
import subprocess

import svg
from programs import program

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

TABLE1 = {"A100-80G": (219, 9.04), "H100": (456, 10.90), "RTX-3090": (67, 1.71), "RX-7900-XTX": (42, 1.04), "Arc-A770": (22, 0.63)}
TABLE3 = {
    "LLaMA-13B": (4.90, 8.12, 9.08, 10.06),
    "LLaMA-33B": (5.94, 9.31, 11.56, 12.53),
    "LLaMA-65B": (7.55, 11.78, 13.92, 15.90),
}
FIGURE1 = (2.1, 2.8)
FIGURE12_BATCH = (10.7, 64.0)
FIGURE12_TOKENS = (1.75, 20.5)
FIGURE12_PIPELINE = (1.13, 1.63)  # Batches above 128.
FIGURE13 = (1.48, 12.1)
LATER_VERSION = (16.1, 90.1)  # Per cent more at equal cost; its set-up is not known here.

PLANS = 50  # Of each list: the most that `lamina plan` says.
END_OF_PRICES = "A ratio above 1 says"

# What a buyer may ask today: model, input, output.
TODAY = (("Llama-3-8B", 512, 128), ("Llama-3-8B", 6000, 1000), ("Qwen2.5-32B", 2000, 500), ("Qwen2.5-32B", 24000, 2000), ("Llama-3-70B", 2000, 500),
         ("LLaMA-65B", 1500, 400))


def span(values):
    return f"{min(values):.2f} to {max(values):.2f}"


def verdict(values, low, high):
    return "holds" if min(values) >= low and max(values) <= high else "overlaps" if max(values) >= low and min(values) <= high else "does not hold"


def table(out, head, rows):
    out.append("| " + " | ".join(head) + " |")
    out.append("|" + "---|" * len(head))
    out += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    out.append("")


def table1(out, model):
    out += ["## Table 1: memory for a dollar", ""]
    rows = []
    for row in model["table1"]:
        paper = TABLE1[row["device"]]
        rows.append((row["device"], f"{row['price']:.0f}", f"{row['price_per_gigabyte']:.1f}", paper[0], f"{row['price_per_bandwidth']:.2f}", paper[1]))
    table(out, ("device", "price, USD", "USD/GB", "paper", "USD/(GB/s)", "paper"), rows)


def table3(out, model):
    out += ["## Table 3: bandwidth to attention, GB/s", ""]
    rows, worst = [], 0.0
    for row in model["table3"]:
        cells = []
        for ours, paper in zip(row["gigabytes_per_second"], TABLE3[row["model"]]):
            worst = max(worst, abs(ours / paper - 1))
            cells.append(f"{ours:.2f} ({paper:.2f})")
        rows.append((f"{row['model']} on {row['cards']} A100", *cells))
    table(out, ("ours (paper's)", "batch 128", "256", "512", "1024"), rows)
    out += [f"The worst differs by {100 * worst:.0f}%.", ""]


def figure1(out, model):
    out += ["## Figure 1: throughput per cost of two pools over one, context 512, memory 3.27 times cheaper", ""]
    table(out, ("model", "card", "ours", "paper's range", "spent on memory for each dollar on compute"),
          [(r["model"], r["card"], f"{r['gain']:.2f}", "%g to %g" % FIGURE1, f"{r['memory_over_compute_cost']:.2f}") for r in model["figure1"]])


def figure12(out, model, images):
    out += ["## Figure 12: tokens a second by batch", ""]
    rows, pipeline, slow = [], [], []
    for row in model["figure12"]:
        rows.append((row["model"], f"{row['context']:.0f}", f"{row['batch_one_pool']:.0f}", f"{row['batch_two_pools']:.0f}",
                     f"{row['batch_two_pools'] / row['batch_one_pool']:.1f}", f"{row['most_one_pool']:.0f}", f"{row['most_two_pools']:.0f}",
                     f"{row['most_pipelined']:.0f}", f"{row['most_pipelined'] / row['most_one_pool']:.1f}"))
        gains = [(p["batch"], p["pipelined"] / p["two_pools"]) for p in row["points"] if p["two_pools"]]
        pipeline += [gain for batch, gain in gains if batch > 128]
        slow.append(1 / gains[0][1])
        if row["context"] == 1024:
            series = [(name, [(p["batch"], p[key]) for p in row["points"] if p[key]])
                      for name, key in (("one pool", "one_pool"), ("two pools", "two_pools"), ("two pools, 2 lanes", "pipelined"))]
            svg.chart(os.path.join(images, f"figure12_{row['model'].lower().replace('-', '_')}.svg"), f"{row['model']}, context 1024 (model)", "batch",
                      "tokens/s", series, y_log=True)
    table(out, ("model", "context", "batch, one pool", "two pools", "ratio", "tokens/s, one pool", "two pools", "2 lanes", "ratio"), rows)
    batches = [r["batch_two_pools"] / r["batch_one_pool"] for r in model["figure12"]]
    tokens = [r["most_pipelined"] / r["most_one_pool"] for r in model["figure12"]]
    table(out, ("what", "ours", "paper's", ""),
          [("batch, two pools over one", span(batches), "%g to %g" % FIGURE12_BATCH, verdict(batches, *FIGURE12_BATCH)),
           ("tokens/s at the largest batch", span(tokens), "%g to %g" % FIGURE12_TOKENS, verdict(tokens, *FIGURE12_TOKENS)),
           ("two lanes over one, batch above 128", span(pipeline), "%g to %g" % FIGURE12_PIPELINE, verdict(pipeline, *FIGURE12_PIPELINE)),
           ("latency of two lanes over one, batch 2", span(slow), "nearly 2", verdict(slow, 1.6, 2.0))])
    out += ["![Tokens a second by batch on LLaMA-13B](images/figure12_llama_13b.svg) ![and on LLaMA-33B](images/figure12_llama_33b.svg)", ""]


def figure13(out, model, images):
    out += ["## Figure 13: tokens a second for a dollar of cards", ""]
    gains = [r["gain"] for r in model["figure13"]]
    table(out, ("model", "context", "one pool", "two pools", "ratio"),
          [(r["model"], f"{r['context']:.0f}", f"{r['one_pool']:.4f}", f"{r['two_pools']:.4f}", f"{r['gain']:.2f}") for r in model["figure13"]])
    out += ["![Tokens a second for a dollar](images/figure13.svg)", ""]
    out += [f"Ours {span(gains)} times, the paper's {FIGURE13[0]} to {FIGURE13[1]} times: {verdict(gains, *FIGURE13)}.", ""]
    series = [(f"{name}, {text}", [(r["context"], r[key]) for r in model["figure13"] if r["model"] == name])
              for name in ("LLaMA-13B", "LLaMA-33B") for text, key in (("one pool", "one_pool"), ("two pools", "two_pools"))]
    svg.chart(os.path.join(images, "figure13.svg"), "Tokens/s for a dollar of cards (model)", "context, tokens", "tokens/s/USD", series, y_log=True)


def figure17(out, model, images):
    out += ["## Figure 17: LLaMA-33B at ShareGPT's mean lengths (161 in, 338 out)", ""]
    best = {r["name"]: r["points"][-1] for r in model["figure17"]}
    table(out, ("cards", "price, USD", "largest batch", "tokens/s", "ms a token", "tokens/s/USD"),
          [(r["name"], f"{r['price']:.0f}", f"{p['batch']:.0f}", f"{p['tokens_per_second']:.0f}", f"{1e3 * p['seconds_per_token']:.0f}",
            f"{p['tokens_per_second_per_dollar']:.4f}") for r in model["figure17"] for p in [r["points"][-1]]])
    one = max(p["tokens_per_second_per_dollar"] for name, p in best.items() if "attend" not in name)
    two = [p["tokens_per_second_per_dollar"] for name, p in best.items() if "attend" in name]
    out += [f"At equal cost the set-ups with two pools give {100 * (min(two) / one - 1):.0f} to {100 * (max(two) / one - 1):.0f}% more than the best of one pool. "
            f"The later version of the paper says {LATER_VERSION[0]} to {LATER_VERSION[1]}%; its set-up is not known here, so no verdict.", ""]
    out += ["![Latency against throughput](images/figure17.svg)", ""]
    svg.chart(os.path.join(images, "figure17.svg"), "LLaMA-33B, ShareGPT's mean lengths (model)", "tokens/s", "ms a token",
              [(r["name"], [(p["tokens_per_second"], 1e3 * p["seconds_per_token"]) for p in r["points"]]) for r in model["figure17"]], x_log=False)


def ask(name, load, slo, machines, count, simulate):
    """What `lamina plan` says over the default catalogue; `count` and `simulate`: plans of each list."""
    command = [program("lamina"), "plan", "--model", name, "--load", load, "--slo", slo, "--machines", str(machines),
               "--catalogue", os.path.join(ROOT, "cost", "catalogues", "default.yaml"), "--count", str(count), "--simulate", str(simulate), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def two_pools(plans):
    return [p for p in plans["runnable"] + plans["not_runnable"] if p["policy"] == "attend_remote"]


def price_by_formula(p):
    """Of a request."""
    return p["price_per_hour"]["value"] / p["goodput_bound"]["value"]


def plan(name, given, tokens):
    plans = ask(name, f"input={given},output={tokens}", "tpot=100ms", 12, PLANS, 0)
    one = plans["one_pool"][0] if plans["one_pool"] else None
    return min(two_pools(plans), key=price_by_formula, default=None), one, price_by_formula


def today(out):
    out += ["## Today's prices: two pools or one", "",
            "`lamina plan` over the default catalogue, TPOT 100 ms in the mean, up to 12 machines; the cheapest plan of each kind for a request, runnable with this software or not.", ""]
    rows = []
    for name, given, tokens in TODAY:
        two, one, price = plan(name, given, tokens)
        cells = [f"{p['machines']}: {p['price_per_million_output']['value']:.2f}" if p else "none" for p in (one, two)]
        if not two:
            cells[1] = f"none among the {PLANS} best"
        ratio = f"{price(one) / price(two):.2f}" if one and two else "-"
        rows.append((f"{name}, {given} in, {tokens} out", *cells, ratio))
    table(out, ("load", "one pool: USD/1M output tokens", "two pools", "one pool's price of a request over two pools'"), rows)


def reach(plans):
    """So many plans of each list have among them the two best of two pools by formula. Those of one pool may come before these."""
    best = sorted(two_pools(plans), key=price_by_formula)[:2]
    return max([2, *(1 + plans[key].index(p) for key in ("runnable", "not_runnable") for p in best if p in plans[key])])


def simulated(name, given, tokens):
    """The best plan of one pool, and the best of two that was simulated, at the SLO's percentile."""
    asked = (name, f"input={given},output={tokens},lengths=sharegpt", "ttft=5s,tpot=100ms,at=p95", 8)
    count = reach(ask(*asked, PLANS, 0))
    plans = ask(*asked, count, count)
    two = [p for p in two_pools(plans) if p["simulated"] and p["simulated"]["goodput"] > 0]
    one = [p for p in plans["one_pool"] if p["simulated"] and p["simulated"]["goodput"] > 0]

    def price(p):
        return p["price_per_hour"]["value"] / p["simulated"]["goodput"]

    return min(one, key=price, default=None), min(two, key=price, default=None), price


def today_simulated(out):
    out += ["### The same with queues and unequal lengths", "",
            "Simulated with the real scheduler: requests that come at random, lengths spread as in ShareGPT, TTFT 5 s and TPOT 100 ms for 95% of the requests, up to 8 machines. "
            f"Goodput is the most requests a second within that. Of two pools the best of those simulated, the two best by formula among them; none: there is none among the {PLANS} "
            "best plans by formula, or its goodput is 0.", ""]
    rows = []
    for name, given, tokens in TODAY:
        one, two, price = simulated(name, given, tokens)
        cells = []
        for p in (one, two):
            cells += [p["machines"], f"{p['simulated']['goodput']:.2f} of {p['goodput_bound']['value']:.2f}", f"{p['simulated']['price_per_million_output']:.2f}"] if p else ["none", "-", "-"]
        rows.append((f"{name}, {given} in, {tokens} out", *cells, f"{price(one) / price(two):.2f}" if one and two else "-"))
    table(out, ("load", "one pool", "goodput/s of its bound", "USD/1M out", "two pools", "goodput/s of its bound", "USD/1M out", "one pool's price of a request over two pools'"), rows)


def write_page(path, tables, prices):
    """Puts what was computed into the page; its prose stays."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    begin, middle, end = text.index("## Table 1"), text.index("## Where it holds"), text.index("## Today's prices")
    last = text.index(END_OF_PRICES)
    page = text[:begin] + "\n".join(tables) + "\n" + text[middle:end] + "\n".join(prices) + "\n" + text[last:]
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the model's numbers there")
    parser.add_argument("--only", choices=["lamina"], required=True, help="whose economics: lamina's, the only paper that has them")
    parser.add_argument("--images", default=os.path.join(ROOT, "docs", "experiments", "images"), help="folder of the SVG figures")
    parser.add_argument("--output", help="write the tables there too, as Markdown")
    parser.add_argument("--page", nargs="?", const=os.path.join(ROOT, "docs", "experiments", "economics.md"),
                        help="put the tables into this page (default: docs/experiments/economics.md)")
    arguments = parser.parse_args()
    command = [program("lamina-bench-paper"), os.path.join(ROOT, "cost", "catalogues", "paper.yaml")]
    model = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    os.makedirs(arguments.images, exist_ok=True)
    out = []
    table1(out, model)
    table3(out, model)
    figure1(out, model)
    figure12(out, model, arguments.images)
    figure13(out, model, arguments.images)
    figure17(out, model, arguments.images)
    prices = []
    today(prices)
    today_simulated(prices)
    if arguments.page:
        write_page(arguments.page, out, prices)
    out += prices
    print("\n".join(out))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write("\n".join(out))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(model, file, indent=1)


if __name__ == "__main__":
    main()

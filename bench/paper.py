# SPDX-License-Identifier: Apache-2.0
"""The paper's economics by the cost model, next to the paper's numbers: Tables 1 and 3, Figures 1, 12, 13 and 17.

Of the figures the text has ranges only; where it has no number, the shape stands. Nothing here is measured: it is the cost model over
cost/catalogues/paper.yaml, and `lamina plan` over the default catalogue for today's prices. --page writes all of the page but its two parts
that are written by hand ("What was put in", "Where it holds, where not, and why") and its first and last lines.
"""

import argparse
import json
import os
import subprocess

import yaml

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
DEFAULT_CATALOGUE = os.path.join(ROOT, "cost", "catalogues", "default.yaml")
HOST = "epyc-9654"  # Whose host, network card and switch port each pool has in the table of hosts and links.
HOST_FACTORS = (0.5, 1, 2)

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
    out += ["## Figure 1: throughput per cost of two pools over one, context 512, memory 3.27 times cheaper", "",
            "Computed without a network: links between the pools take no time. One pool and two each have the best number of cards up to 8.", ""]
    table(out, ("model", "card", "ours", "paper's range", "spent on memory for each dollar on compute"),
          [(r["model"], r["card"], f"{r['gain']:.2f}", "%g to %g" % FIGURE1, f"{r['memory_over_compute_cost']:.2f}") for r in model["figure1"]])
    out += [f"With {card} {span(gains)} times, the paper's %g to %g: {verdict(gains, *FIGURE1)}." % FIGURE1 for card, gains in figure1_gains(model).items()]
    out += [""]


def figure1_gains(model):
    gains = {}
    for row in model["figure1"]:
        gains.setdefault(row["card"], []).append(row["gain"])
    return gains


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
    prices = {r["name"]: r["price"] for r in model["figure17"]}
    equal_cost(out, {name: (prices[name], point["tokens_per_second"]) for name, point in best.items()})
    out += ["![Latency against throughput](images/figure17.svg)", ""]
    svg.chart(os.path.join(images, "figure17.svg"), "LLaMA-33B, ShareGPT's mean lengths (model)", "tokens/s", "ms a token",
              [(r["name"], [(p["tokens_per_second"], 1e3 * p["seconds_per_token"]) for p in r["points"]]) for r in model["figure17"]], x_log=False)


def on_the_line(points, price):
    """Tokens a second at the price, on the straight line between two of the points [(price, tokens/s)]; None outside."""
    below, above = (max((p for p in points if p[0] <= price), default=None), min((p for p in points if p[0] >= price), default=None))
    if below is None or above is None:
        return None
    return below[1] if above[0] == below[0] else below[1] + (above[1] - below[1]) * (price - below[0]) / (above[0] - below[0])


def equal_cost(out, setups):
    """`setups`: {name: (price, tokens/s)}. One pool at the price of each set-up with two, by two ways."""
    one = {name: point for name, point in setups.items() if "attend" not in name}
    best = max(one, key=lambda name: one[name][1] / one[name][0])
    out += [f"At equal cost: what one pool gives at the price of each set-up with two. Either it has replicas of the set-up of one pool with the most tokens for a dollar ({best}), "
            f"fractions counted, as in a fleet of many; or it stands on the line between {' and '.join(one)}.", ""]
    rows, more = [], []
    for name, (price, tokens) in setups.items():
        if name in one:
            continue
        replicas, line = price * one[best][1] / one[best][0], on_the_line(list(one.values()), price)
        more.append(100 * (tokens / replicas - 1))
        rows.append((name, f"{price:.0f}", f"{tokens:.0f}", f"{replicas:.0f}", f"{more[-1]:+.0f}%", *((f"{line:.0f}", f"{100 * (tokens / line - 1):+.0f}%") if line else ("-", "-"))))
    table(out, ("cards", "price, USD", "tokens/s", "one pool by replicas", "two pools more", "one pool on the line", "two pools more"), rows)
    out += [f"By replicas two pools give {min(more):.0f} to {max(more):.0f}% more at equal cost. "
            f"The later version of the paper says {LATER_VERSION[0]} to {LATER_VERSION[1]}%; its set-up is not known here, so no verdict.", ""]


def host_prices():
    """USD of a host, its network card and its switch port, which the default catalogue assumes."""
    with open(DEFAULT_CATALOGUE, encoding="utf-8") as file:
        price = next(machine["price"] for machine in yaml.safe_load(file)["machines"] if machine["name"] == HOST)
    return {part: float(price[part]["value"].split()[0]) for part in ("host", "nic", "switch_port")}


def gain_with_hosts(row, tokens, factor, prices):
    """Tokens a second and dollar of two pools over those of the best one pool: one host against two, which have a network between them."""
    host, network = factor * prices["host"], prices["nic"] + prices["switch_port"]
    one = max(p["tokens_per_second"] / (p["price"] + host) for p in row["one_pool"])
    return tokens / (row["two_pools_price"] + 2 * (host + network)) / one


def gains_by_host(model, prices):
    """{(model, link): {factor: [(context, gain)]}}"""
    gains = {}
    for row in model["links"]:
        for pools in row["two_pools"]:
            of = gains.setdefault((row["model"], pools["link"]), {factor: [] for factor in HOST_FACTORS})
            for factor in HOST_FACTORS:
                of[factor].append((row["context"], gain_with_hosts(row, pools["tokens_per_second"], factor, prices)))
    return gains


def where_above_one(points):
    """In words."""
    above = [f"{context:.0f}" for context, gain in points if gain > 1]
    return "everywhere" if len(above) == len(points) else "at " + ", ".join(above) if above else "nowhere"


def hosts(out, model):
    prices = host_prices()
    out += ["## Price of hosts, and the network", "",
            "Tokens a second for a dollar of two pools over those of one, with hosts: Figure 13's set-ups with a host for the cards of each pool, and a network card and a switch port for each of the two hosts; "
            f"one pool has a host of its own and the best number of cards up to 8. A host costs {prices['host']:.0f} USD times the factor, a network card {prices['nic']:.0f} and a port {prices['switch_port']:.0f} "
            "at each speed: all assumed, in the default catalogue. The range is that of contexts of 512 to 4,096; then, where two pools win.", ""]
    gains = gains_by_host(model, prices)
    table(out, ("model", "link", *(f"hosts at {factor:g} times" for factor in HOST_FACTORS)),
          [(*key, *(f"{span([gain for _, gain in of[factor]])}: {where_above_one(of[factor])}" for factor in HOST_FACTORS)) for key, of in gains.items()])


def ask(name, load, slo, machines, count, simulate):
    """What `lamina plan` says over the default catalogue; `count` and `simulate`: plans of each list."""
    command = [program("lamina"), "plan", "--model", name, "--load", load, "--slo", slo, "--machines", str(machines),
               "--catalogue", DEFAULT_CATALOGUE, "--count", str(count), "--simulate", str(simulate), "--json"]
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


def basis_text(p):
    """"assumed: dense layers, price; datasheet: memory": who says a plan's figures."""
    parts = {}
    for part, by in p["basis"].items():
        parts.setdefault(by, []).append(part)
    return "; ".join(f"{by}: {', '.join(parts[by])}" for by in sorted(parts))


def prices_text(p):
    return ", ".join(f"{one['machine']} {one['date']}{' (old)' if one['old'] else ''}" for one in p["prices"])


def of_both(text, one, two):
    """What `text` says of the two plans: once, if that is the same."""
    said = {words: text(p) for words, p in (("One pool", one), ("Two pools", two)) if p}
    if len(set(said.values())) <= 1:
        return next(iter(said.values()), "-")
    return ". ".join(f"{words}: {what}" for words, what in said.items())


PROVENANCE = ("figures by", "prices of")


def provenance(one, two):
    return of_both(basis_text, one, two), of_both(prices_text, one, two)


def today(out):
    """[(load, one, two, ratio)], None where there is none."""
    out += ["## Today's prices: two pools or one", "",
            "`lamina plan` over the default catalogue, TPOT 100 ms in the mean, up to 12 machines; the cheapest plan of each kind for a request, runnable with this software or not. "
            "Each row says who says its figures, and the dates of its machines' prices; those older than 180 days are marked old.", ""]
    rows, found = [], []
    for name, given, tokens in TODAY:
        two, one, price = plan(name, given, tokens)
        cells = [f"{p['machines']}: {p['price_per_million_output']['value']:.2f}" if p else "none" for p in (one, two)]
        if not two:
            cells[1] = f"none among the {PLANS} best"
        ratio = price(one) / price(two) if one and two else None
        found.append((f"{name}, {given} in, {tokens} out", one, two, ratio))
        rows.append((found[-1][0], *cells, f"{ratio:.2f}" if ratio else "-", *provenance(one, two)))
    table(out, ("load", "one pool: USD/1M output tokens", "two pools", "one pool's price of a request over two pools'", *PROVENANCE), rows)
    return found


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
    """As today()."""
    out += ["### The same with queues and unequal lengths", "",
            "Simulated with the real scheduler: requests that come at random, lengths spread as in ShareGPT, TTFT 5 s and TPOT 100 ms for 95% of the requests, up to 8 machines. "
            f"Goodput is the most requests a second within that. Of each kind the best of the plans that were simulated, the two best of two pools by formula among them; none: there is none among the {PLANS} "
            "best plans by formula, or its goodput is 0.", ""]
    rows, found = [], []
    for name, given, tokens in TODAY:
        one, two, price = simulated(name, given, tokens)
        cells = []
        for p in (one, two):
            cells += [p["machines"], f"{p['simulated']['goodput']:.2f} of {p['goodput_bound']['value']:.2f}", f"{p['simulated']['price_per_million_output']:.2f}"] if p else ["none", "-", "-"]
        ratio = price(one) / price(two) if one and two else None
        found.append((f"{name}, {given} in, {tokens} out", one, two, ratio))
        rows.append((found[-1][0], *cells, f"{ratio:.2f}" if ratio else "-", *provenance(one, two)))
    table(out, ("load", "one pool", "goodput/s of its bound", "USD/1M out", "two pools", "goodput/s of its bound", "USD/1M out", "one pool's price of a request over two pools'", *PROVENANCE), rows)
    return found


def ratios_text(found, wins):
    """The loads whose ratio is above 1, or is not, with it."""
    return "; ".join(f"{load} ({ratio:.2f})" for load, _, _, ratio in found if ratio and (ratio > 1) == wins) or "none of these loads"


def not_met_text(found):
    """Sentences on the loads where a kind of plan is missing; empty for none."""
    groups = (("Two pools alone were", [load for load, one, two, _ in found if two and not one]), ("One pool alone was", [load for load, one, two, _ in found if one and not two]),
              ("Neither was", [load for load, one, two, _ in found if not one and not two]))
    return "".join(f" {words} found for {'; '.join(loads)}." for words, loads in groups if loads)


def kept_text(found, place):
    """Shares of their bounds that simulated plans keep."""
    shares = [100 * row[place]["simulated"]["goodput"] / row[place]["goodput_bound"]["value"] for row in found if row[place]]
    return f"{min(shares):.0f} to {max(shares):.0f}%" if shares else "nothing"


def prices_of_plans(plans):
    """How old, and by whom."""
    prices = {one["machine"]: one for p in plans for one in p["prices"]}
    assumed = sum(p["basis"]["price"] == "assumed" for p in plans)
    old = sorted(name for name, one in prices.items() if one["old"])
    return (f"The prices of {assumed} of the {len(plans)} plans in today's tables are assumed; older than 180 days are those of {', '.join(old) if old else 'none'} "
            f"(of {', '.join(sorted(prices))})")


def in_short(model, found, found_simulated):
    """The page's first part."""
    gains = gains_by_host(model, host_prices())
    of_hosts = [gain for of in gains.values() for points in of.values() for _, gain in points]
    lost = [f"{name} over {link} with hosts at {factor:g} times (two pools win {where_above_one(points)})" for (name, link), of in gains.items()
            for factor, points in of.items() if where_above_one(points) != "everywhere"]
    against = [f"Figure 1 with {card}: {verdict(values, *FIGURE1)}" for card, values in figure1_gains(model).items()]
    against.append(f"Figure 13: {verdict([row['gain'] for row in model['figure13']], *FIGURE13)}")
    plans = [p for row in found + found_simulated for p in row[1:3] if p]
    return ["## In short", "", "Computed from the tables below; the last item is our reading of them.", "",
            f"- **Two pools are the cheaper ones by formula** for {ratios_text(found, True)}. **One pool is, or is as good**, for {ratios_text(found, False)}. The number is the price of a request with one pool over that with two."
            f"{not_met_text(found)}",
            f"- **With queues and unequal lengths** ([last table](#the-same-with-queues-and-unequal-lengths)), 95% of the requests within the SLO, one pool keeps {kept_text(found_simulated, 1)} of its bound by formula and two pools "
            f"{kept_text(found_simulated, 2)}, where the SLO is met at all. Two pools are the cheaper ones for {ratios_text(found_simulated, True)}, one pool for {ratios_text(found_simulated, False)}.{not_met_text(found_simulated)}",
            f"- **The paper's set-ups with hosts**: {span(of_hosts)} times one pool's tokens for a dollar, with hosts at {HOST_FACTORS[0]:g} to {HOST_FACTORS[-1]:g} times the assumed price and links of 100 to 400 Gbit/s "
            f"([table](#price-of-hosts-and-the-network)); one pool wins {'nowhere' if not lost else 'at some contexts for ' + '; '.join(lost)}.",
            f"- **Against the paper's ranges**: {'; '.join(against)}.",
            f"- {prices_of_plans(plans)}. Put your own into a catalogue before you sign.",
            "- **Our reading**: two pools pay where K and V bound the batch (long contexts, as many KV heads as query heads), since compute nodes need other cards' memory more than their arithmetic; one pool pays where arithmetic bounds it "
            "(short contexts, grouped queries), and a card whose memory is as cheap as its arithmetic does well by itself. A prompt in one lane delays the rows of the others, which formulas do not see: trust a simulated plan, not a bound. "
            "Attention by formula is bound by bandwidth; on processors with few vector units, and with many query heads to a KV head, it is slower than that.", ""]


def write_page(path, short, tables, prices):
    """Puts what was computed into the page; what is written by hand stays."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    first, second = text.index("## In short"), text.index("## What was put in")
    begin, middle, end = text.index("## Table 1"), text.index("## Where it holds"), text.index("## Today's prices")
    last = text.index(END_OF_PRICES)
    page = (text[:first] + "\n".join(short) + "\n" + text[second:begin] + "\n".join(tables) + "\n" + text[middle:end] + "\n".join(prices) + "\n" + text[last:])
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
    hosts(out, model)
    prices = []
    found = today(prices)
    found_simulated = today_simulated(prices)
    short = in_short(model, found, found_simulated)
    if arguments.page:
        write_page(arguments.page, short, out, prices)
    out = short + out + prices
    print("\n".join(out))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write("\n".join(out))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(model, file, indent=1)


if __name__ == "__main__":
    main()

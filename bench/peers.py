# SPDX-License-Identifier: Apache-2.0
"""Prompts and decoding, in tokens/s, on Lamina, llama.cpp and vLLM-CPU: the same cores, the same turns, the same model.

Each turn runs every system once, alone, over all points (peer_systems.py); the order turns round from turn to turn. A figure is the
median of the turns. Ratios are of what `auto` did, taken turn by turn, to a peer; what it loses to the better of the two fixed modes
is printed next to it, and for each of ours its own ratios and the floor of a step over the step. After each turn --json is written
anew, so that a run that is ended leaves the turns before.
"""

import argparse
import datetime
import statistics
import time

import cluster
import processor
import remote
from floor import bar_of, bounds, bounds_text
from peer_systems import FIXED, OWN, PEERS_NAMES, SETUP, SYSTEMS, USUAL, installed, run, versions, vllm_dtype
from results import write

LOSS_MAX = 0.05  # Of the better fixed mode.
KINDS = ("prompt", "decode")


def points(text):
    return [tuple(int(part) for part in point.split(":")) for point in text.split(",")]


def systems(text):
    names = text.split(",")
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown system {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    return names


def in_turns(names, where, turns, measure, seconds_max=None, after=lambda found, turns: None):
    """{(system, point): [Figures or None] of each turn}; `measure(name)` gives {point: Figures}. No turn is begun that would end behind
    `seconds_max` if it took as long as the longest. `after` gets what there is behind each turn."""
    found = {(name, point): [] for name in names for point in where}
    begin, longest = time.monotonic(), 0.0
    for turn in range(turns):
        turn_begin = time.monotonic()
        if seconds_max is not None and turn > 0 and turn_begin - begin + longest > seconds_max:
            print(f"{turns - turn} of {turns} turns are left out: one takes {longest:.0f} s, and {seconds_max:.0f} s are all there are",
                  flush=True)
            break
        for name in names if turn % 2 == 0 else names[::-1]:
            print(f"turn {turn + 1} of {turns}: {name}", flush=True)
            figures = measure(name)
            for point in where:
                found[name, point].append(figures.get(point))
                if point in figures:
                    print(f"  {name} rows {point[0]} context {point[1]}: prompts {figures[point].prompt:.0f}, decoding "
                          f"{figures[point].decode:.0f} tokens/s", flush=True)
        longest = max(longest, time.monotonic() - turn_begin)
        after(found, turn + 1)
    return found


def middle(values):
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def figure(turns, kind):
    """The median and the range of a system's turns; None without any."""
    values = [getattr(one, kind) for one in turns if one is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "turns": len(values)}


def ratio(turns, others, kind):
    """The median of the ratios of turns that both have."""
    return middle([getattr(one, kind) / getattr(other, kind) for one, other in zip(turns, others)
                   if one is not None and other is not None and getattr(other, kind) > 0])


def row_of(found, names, point):
    """What is written of one point."""
    of = {name: found[name, point] for name in names}
    row = {"rows": point[0], "context": point[1]}
    for kind in KINDS:
        row[kind] = {name: figure(of[name], kind) for name in names}
    ours = "auto" if "auto" in names else max((name for name in FIXED if name in names),
                                              key=lambda name: (figure(of[name], "decode") or {"median": 0})["median"], default=None)
    row["ours"] = ours
    for kind in KINDS:
        row[f"{kind}_ratio"] = {name: ratio(of[ours], of[name], kind) for name in names if name in PEERS_NAMES} if ours else {}
    row["ratios"] = {name: {kind: {peer: ratio(of[name], of[peer], kind) for peer in names if peer in PEERS_NAMES} for kind in KINDS}
                     for name in names if name in OWN}
    row["floor"] = {name: middle([one.floor for one in of[name] if one is not None]) for name in names if name in OWN}
    row["weight_bytes"] = {name: middle([one.weight_bytes for one in of[name] if one is not None]) for name in names if name in OWN}
    if "auto" in names:
        took = [one.took for one in of["auto"] if one is not None]
        row["auto_took"] = statistics.mode(took) if took else None
        fixed = {name: ratio(of["auto"], of[name], "decode") for name in FIXED if name in names}
        least = min((value for value in fixed.values() if value is not None), default=None)
        row["auto_loss"] = None if least is None else 1 - least
    return row


def shown(value, width, form=".0f"):
    return f"{'-':>{width}}" if value is None else f"{value:{width}{form}}"


def print_table(rows, names, kind):
    peers = [name for name in names if name in PEERS_NAMES]
    print(f"\n{kind}, tokens/s: median of turns\n{'rows':>5} {'context':>8} " + " ".join(f"{name:>10}" for name in names) +
          "".join(f" {'over ' + name:>15}" for name in peers))
    for row in rows:
        cells = [shown((row[kind][name] or {}).get("median"), 10) for name in names]
        print(f"{row['rows']:5} {row['context']:8} " + " ".join(cells) +
              "".join(" " + shown(row[f"{kind}_ratio"].get(name), 15, ".2f") for name in peers))


def print_losses(rows):
    for row in rows:
        if row.get("auto_loss") is not None:
            verdict = "within" if row["auto_loss"] <= LOSS_MAX else "more than"
            print(f"auto at {row['rows']} rows of {row['context']} takes {row['auto_took']}: loses {100 * row['auto_loss']:.1f}% of decoding "
                  f"to the better fixed mode, {verdict} {100 * LOSS_MAX:.0f}%")


def over(ratios):
    """Ratios to the peers in words."""
    return ", ".join(f"{value:.2f} of {peer}" for peer, value in ratios.items() if value is not None)


def print_own(rows):
    """The floor and the ratios of each of ours."""
    for row in rows:
        for name, floor in row["floor"].items():
            if floor is None:
                continue
            ratios = "; ".join(f"{kind} {words}" for kind in KINDS if (words := over(row["ratios"][name][kind])))
            print(f"{name} at {row['rows']} rows of {row['context']}: weights of {row['weight_bytes'][name] / 2**20:.1f} MiB, floor / step "
                  f"{floor:.2f} ({bar_of(row['rows']):.2f} are asked for){'; ' + ratios if ratios else ''}")


def figures(found, names, where, turns, dtype):
    """What is written behind so many turns; `dtype`: vLLM's."""
    return {"machine": processor.machine(), "class": processor.machine_class(), "date": str(datetime.date.today()), "turns": turns,
            "systems": names, "versions": versions(names), **({"vllm_dtype": dtype} if "vLLM" in names else {}),
            "rows": [row_of(found, names, point) for point in where]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here, anew after each turn")
    parser.add_argument("--points", type=points, default=points("1:1024,16:1024,64:512"),
                        help="rows:context,rows:context (default 1:1024,16:1024,64:512)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="begin no turn that would end later, going by the longest so far")
    parser.add_argument("--tokens", type=int, default=64, help="answers of the peers")
    parser.add_argument("--systems", type=systems, default=list(USUAL),
                        help=f"which to run, of {','.join(SYSTEMS)} (default {','.join(USUAL)})")
    parser.add_argument("--lanes", default="2", help="of `lamina` and `auto`: a number or auto (default 2)")
    parser.add_argument("--chunk-tokens", type=int, default=512, help="prefill.chunk_tokens of ours (default 512, as of a cluster that says nothing)")
    usual = vllm_dtype(processor.machine_class())
    parser.add_argument("--vllm-dtype", default=usual, help=f"bfloat16, or float32 where processors do not multiply it (default here {usual})")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    if arguments.server:
        remote.steps(arguments.server, arguments.points, arguments.json)
        return
    names = [name for name in arguments.systems if installed(name)]
    for name in arguments.systems:
        if name not in names:
            print(f"{name} is not installed, and left out: {SETUP}")
    if not names:
        raise SystemExit("there is no system to measure")
    if "vLLM" in names:
        print(f"vLLM computes in {arguments.vllm_dtype}")
    limits = bounds()
    print(bounds_text(limits), flush=True)
    found = in_turns(names, arguments.points, arguments.turns, lambda name: run(name, arguments.points, arguments, limits), arguments.seconds,
                     lambda found, turns: write(arguments.json, figures(found, names, arguments.points, turns, arguments.vllm_dtype)))
    rows = [row_of(found, names, point) for point in arguments.points]
    for kind in KINDS:
        print_table(rows, names, kind)
    print_own(rows)
    print_losses(rows)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Conversations that come back when their K and V no longer have slots: read from a spill tier, or computed again.

So many people take turns on two clusters that differ in the spill tier alone. All conversations together need about twice the slots there are by the last
round, so that each has lost its own when its next turn comes. Answers are compared.
"""

import argparse
import json
import statistics
import tempfile

import cluster
import processor
import remote
from chat import turn

WORD = "Person {}, item {} of the list."


def words_of(person, number, tokens):
    return " ".join(WORD.format(person, 100 * number + i) for i in range(tokens // 11))


def node_of(running):
    return next(node for node in running.status()["nodes"] if node["name"] == "m0")


def cached_tokens(status):
    """Of the prefix cache, that went to spill tiers and came back."""
    tiers = [node["spill"] for node in status["nodes"] if node.get("spill")]
    return [sum(tier[key] for tier in tiers) for key in ("cached_tokens_out", "cached_tokens_in")]


def on_one(arguments):
    """The conversations on a cluster that serves: what it keeps, and where, is its own setting."""
    rows, said = [], [""] * arguments.people
    with cluster.Remote(arguments.server) as running:
        what = cluster.described(running)
        print(f"{what}\n\n| round | prompt tokens | found | first token, ms |\n|---|---|---|---|")
        before = cached_tokens(running.status())
        for number in range(arguments.rounds):
            for person in range(arguments.people):
                said[person] += words_of(person, number, arguments.new_tokens)
                answer = turn(running, said[person], arguments.answer_tokens)
                said[person] += answer["text"] + " "
                rows.append({"round": number, "person": person, **{key: answer[key] for key in ("prompt_tokens", "cached_tokens", "ttft_ms")}})
            of = [row for row in rows if row["round"] == number]
            prompt, cached = (statistics.mean(row[key] for row in of) for key in ("prompt_tokens", "cached_tokens"))
            print(f"| {number + 1} | {prompt:.0f} | {cached:.0f} | {statistics.median(row['ttft_ms'] for row in of):.0f} |", flush=True)
        out, back = (now - then for now, then in zip(cached_tokens(running.status()), before))
    print(f"\nspill tiers: {out} tokens out, {back} back")
    remote.write(arguments.json, what, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=440, help="of each turn, about")
    parser.add_argument("--answer-tokens", type=int, default=32)
    parser.add_argument("--capacity", default="180MiB", help="of the memory node")
    parser.add_argument("--path", default=tempfile.gettempdir(), help="folder of the tier")
    parser.add_argument("--tier", default="1GiB", help="its capacity, of which blocks take half")
    parser.add_argument("--json", help="also write the figures to this file")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        on_one(arguments)
        return
    print(f"machine {processor.machine()}; compute node on core 0, memory node on core 1, nothing else runs")
    options = {"memory_nodes": 1, "capacity": arguments.capacity, "prefix_cache": "auto", "weights": "bf16"}
    rows = []
    with cluster.Cluster("auto", spill=(arguments.path, arguments.tier), **options) as tier, cluster.Cluster("auto", **options) as plain:
        said = [{"tier": "", "plain": ""} for _ in range(arguments.people)]
        for number in range(arguments.rounds):
            for person, words in enumerate(said):
                row = {"round": number, "person": person}
                new = words_of(person, number, arguments.new_tokens)
                for name, running in (("plain", plain), ("tier", tier)):
                    answer = turn(running, words[name] + new, arguments.answer_tokens)
                    words[name] += new + answer["text"] + " "
                    row |= {"prompt_tokens": answer["prompt_tokens"], f"{name}_cached": answer["cached_tokens"], f"{name}_ms": answer["ttft_ms"]}
                    row[f"{name}_ids"] = answer["token_ids"]
                if row.pop("tier_ids") != row.pop("plain_ids"):
                    raise RuntimeError(f"round {number}, person {person}: another answer with the tier")
                rows.append(row)
        node = node_of(tier)
    print(f"{arguments.people} conversations of {arguments.rounds} turns, {sum(row['prompt_tokens'] + arguments.answer_tokens for row in rows[-arguments.people:])} "
          f"tokens in the end, {node['slots_total']} slots\n")
    print("| round | prompt tokens | found without | found with the tier | first token without, ms | with, ms | ratio |\n|---|---|---|---|---|---|---|")
    for number in range(arguments.rounds):
        of = [row for row in rows if row["round"] == number]
        mean = {key: statistics.mean(row[key] for row in of) for key in ("prompt_tokens", "plain_cached", "tier_cached")}
        plain_ms, tier_ms = (statistics.median(row[key] for row in of) for key in ("plain_ms", "tier_ms"))
        print(f"| {number + 1} | {mean['prompt_tokens']:.0f} | {mean['plain_cached']:.0f} | {mean['tier_cached']:.0f} | {plain_ms:.0f} | {tier_ms:.0f} | "
              f"{tier_ms / plain_ms:.2f} |")
    later = [row for row in rows if row["round"] > 0]
    total = {name: sum(row["prompt_tokens"] for row in later) / sum(row[f"{name}_ms"] for row in later) * 1e3 for name in ("plain", "tier")}
    spill = node["spill"]
    print(f"\nprompt tokens a second from the second turn on: {total['plain']:.0f} without, {total['tier']:.0f} with: {total['tier'] / total['plain']:.2f}")
    print(f"the tier: {spill['cached_tokens_out']} tokens out, {spill['cached_tokens_in']} back, {spill['failures']} failures; read at "
          f"{spill['read_bytes_per_second'] / 1e9:.2f} GB/s when measured; the data thread took note of it for {node['part_seconds'].get('spill', 0):.2f} s")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "rates": total, "spill": spill}, file, indent=2)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A load that needs twice the slots there are: with a spill tier and with recomputation alone, in turns, on clusters of their own.

How many times the tokens a second the tier is to bring is predicted from the turns of recomputation, before one with the tier: of their time,
what the tokens that were computed again take at the rate of prompts by themselves, less what their K and V take to the tier and back at its
rates. --find predicts that for all --loads, on slots for 1 / --times of their tokens, without running them: prompts and three loads that fit
are measured in a minute, and preemptions are counted as the scheduler makes them. It compares where most is predicted.
"""

import argparse
import copy
import dataclasses
import json
import statistics
import subprocess
import tempfile

import cluster
import floor
import remote
import spill_model
import spill_watch
from programs import BIN

NEAR = 1.3  # A sequence read back takes so many times its bytes over the measured read, at most.
ATTEND = 0.95  # While sequences are moved attention of others reads so much of what it reads right before and after, at least.
FASTER = 1.5  # Tokens a second over recomputation alone, where that is predicted.
PROMPTS = 4  # At once, of which the rate of prompts is taken.
FORM_SHARE = {"bf16": 1.0, "int8": 0.53}  # Bytes of a token over those in bf16, with heads of 64.
# Answers fill the slots, not prompts, so that most of what has lost its slots is long; many rows take little more for a token than prompts.
LOADS = "14x600x400,28x60x460,64x100x100,64x40x300,64x32x64,64x16x64,96x20x240,128x16x180,128x16x64"
# That fit, as rows and tokens of each prompt: through them goes what a step takes.
MEASURED = ((2, 64), (64, 32), (12, 1000))
MEASURED_CAPACITY = "1GiB"


def requests_on(running, rows, requests, context, output):
    """What `lamina bench` says of it."""
    done = subprocess.run(
        [BIN / "lamina", "bench", "--json", "--server", running.address, "--concurrency", str(rows), "--requests", str(requests),
         "--input-tokens", str(context), "--output-tokens", str(output)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def load_on(running, arguments):
    return requests_on(running, arguments.rows, arguments.rows, arguments.context, arguments.output)


def bytes_per_token(arguments):
    return floor.KV_BYTES * FORM_SHARE[arguments.kv]


def prompt_rate(running, arguments):
    """Tokens a second of prompts that nothing else runs with, as long as sequences that lose their slots may be."""
    requests, tokens = 3 * PROMPTS, arguments.context + arguments.output // 2
    return requests * tokens / requests_on(running, PROMPTS, requests, tokens, 1)["seconds"]


def started(arguments, spills):
    """Weights are widened, or each start might choose another form of them."""
    tier = (arguments.path, arguments.tier) if spills else None
    return cluster.Cluster(arguments.lanes, memory_nodes=1, capacity=arguments.capacity, running_max=arguments.rows, spill=tier, weights="bf16", kv_form=arguments.kv,
                           sequence_tokens_max=2 * (arguments.context + arguments.output))


def node_of(status):
    return next(node for node in status["nodes"] if node["name"] == "m0")


def predicted_of(seconds, again, prompt_tokens_per_second, rates, arguments):
    """Tokens a second with the tier over those of so many seconds of recomputation: had all that was computed again gone there and come back."""
    moved = again * bytes_per_token(arguments) * (1 / rates["write_bytes_per_second"] + 1 / rates["read_bytes_per_second"])
    return seconds / (seconds - again / prompt_tokens_per_second + moved)


def predicted(turns, rates, arguments):
    return predicted_of(mean(turns, "seconds"), mean(turns, "computed_again"), mean(turns, "prompt_tokens_per_second"), rates, arguments)


def step_seconds(running):
    """Of all that came back so far, from the reports to plans of steps with them."""
    return sum(value for name, value in running.metrics().items() if name.startswith("lamina_restore_step_seconds_sum"))


def turn(arguments, spills):
    """Figures of one load."""
    with started(arguments, spills) as running:
        rate = prompt_rate(running, arguments)
        before = running.status()
        with spill_watch.Watch(running) as watch:  # Both ways: it takes some of the time.
            load = load_on(running, arguments)
        after = running.status()
        to_steps = step_seconds(running)
    node = node_of(after)
    next_to_moves = spill_watch.next_to_moves(watch.looks)
    computed = after["tokens_prefilled"] - before["tokens_prefilled"]
    return {"tokens_per_second": load["output_tokens_per_second"], "seconds": load["seconds"], "failed": load["failed"],
            "prompt_tokens_per_second": rate, "computed_again": max(0, computed - arguments.rows * arguments.context),
            "preemptions": after["preemptions"] - before["preemptions"], "slots": node["slots_total"],
            "attend_bytes_per_second": node["kv_bytes_read"] / max(node["part_seconds"].get("attend", 0), 1e-9),
            "tier_seconds": node["part_seconds"].get("spill", 0.0), "spill": node["spill"], "step_seconds": to_steps, "next_to_moves": dataclasses.asdict(next_to_moves)}


def tier_counts(status):
    """Sums over the nodes' spill tiers; empty where there is none."""
    tiers = [node["spill"] for node in status["nodes"] if node["spill"]]
    return {key: sum(tier[key] for tier in tiers) for key in ("sequences_out", "sequences_in", "bytes_out", "bytes_in", "seconds_in") if tiers}


def on_one(arguments):
    """The load on a cluster that serves: whether it has a tier, and how many slots, is its own setting."""
    with cluster.Remote(arguments.server) as running:
        what = cluster.described(running)
        before = running.status()
        load, after = load_on(running, arguments), running.status()
    slots = sum(node["slots_total"] for node in after["nodes"])
    counts = tier_counts(before)
    row = {"tokens_per_second": load["output_tokens_per_second"], "seconds": load["seconds"], "failed": load["failed"],
           "preemptions": after["preemptions"] - before["preemptions"], "slots": slots,
           "spill": {key: value - counts.get(key, 0) for key, value in tier_counts(after).items()}}
    print(f"{what}\n{arguments.rows} requests of {arguments.context} + {arguments.output} tokens, "
          f"{arguments.rows * (arguments.context + arguments.output) / max(slots, 1):.2f} times the {slots} slots: "
          f"{row['tokens_per_second']:.1f} tokens/s, {row['preemptions']} preempted, {row['failed']} failed")
    spill = row["spill"]
    print("no spill tier" if not spill else
          f"{spill['sequences_out']} sequences out ({spill['bytes_out'] / 1e6:.0f} MB), {spill['sequences_in']} back "
          f"({spill['bytes_in'] / 1e6:.0f} MB), in {1e3 * spill['seconds_in'] / max(spill['sequences_in'], 1):.1f} ms each")
    remote.write(arguments.json, what, [row])


def mean(turns, key):
    return statistics.mean(one[key] for one in turns)


def parts_of_reads(turns):
    """Where the time of what was read back went, in ms of each sequence."""
    tiers = [one["spill"] for one in turns]

    def each(key):
        return 1e3 * sum(tier[key] for tier in tiers) / sum(tier["sequences_in"] for tier in tiers)

    named = {"queued": each("queued_seconds"), "at the disk": each("reading_seconds"), "behind the last read": each("behind_seconds")}
    return {**named, "between reads": max(0.0, each("seconds_in") - sum(named.values())), "of all threads to check and copy": each("copying_seconds"),
            "from the report to a step": 1e3 * sum(one["step_seconds"] for one in turns) / sum(tier["sequences_in"] for tier in tiers)}


def moving_share(turns):
    """The part of the loads' time in which something was moved, at most: as if no two moves had been under way at once."""
    return sum(one["spill"]["seconds_in"] + one["spill"]["seconds_out"] for one in turns) / sum(one["seconds"] for one in turns)


def report(spilled, recomputed, arguments):
    """Of both ways, and the ratios."""
    print("| preempted sequences | tokens/s | preempted | tokens computed again | attention reads | failed |\n|---|---|---|---|---|---|")
    for name, turns in (("recomputed", recomputed), ("spilled where that is faster", spilled)):
        print(f"| {name} | {mean(turns, 'tokens_per_second'):.1f} | {mean(turns, 'preemptions'):.0f} | {mean(turns, 'computed_again'):.0f} | "
              f"{mean(turns, 'attend_bytes_per_second') / 1e9:.2f} GB/s | {sum(one['failed'] for one in turns)} |")
    tiers = [one["spill"] for one in spilled]
    out, back = (sum(tier[key] for tier in tiers) for key in ("sequences_out", "sequences_in"))
    print(f"\n{out} sequences out ({sum(tier['bytes_out'] for tier in tiers) / 1e6:.0f} MB), {back} back "
          f"({sum(tier['bytes_in'] for tier in tiers) / 1e6:.0f} MB); the data thread took note of them for {mean(spilled, 'tier_seconds'):.2f} s of "
          f"{mean(spilled, 'seconds'):.1f} s")
    rates = {key: mean(tiers, key) for key in ("write_bytes_per_second", "read_bytes_per_second")}
    next_to_moves = spill_watch.sum_of([spill_watch.NextToMoves(**one["next_to_moves"]) for one in spilled])
    ratios = {"tokens_per_second_ratio": mean(spilled, "tokens_per_second") / mean(recomputed, "tokens_per_second"),
              "predicted_ratio": predicted(recomputed, rates, arguments),
              "attention_ratio": mean(spilled, "attend_bytes_per_second") / mean(recomputed, "attend_bytes_per_second"),
              "attention_next_to_moves": next_to_moves.ratio}
    asked = f"target {FASTER}" if ratios["predicted_ratio"] >= FASTER else f"{FASTER} is asked where it is predicted"
    print(f"tokens/s over recomputation: {ratios['tokens_per_second_ratio']:.2f}, predicted {ratios['predicted_ratio']:.2f} ({asked})")
    print(f"attention while something was moved, over that right before and after: {ratios['attention_next_to_moves']:.3f} (target at least {ATTEND}), "
          f"by {next_to_moves.stretches} stretches of {1e3 * spill_watch.LOOK_SECONDS:.0f} ms, of whose time moves took {100 * next_to_moves.share:.0f}%")
    print(f"attention over all of the loads, over that without the tier: {ratios['attention_ratio']:.3f}; something was moved for "
          f"{100 * moving_share(spilled):.1f}% of their time at most, and slots lie otherwise")
    if back > 0:
        bound = sum(tier["bytes_in"] / tier["read_bytes_per_second"] for tier in tiers)
        reads = [tier["read_bytes_per_second"] / 1e9 for tier in tiers]
        ratios["restore_ratio"] = sum(tier["seconds_in"] for tier in tiers) / bound
        print(f"read back in {1e3 * sum(tier['seconds_in'] for tier in tiers) / back:.1f} ms each, {ratios['restore_ratio']:.2f} of bytes over "
              f"the measured read of {statistics.mean(reads):.2f} GB/s, {min(reads):.2f} to {max(reads):.2f} at the starts (target at most {NEAR})")
        ratios["parts_of_reads_ms"] = parts_of_reads(spilled)
        print(f"of each, ms: {', '.join(f'{value:.1f} {name}' for name, value in ratios['parts_of_reads_ms'].items())}; "
              f"{100 * sum(tier['ahead_bytes'] for tier in tiers) / sum(tier['bytes_in'] for tier in tiers):.0f}% of the bytes had been read ahead")
    return ratios


def with_load(arguments, load):
    """For a load of ROWSxCONTEXTxOUTPUT, on slots for 1 / --times of its tokens."""
    chosen = copy.copy(arguments)
    chosen.rows, chosen.context, chosen.output = map(int, load.split("x"))
    tokens = chosen.rows * (chosen.context + chosen.output)
    chosen.capacity = f"{int(tokens / arguments.times * floor.KV_BYTES)}B"
    return chosen


def measured(arguments):
    """What steps take, and the tier's rates, of one cluster that has room for all."""
    points = []
    with cluster.Cluster(arguments.lanes, memory_nodes=1, capacity=MEASURED_CAPACITY, spill=(arguments.path, arguments.tier),
                         weights="bf16") as running:
        rates = node_of(running.status())["spill"]
        for rows, context in MEASURED:
            prompts, decoding = running.prompt_and_decode_rates(rows, context)
            points.append((rows, decoding.context_tokens, rows / decoding.tokens_per_second))
            print(f"{rows} rows of {decoding.context_tokens / rows:.0f} tokens: {decoding.tokens_per_second:.0f} tokens/s, prompts {prompts:.0f}", flush=True)
    times = spill_model.times_through(points, prompts)
    print(f"a step takes {1e3 * times.step:.1f} ms, {1e3 * times.row:.2f} a row and {1e6 * times.context:.2f} us a token of context; the tier writes "
          f"{rates['write_bytes_per_second'] / 1e9:.2f} GB/s and reads {rates['read_bytes_per_second'] / 1e9:.2f}\n", flush=True)
    return times, rates


def find(arguments):
    """The load for which most is predicted, of those whose turn is short enough."""
    times, rates = measured(arguments)
    best = None
    print("| load | slots | seconds | tokens/s | preempted | computed again | predicted |\n|---|---|---|---|---|---|---|")
    for load in arguments.loads.split(","):
        chosen = with_load(arguments, load)
        slots = int(chosen.capacity.removesuffix("B")) // floor.KV_BYTES
        one = spill_model.outcome_of(chosen.rows, chosen.context, chosen.output, slots, times)
        ratio = predicted_of(one.seconds, one.computed_again, 1 / times.prompt, rates, chosen)
        print(f"| {load} | {slots} | {one.seconds:.0f} | {chosen.rows * chosen.output / one.seconds:.1f} | {one.preemptions} | {one.computed_again} | "
              f"{ratio:.2f} |", flush=True)
        if one.seconds <= arguments.seconds and (best is None or ratio > best[0]):
            best = (ratio, load, chosen)
    if best is None:
        raise SystemExit(f"a turn of each load takes more than --seconds {arguments.seconds:.0f}: name smaller --loads")
    asked = "" if best[0] >= FASTER else f"; {FASTER} for none of at most {arguments.seconds:.0f} s"
    print(f"\nmost is predicted for {best[1]}, {best[0]:.2f} times{asked}\n", flush=True)
    return best[2]


def measured_turn(arguments, spills):
    """turn(), and says how it went."""
    one = turn(arguments, spills)
    print(f"a turn with {'the tier' if spills else 'recomputation'}: {one['tokens_per_second']:.1f} tokens/s in {one['seconds']:.1f} s", flush=True)
    return one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", default="160MiB", help="of the memory node")
    parser.add_argument("--rows", type=int, default=14, help="requests at once")
    parser.add_argument("--context", type=int, default=600, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=400, help="tokens of each answer")
    parser.add_argument("--find", action="store_true", help="compare with the load for which most is predicted")
    parser.add_argument("--loads", default=LOADS, help="of --find, ROWSxCONTEXTxOUTPUT, ...")
    parser.add_argument("--times", type=float, default=2.0, help="of --find, a load's tokens over the slots")
    parser.add_argument("--seconds", type=float, default=60.0, help="of --find, a turn is to take no longer, by its prediction")
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--turns", type=int, default=2, help="of each way")
    parser.add_argument("--kv", choices=("bf16", "int8"), default="bf16", help="the form of K and V")
    parser.add_argument("--path", default=tempfile.gettempdir(), help="folder of the tier")
    parser.add_argument("--tier", default="1GiB", help="its capacity")
    parser.add_argument("--json", help="also write the figures to this file")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    if arguments.server:
        on_one(arguments)
        return
    if arguments.find and arguments.kv != "bf16":
        parser.error("--find is of --kv bf16: with int8 a node's capacity has to hold open blocks too, so give --rows, --context and --capacity")
    if arguments.find:
        arguments = find(arguments)
    spilled, recomputed = [], []
    for _ in range(arguments.turns):
        recomputed.append(measured_turn(arguments, spills=False))
        spilled.append(measured_turn(arguments, spills=True))
    slots = spilled[0]["slots"]
    print(f"\n{arguments.rows} requests of {arguments.context} + {arguments.output} tokens, "
          f"{arguments.rows * (arguments.context + arguments.output) / slots:.2f} times the {slots} slots\n")
    ratios = report(spilled, recomputed, arguments)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"load": {key: getattr(arguments, key) for key in ("rows", "context", "output", "capacity", "kv")}, "spilled": spilled, "recomputed": recomputed, **ratios}, file, indent=2)


if __name__ == "__main__":
    main()

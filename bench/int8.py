# SPDX-License-Identifier: Apache-2.0
"""What K and V as INT8 cost in perplexity: SmolLM2 on the committed text, scored with both forms on clusters of their own."""

import argparse
import json
import math
import subprocess

import cluster
import remote
from programs import BIN, ROOT

GOLDENS = ROOT / "tests/fidelity/goldens/smollm2.json"
FORMS = ("bf16", "int8")
NEAR = 0.002  # Of bf16's perplexity.


def scored_by(address, tokens, *flags):
    done = subprocess.run([BIN / "lamina", "score", "--json", "--server", address, "--tokens", ",".join(map(str, tokens)), *flags],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    scored = [one for one in json.loads(done.stdout)["logprobs"] if one is not None]
    return math.exp(-sum(scored) / len(scored))


def on_one(arguments, tokens):
    """Perplexity on a cluster that serves, with each form of K and V that it has."""
    with cluster.Remote(arguments.server) as running:
        what, status = cluster.described(running), running.status()
        if "smollm2" not in status["model"].lower():
            raise SystemExit(f"--server: {arguments.server} serves {status['model']}; the committed text is tokens of SmolLM2")
        forms = sorted({policy["kv"] for policy in status["policies"]} - {""}) or [""]
        rows = [{"kv": form, "perplexity": scored_by(running.address, tokens, *(["--kv", form] if form else []))} for form in forms]
    print(f"{what}\n{len(tokens)} tokens\n\n| kv | perplexity |\n|---|---|")
    for row in rows:
        print(f"| {row['kv'] or 'as its file says'} | {row['perplexity']:.4f} |")
    remote.write(arguments.json, what, rows)


def perplexity(form, tokens):
    """And the tokens that a memory node of 256 MiB has room for."""
    with cluster.Cluster(1, memory_nodes=1, capacity="256MiB", running_max=8, kv_form=form) as running:
        slots = max(node["slots_total"] for node in running.status()["nodes"])
        return scored_by(running.address, tokens), slots


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4000, help="of the text, from its beginning")
    parser.add_argument("--json", help="also write the figures to this file")
    cluster.add_server(parser)
    arguments = parser.parse_args()
    tokens = json.loads(GOLDENS.read_text())["text"]["tokens"][:arguments.tokens]
    if arguments.server:
        on_one(arguments, tokens)
        return
    found = {form: perplexity(form, tokens) for form in FORMS}
    print(f"{len(tokens)} tokens\n\n| kv | perplexity | over bf16 | tokens in 256 MiB |\n|---|---|---|---|")
    for form, (value, slots) in found.items():
        print(f"| {form} | {value:.4f} | {value / found['bf16'][0]:.5f} | {slots} |")
    ratio = found["int8"][0] / found["bf16"][0]
    print(f"\nwithin {100 * NEAR:g}% of bf16: {'yes' if abs(ratio - 1) <= NEAR else 'no'}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({form: {"perplexity": value, "slots": slots} for form, (value, slots) in found.items()}, file, indent=2)


if __name__ == "__main__":
    main()

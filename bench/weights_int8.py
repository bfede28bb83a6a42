# SPDX-License-Identifier: Apache-2.0
"""Weights as INT8 against bf16: perplexity, and decoding in turns on the same cores, of the quick start's model with matrices of bf16.

Both are scored on the committed text first. Then two clusters decode in turns of one run (turns.py), policy local on --cores, or a
compute node on core 0 with a memory node on core 1 with --pools. gain = tokens/s with INT8 / tokens/s with bf16.
"""

import argparse
import json
import math
import subprocess

import cluster
import processor
import widen_gguf
from programs import BIN, ROOT
from turns import Side, compare, points, print_parts

GOLDENS = ROOT / "tests/fidelity/goldens/smollm2.json"
FORMS = ("int8", "bf16")
NEAR = 0.002  # Of bf16's perplexity.


def perplexity(model, form, tokens):
    with cluster.Cluster(1, local=True, compute_cores="0-1", capacity="256MiB", running_max=8, weights=form, model=model) as running:
        done = subprocess.run([BIN / "lamina", "score", "--json", "--server", running.address, "--tokens", ",".join(map(str, tokens))],
                              capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    scored = [one for one in json.loads(done.stdout)["logprobs"] if one is not None]
    return math.exp(-sum(scored) / len(scored))


def score(model, count):
    tokens = json.loads(GOLDENS.read_text())["text"]["tokens"][:count]
    found = {form: perplexity(model, form, tokens) for form in FORMS}
    ratio = found["int8"] / found["bf16"]
    near = abs(ratio - 1) <= NEAR
    print(f"perplexity on {len(tokens)} tokens: int8 {found['int8']:.4f}, bf16 {found['bf16']:.4f}, ratio {ratio:.5f}; "
          f"within {100 * NEAR:g}%: {'yes' if near else 'no'}", flush=True)
    return {"tokens": len(tokens), **found, "ratio": ratio, "near": near}


def decode(model, arguments):
    keys = ({"lanes": 1, "memory_nodes": 1} if arguments.pools
            else {"lanes": "auto", "compute_cores": arguments.cores, "local": True})
    rows_out = []
    int8, bf16 = (Side(form, weights=form, model=model, capacity="1GiB", **keys) for form in FORMS)
    with int8, bf16:
        for side in (int8, bf16):
            nodes = side.running.status().get("nodes", [])
            print(f"{side.name}: " + next((node["kernels"] for node in nodes if node.get("role") == "compute"), ""))
        for rows, context in arguments.points:
            found = compare([int8, bf16], rows, context, arguments.turns, arguments.seconds)
            rows_out.append(found)
            gains = [1 / ratio for ratio in found["int8"]["ratios"]]
            print(f"{rows:3} rows of {context:4}: int8 {found['int8']['tokens_per_second']:7.1f} tokens/s, bf16 "
                  f"{found['bf16']['tokens_per_second']:7.1f}, gain {1 / found['int8']['ratio']:.2f} "
                  f"({min(gains):.2f} to {max(gains):.2f})", flush=True)
            print_parts(found, FORMS)
    return rows_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--tokens", type=int, default=4000, help="of the text, from its beginning; 0: no scores")
    parser.add_argument("--points", type=points, default=points("1x1024,4x1024,16x1024"), help="rows x context")
    parser.add_argument("--pools", action="store_true", help="a compute node with a memory node")
    parser.add_argument("--cores", default="0-1", help="of the compute node, without --pools")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    arguments = parser.parse_args()
    print(f"machine   {processor.machine()}", flush=True)
    model = widen_gguf.model()
    scored = score(model, arguments.tokens) if arguments.tokens else None
    found = {"machine": processor.machine(), "perplexity": scored, "rows": decode(model, arguments)}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(found, out, indent=1)


if __name__ == "__main__":
    main()

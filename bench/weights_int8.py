# SPDX-License-Identifier: Apache-2.0
"""Weights as INT8 against bf16: perplexity, and decoding in turns on the same cores, of the quick start's model with matrices of bf16.

Both are scored on the committed text and on pages of docs/ first. Then two clusters decode in turns of one run (turns.py), policy local on --cores, or a
compute node on core 0 with a memory node on core 1 with --pools. gain = tokens/s with INT8 / tokens/s with bf16.
"""

import argparse
import json
import math
import statistics
import subprocess

import cluster
import processor
import widen_gguf
from programs import BIN, ROOT
from turns import Side, compare, points, print_parts

GOLDENS = ROOT / "tests/fidelity/goldens/smollm2.json"
FORMS = ("int8", "bf16")
NEAR = 0.002  # Of bf16's perplexity.
# One text of some thousand tokens says little: what a token gains or loses by roundings scatters by a tenth.
PAGES = ("docs/ARCHITECTURE.md", "docs/operations.md", "docs/gateway.md")
PAGES_CHARACTERS = 60000
PIECE = 4000  # Tokens that are scored at once.


def log_probabilities(model, form, texts):
    """Of each text's tokens but the first, one text after the other."""
    scored = []
    with cluster.Cluster(1, local=True, compute_cores="0-1", capacity="256MiB", running_max=8, weights=form, model=model) as running:
        def lamina(*arguments):
            done = subprocess.run([BIN / "lamina", *arguments, "--json", "--server", running.address], capture_output=True, text=True,
                                  check=False)
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
            return json.loads(done.stdout)

        for text in texts:
            tokens = text if isinstance(text, list) else lamina("tokenize", "--prompt", text)["tokens"]
            for first in range(0, len(tokens), PIECE):
                piece = lamina("score", "--tokens", ",".join(map(str, tokens[first:first + PIECE])))
                scored += [one for one in piece["logprobs"] if one is not None]
    return scored


def compared(name, int8, bf16):
    """Perplexities, their ratio, and its standard error."""
    differences = [one - other for one, other in zip(int8, bf16)]
    of = {form: math.exp(-statistics.mean(scored)) for form, scored in (("int8", int8), ("bf16", bf16))}
    ratio = of["int8"] / of["bf16"]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    print(f"perplexity of {name}, {len(differences)} tokens: int8 {of['int8']:.4f}, bf16 {of['bf16']:.4f}, ratio {ratio:.5f} "
          f"(standard error {error:.5f}); within {100 * NEAR:g}%: {'yes' if abs(ratio - 1) <= NEAR else 'no'}", flush=True)
    return {"text": name, "tokens": len(differences), **of, "ratio": ratio, "standard_error": error}


def score(model, pages):
    texts = [json.loads(GOLDENS.read_text())["text"]["tokens"]]
    texts += ["".join((ROOT / page).read_text() for page in PAGES)[:PAGES_CHARACTERS]] if pages else []
    found = {form: log_probabilities(model, form, texts) for form in FORMS}
    own = len(texts[0]) - 1
    parts = [("the committed text", slice(0, own))] + ([("pages of docs/", slice(own, None)), ("both", slice(0, None))] if pages else [])
    return [compared(name, found["int8"][part], found["bf16"][part]) for name, part in parts]


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
    parser.add_argument("--scores", choices=("both", "text", "none"), default="both", help="perplexity of the text and the pages, or of the text")
    parser.add_argument("--points", type=lambda text: points(text) if text != "none" else [], default=points("1x1024,4x1024,16x1024"),
                        help="rows x context, or none")
    parser.add_argument("--pools", action="store_true", help="a compute node with a memory node")
    parser.add_argument("--cores", default="0-1", help="of the compute node, without --pools")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn")
    arguments = parser.parse_args()
    print(f"machine   {processor.machine()}", flush=True)
    model = widen_gguf.model()
    scored = score(model, arguments.scores == "both") if arguments.scores != "none" else []
    found = {"machine": processor.machine(), "perplexity": scored, "rows": decode(model, arguments) if arguments.points else []}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump(found, out, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/alisa_sparsity.json: how sparse the weights of attention are, of dense attention and of ALISA's window sums.

Float64, by the reference of make_alisa_goldens.py, over decode rows behind its first prompt. As in the paper's Figures 3 and 10 an element counts
as zero below 1% of its row's largest one, in each head by itself; tokens that a row does not attend to are zeros. Means over layers, heads and rows.

Needs: numpy, gguf. Run: make_alisa_sparsity.py MODEL.gguf [--rows N]; a minute.
"""
import argparse
import json
import pathlib

import make_alisa_goldens as reference
import numpy as np

RATIOS = [0.8, 0.5, 0.35, 0.2]
ZERO = 0.01  # Of the row's largest element.


def zeros(model, q, k, tokens):
    """Share of zeros in the weights of one row over so many tokens, of which k has those that are attended to; mean over heads."""
    group = model.heads // model.kv_heads
    total = 0
    for kv in range(model.kv_heads):
        weights = reference.softmax(q[kv * group:(kv + 1) * group] @ k[:, kv].T / np.sqrt(model.head_dim))
        total += tokens * group - (weights >= ZERO * weights.max(axis=-1, keepdims=True)).sum()
    return total / (tokens * model.heads)


def decode(model, tokens, variants, rows):
    """Means of each variant, over layers and rows."""
    sums = np.zeros(len(variants))
    for n in range(reference.PROMPT, reference.PROMPT + rows):
        x = np.repeat(model.w["token_embd.weight"][tokens[n]][None], len(variants), axis=0)
        positions = np.full(len(variants), n)
        for layer in range(model.layers):
            q, k, v = model.qkv(x, layer, positions)
            out = np.empty_like(q)
            for i, variant in enumerate(variants):
                variant.k[layer, n], variant.v[layer, n] = k[i], v[i]
                seen = np.append(variant.chosen(layer, n), n)
                out[i], summed = reference.attend(model, q[i], variant.k[layer, seen], variant.v[layer, seen])
                if variant.matrix is not None:
                    variant.matrix[layer, n, seen] = summed
                sums[i] += zeros(model, q[i], variant.k[layer, seen], n + 1)
            x = model.rest(x, out, layer)
    return sums / (rows * model.layers)


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--output", type=pathlib.Path, default=here / "goldens" / "alisa_sparsity.json")
    arguments = parser.parse_args()
    text = json.loads((here / "goldens" / "smollm2.json").read_text())["text"]["tokens"]
    first = reference.FIRST[0]
    tokens = text[first:first + reference.TOKENS]
    model = reference.Model(arguments.model)
    variants = [reference.Variant(model, "dense", 1.0, False)] + [reference.Variant(model, "window_sums", ratio, False) for ratio in RATIOS]
    reference.prefill(model, tokens, variants, False)
    found = decode(model, tokens, variants, arguments.rows)
    runs = [{"pattern": variant.pattern, "ratio": variant.ratio, "zeros": round(float(share), 4)} for variant, share in zip(variants, found)]
    print(runs)
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump({"first": first, "prompt": reference.PROMPT, "rows": arguments.rows, "below": ZERO, "runs": runs}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/alisa.json: how likely the quick start's model finds a text when decode steps attend to a part of the tokens.

Algorithm 1 of ALISA in float64, straightforward and slow: the first PROMPT tokens attend to all before them; each token behind
them is a decode step that attends to the k most recent tokens before it and the k earlier ones with the largest attention
sums over the last k rows (summed over heads), k = round(n r / 2), and to itself. Next to it the two fixed patterns of as many
tokens, and dense attention. The text's tokens are those of goldens/smollm2.json.

The same with K and V as INT8: the row at position p reads blocks of 64 tokens that end at or before p as INT8, K with a scale
for each channel of a block and V with one for each token (docs/design/attention_numerics.md, INT8).

Needs: numpy, gguf. Run: make_alisa_goldens.py MODEL.gguf [--only bf16|int8] [--patterns window_sums,...] [--passages N]
[--output FILE]; some minutes for each form and passage. Forms, patterns and passages that are not computed stay in the file as
they are.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np

FIRST = [0, 2464]  # Where the passages begin.
PROMPT = 768
TOKENS = 1536
RATIOS = [0.8, 0.5, 0.35, 0.2]
PATTERNS = ["window_sums", "local", "strided"]
BLOCK = 64  # Tokens of one scale of K.


class Model:
    """A LLaMA whose weights are as the file has them: rope turns pairs of neighbours."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = {name: value.contents() for name, value in reader.fields.items() if name.startswith("llama.")}
        self.layers = field["llama.block_count"]
        self.heads = field["llama.attention.head_count"]
        self.kv_heads = field["llama.attention.head_count_kv"]
        self.eps = field["llama.attention.layer_norm_rms_epsilon"]
        self.theta = field["llama.rope.freq_base"]
        self.w = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
                  for tensor in reader.tensors}
        self.head_dim = self.w["blk.0.attn_q.weight"].shape[0] // self.heads

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.eps) * self.w[name]

    def rope(self, x, positions):
        """x: [rows, heads, head_dim]"""
        angles = positions[:, None] * self.theta ** (-np.arange(0, self.head_dim, 2) / self.head_dim)
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * c - odd * s
        out[..., 1::2] = even * s + odd * c
        return out

    def qkv(self, x, layer, positions):
        h = self.norm(x, f"blk.{layer}.attn_norm.weight")
        rows = len(x)
        q = (h @ self.w[f"blk.{layer}.attn_q.weight"].T).reshape(rows, self.heads, self.head_dim)
        k = (h @ self.w[f"blk.{layer}.attn_k.weight"].T).reshape(rows, self.kv_heads, self.head_dim)
        v = (h @ self.w[f"blk.{layer}.attn_v.weight"].T).reshape(rows, self.kv_heads, self.head_dim)
        return self.rope(q, positions), self.rope(k, positions), v

    def rest(self, x, attended, layer):
        x = x + attended.reshape(len(x), -1) @ self.w[f"blk.{layer}.attn_output.weight"].T
        h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
        gate = h @ self.w[f"blk.{layer}.ffn_gate.weight"].T
        up = h @ self.w[f"blk.{layer}.ffn_up.weight"].T
        return x + (gate / (1 + np.exp(-gate)) * up) @ self.w[f"blk.{layer}.ffn_down.weight"].T

    def logits(self, x):
        return self.norm(x, "output_norm.weight") @ self.w["token_embd.weight"].T


def softmax(scores):
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def attend(model, q, k, v):
    """q: [heads, head_dim]; k, v: [tokens, kv_heads, head_dim]. Returns the output, and the weights summed over heads."""
    group = model.heads // model.kv_heads
    out = np.empty_like(q)
    summed = np.zeros(len(k))
    for kv in range(model.kv_heads):
        heads = slice(kv * group, (kv + 1) * group)
        weights = softmax(q[heads] @ k[:, kv].T / np.sqrt(model.head_dim))
        out[heads] = weights @ v[:, kv]
        summed += weights.sum(axis=0)
    return out, summed


def quantised(x, axis):
    """The INT8 values of x, whose groups lie along the axis: step * (u - zero)."""
    low, high = x.min(axis=axis, keepdims=True), x.max(axis=axis, keepdims=True)
    step = np.maximum((high - low) / 255, np.maximum(np.abs(low), np.abs(high)) / 32767)
    unit = np.exp2(np.floor(np.log2(np.where(step == 0, 1, step))) - 7)
    step = np.where(step == 0, 1, np.ceil(step / unit) * unit)  # Up to the next bf16.
    zero = np.rint(-low / step)
    return step * (np.clip(np.rint(x / step) + zero, 0, 255) - zero)


def close_block(k, v, end):
    """Makes the block of tokens that ends before `end` INT8. k, v: [..., tokens, kv_heads, head_dim]"""
    block = slice(end - BLOCK, end)
    k[..., block, :, :] = quantised(k[..., block, :, :], axis=-3)
    v[..., block, :, :] = quantised(v[..., block, :, :], axis=-1)


def half(n, ratio):
    return int(np.floor(n * ratio / 2 + 0.5))


class Variant:
    """K, V and attention weights of one sequence, in every layer."""

    def __init__(self, model, pattern, ratio, int8):
        self.pattern, self.ratio, self.int8 = pattern, ratio, int8
        self.k = np.zeros((model.layers, TOKENS, model.kv_heads, model.head_dim))
        self.v = np.zeros_like(self.k)
        self.matrix = np.zeros((model.layers, TOKENS, TOKENS), np.float32) if pattern == "window_sums" else None
        self.nll = []

    def chosen(self, layer, n):
        if self.pattern == "dense":
            return np.arange(n)
        k = half(n, self.ratio)
        kept = min(n, 2 * k)
        if self.pattern == "local":
            return np.arange(n - kept, n)
        if self.pattern == "strided":
            tokens = np.arange(n)
            return tokens[np.floor((tokens + 1) * self.ratio) > np.floor(tokens * self.ratio)]
        sums = self.matrix[layer, n - k:n, :n - k].sum(axis=0, dtype=np.float64)
        order = np.argsort(-sums, kind="stable")
        return np.concatenate([np.sort(order[:k]), np.arange(n - k, n)])


def prefill(model, tokens, variants, int8):
    """The prompt attends densely; all variants, of one form, have the same of it. Returns the nll of tokens 1 to PROMPT."""
    positions = np.arange(PROMPT)
    x = model.w["token_embd.weight"][tokens[:PROMPT]]
    for layer in range(model.layers):
        q, k, v = model.qkv(x, layer, positions)
        out = np.empty_like(q)
        for row in range(PROMPT):
            if int8 and row > 0 and row % BLOCK == 0:
                close_block(k, v, row)
            out[row], summed = attend(model, q[row], k[:row + 1], v[:row + 1])
            for variant in variants:
                if variant.matrix is not None:
                    variant.matrix[layer, row, :row + 1] = summed
        for variant in variants:
            variant.k[layer, :PROMPT], variant.v[layer, :PROMPT] = k, v
        x = model.rest(x, out, layer)
    return [nll_of(row, token) for row, token in zip(model.logits(x), tokens[1:])]


def nll_of(logits, token):
    peak = logits.max()
    return float(peak + np.log(np.exp(logits - peak).sum()) - logits[token])


def decode(model, tokens, variants):
    for n in range(PROMPT, TOKENS - 1):
        x = np.repeat(model.w["token_embd.weight"][tokens[n]][None], len(variants), axis=0)
        positions = np.full(len(variants), n)
        for layer in range(model.layers):
            q, k, v = model.qkv(x, layer, positions)
            out = np.empty_like(q)
            for i, variant in enumerate(variants):
                if variant.int8 and n % BLOCK == 0:
                    close_block(variant.k[layer], variant.v[layer], n)
                variant.k[layer, n], variant.v[layer, n] = k[i], v[i]
                seen = np.append(variant.chosen(layer, n), n)
                out[i], summed = attend(model, q[i], variant.k[layer, seen], variant.v[layer, seen])
                if variant.matrix is not None:
                    variant.matrix[layer, n, seen] = summed
            x = model.rest(x, out, layer)
        for variant, row in zip(variants, model.logits(x)):
            variant.nll.append(nll_of(row, tokens[n + 1]))
        if n % 32 == 0:
            print(n, [round(float(np.exp(np.mean(variant.nll))), 3) for variant in variants], flush=True)


def runs_of(model, tokens, int8, patterns):
    """Prompt's nll, and each variant's perplexity."""
    variants = [Variant(model, "dense", 1.0, int8)]
    variants += [Variant(model, pattern, ratio, int8) for pattern in patterns for ratio in RATIOS]
    prompt = prefill(model, tokens, variants, int8)
    decode(model, tokens, variants)
    return float(np.mean(prompt)), [{"pattern": variant.pattern, "ratio": variant.ratio, **({"kv": "int8"} if int8 else {}),
                                     "perplexity": round(float(np.exp(np.mean(variant.nll))), 5)} for variant in variants]


def main():
    here = pathlib.Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", choices=["bf16", "int8"], help="the form of K and V; both without it")
    parser.add_argument("--patterns", type=lambda words: words.split(","), default=PATTERNS)
    parser.add_argument("--passages", type=int, default=len(FIRST))
    parser.add_argument("--output", type=pathlib.Path, default=here / "goldens" / "alisa.json")
    arguments = parser.parse_args()
    text = json.loads((here / "goldens" / "smollm2.json").read_text())["text"]["tokens"]
    model = Model(arguments.model)
    forms = ["bf16", "int8"] if arguments.only is None else [arguments.only]
    known = json.loads(arguments.output.read_text())["passages"] if arguments.output.exists() else []
    passages = {passage["first"]: passage for passage in known}
    for first in FIRST[:arguments.passages]:
        passage = passages.setdefault(first, {"first": first, "prompt_nll": None, "runs": []})
        for form in forms:
            nll, runs = runs_of(model, text[first:first + TOKENS], form == "int8", arguments.patterns)
            computed = {run["pattern"] for run in runs}
            passage["runs"] = [run for run in passage["runs"] if run.get("kv", "bf16") != form or run["pattern"] not in computed] + runs
            if form == "bf16":
                passage["prompt_nll"] = round(nll, 5)
    result = {"prompt": PROMPT, "tokens": TOKENS, "passages": list(passages.values())}
    with open(arguments.output, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()

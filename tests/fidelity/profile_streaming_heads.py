#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file of KV heads that stream (docs/formats/streaming_heads.md): those whose outputs change least by it on a text.

Dense attention in float64 over the tokens of goldens/smollm2.json. Of each KV head, the attention outputs of its query heads are
made a second time with the first SINK and the last WINDOW tokens alone; the head's change is the norm of the difference over the
norm of the output, both over all rows. The SHARE of all heads with the least change is written. It is a measure of one layer at a
time on one text, no choice by what the model's answers lose (DuoAttention trains for that).

Needs: numpy, gguf, and a LLaMA as GGUF. Run: profile_streaming_heads.py MODEL.gguf OUTPUT.json [--sink 64] [--window 256]
[--share 0.5] [--tokens 1536]; half a minute for SmolLM2 135M.
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from make_alisa_goldens import Model, softmax

HERE = pathlib.Path(__file__).parent


def text(first, tokens):
    return json.loads((HERE / "goldens" / "smollm2.json").read_text())["text"]["tokens"][first:first + tokens]


def seen(tokens, sink=None, window=None):
    """Which token (column) a row sees."""
    row, column = np.arange(tokens)[:, None], np.arange(tokens)[None]
    mask = column <= row
    return mask if window is None else mask & ((column < sink) | (column > row - window))


def attend(model, q, k, v, kv, mask):
    """Outputs of the query heads of one KV head. [rows, heads, head_dim]"""
    group = model.heads // model.kv_heads
    heads = slice(kv * group, (kv + 1) * group)
    scores = q[:, heads].transpose(1, 0, 2) @ k[:, kv].T / np.sqrt(model.head_dim)
    scores[:, ~mask] = -np.inf
    return (softmax(scores) @ v[:, kv]).transpose(1, 0, 2)


def changes(model, tokens, sink, window):
    """[layers, kv_heads]"""
    positions = np.arange(len(tokens))
    dense, few = seen(len(tokens)), seen(len(tokens), sink, window)
    result = np.zeros((model.layers, model.kv_heads))
    x = model.w["token_embd.weight"][tokens]
    for layer in range(model.layers):
        q, k, v = model.qkv(x, layer, positions)
        outs = []
        for kv in range(model.kv_heads):
            outs.append(attend(model, q, k, v, kv, dense))
            streamed = attend(model, q, k, v, kv, few)
            result[layer, kv] = np.linalg.norm(streamed - outs[-1]) / np.linalg.norm(outs[-1])
        x = model.rest(x, np.concatenate(outs, axis=1), layer)
    return result


def file_of(model, name, heads):
    """`heads`: pairs of layer and KV head."""
    layers = sorted({layer for layer, _ in heads})
    return {"format": 1,
            "model": {"name": name, "layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim},
            "streaming": [{"layer": layer, "heads": sorted(head for of, head in heads if of == layer)} for layer in layers]}


def name_of(path):
    return gguf.GGUFReader(path).fields["general.name"].contents()


def write(file, path):
    lists = ",\n  ".join(json.dumps(layer) for layer in file["streaming"])
    pathlib.Path(path).write_text(f'{{"format": {file["format"]},\n "model": {json.dumps(file["model"])},\n "streaming": [\n  {lists}]}}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--sink", type=int, default=64)
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--tokens", type=int, default=1536)
    args = parser.parse_args()
    model = Model(args.model)
    found = changes(model, text(0, args.tokens), args.sink, args.window)
    order = np.argsort(found, axis=None, kind="stable")[:round(args.share * found.size)]
    heads = [(int(i) // model.kv_heads, int(i) % model.kv_heads) for i in order]
    write(file_of(model, name_of(args.model), heads), args.output)
    print("change of a KV head's output, by layer and head:")
    for layer, row in enumerate(found):
        print(f"{layer:3}", *(f"{change:6.3f}{'*' if (layer, head) in heads else ' '}" for head, change in enumerate(row)))
    print(f"{len(heads)} of {found.size} stream (*)")


if __name__ == "__main__":
    main()

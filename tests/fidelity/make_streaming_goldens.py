#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/streaming.json: how likely the quick start's model finds a text when some KV heads stream.

Plain attention in float64 with a mask: a row at position p of a head that streams sees tokens below SINK and those above
p - WINDOW, of other heads all up to p. Which heads stream is in goldens/streaming_heads.json (profile_streaming_heads.py,
--sink 16 --window 128). The text is none that the heads were profiled on.

Needs: numpy, gguf. Run: make_streaming_goldens.py MODEL.gguf; half a minute.
"""
import json
import sys

import numpy as np
from make_alisa_goldens import Model, nll_of
from profile_streaming_heads import HERE, attend, seen, text

FIRST = 2464
TOKENS = 768
SINK = 16
WINDOW = 128


def perplexity(model, tokens, streams):
    """`streams`: whether (layer, head) does."""
    positions = np.arange(len(tokens))
    masks = {False: seen(len(tokens)), True: seen(len(tokens), SINK, WINDOW)}
    x = model.w["token_embd.weight"][tokens]
    for layer in range(model.layers):
        q, k, v = model.qkv(x, layer, positions)
        x = model.rest(x, np.concatenate([attend(model, q, k, v, kv, masks[streams(layer, kv)])
                                          for kv in range(model.kv_heads)], axis=1), layer)
    return float(np.exp(np.mean([nll_of(row, token) for row, token in zip(model.logits(x), tokens[1:])])))


def main():
    model = Model(sys.argv[1])
    half = {layer["layer"]: layer["heads"]
            for layer in json.loads((HERE / "goldens" / "streaming_heads.json").read_text())["streaming"]}
    tokens = text(FIRST, TOKENS)
    result = {"first": FIRST, "tokens": TOKENS, "sink": SINK, "window": WINDOW,
              "perplexity": {"none": round(perplexity(model, tokens, lambda layer, head: False), 5),
                             "half": round(perplexity(model, tokens, lambda layer, head: head in half.get(layer, [])), 5),
                             "all": round(perplexity(model, tokens, lambda layer, head: True), 5)}}
    with open(HERE / "goldens" / "streaming.json", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(result)


if __name__ == "__main__":
    main()

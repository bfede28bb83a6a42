#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes attention_golden.json: attention computed by numpy in float64.

Inputs come from a 32-bit linear congruential generator that the test repeats, so that the file
holds results only. Run it here: python3 make_attention_goldens.py > attention_golden.json
"""
import json

import numpy as np

CASES = [
    # head_dim, kv_heads, group, tokens, queries, window, soft_cap
    (64, 1, 3, 300, 2, 0, 0.0),
    (128, 1, 1, 520, 1, 0, 0.0),
    (80, 2, 2, 40, 2, 0, 0.0),
    (32, 1, 2, 600, 2, 270, 0.0),
    (48, 1, 2, 270, 1, 0, 5.0),
]


class Numbers:
    """bf16 numbers of either sign with magnitudes in [0.5, 2), exact in float64."""

    def __init__(self):
        self.state = 1

    def take(self, shape):
        values = np.empty(int(np.prod(shape)))
        for i in range(values.size):
            self.state = (self.state * 1664525 + 1013904223) % 2**32
            bits = 0x3F00 | ((self.state >> 16) & 0x80FF)
            values[i] = np.array([bits << 16], dtype=np.uint32).view(np.float32)[0]
        return values.reshape(shape)


def attend(q, k, v, scale, window, soft_cap):
    queries, heads, _ = q.shape
    tokens, kv_heads, _ = k.shape
    out = np.empty_like(q)
    for i in range(queries):
        end = tokens - queries + i + 1
        begin = max(0, end - window) if window else 0
        for h in range(heads):
            g = h // (heads // kv_heads)
            s = k[begin:end, g] @ q[i, h] * scale
            if soft_cap:
                s = soft_cap * np.tanh(s / soft_cap)
            p = np.exp(s - s.max())
            out[i, h] = p @ v[begin:end, g] / p.sum()
    return out


def main():
    goldens = []
    for head_dim, kv_heads, group, tokens, queries, window, soft_cap in CASES:
        numbers = Numbers()
        k = numbers.take((tokens, kv_heads, head_dim))
        v = numbers.take((tokens, kv_heads, head_dim))
        q = numbers.take((queries, kv_heads * group, head_dim))
        scale = float(np.float32(1 / np.sqrt(head_dim)))
        out = attend(q, k, v, scale, window, soft_cap)
        goldens.append({
            "head_dim": head_dim, "kv_heads": kv_heads, "group": group, "tokens": tokens,
            "queries": queries, "window": window, "soft_cap": soft_cap,
            "out": [round(float(x), 8) for x in out.ravel()],
        })
    print(json.dumps(goldens, separators=(",", ":")).replace("},{", "},\n{"))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes goldens/sampling.json: what transformers' logits processors leave of random logits.

For each case: the logits' seed and size, the parameters, the tokens so far, and the probability of
every token that transformers keeps. The C++ side makes the same logits from the seed and compares
Sample()'s draws and Expected() with these. Presence and frequency penalties have no processor in
transformers; they are tested against a computation of our own.

Usage: python make_sampling_goldens.py  (needs torch and transformers; writes next to this script)
"""

import json
import pathlib

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCABULARY = 97


def logits_of(seed):
    """Multiplicative congruential numbers that C++ reproduces exactly; all different."""
    state, values = seed, []
    for _ in range(VOCABULARY):
        state = (state * 1664525 + 1013904223) % 2**32
        values.append((state >> 8) / 2**24 * 12 - 6)
    return torch.tensor([values], dtype=torch.float32)


def probabilities(case):
    scores = logits_of(case["seed"])
    tokens = torch.tensor([case["tokens"]], dtype=torch.long)
    chain = LogitsProcessorList()
    if case["bias"]:
        chain.append(SequenceBiasLogitsProcessor([[[token], value] for token, value in case["bias"]]))
    if case["repetition_penalty"] != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]))
    chain.append(TemperatureLogitsWarper(case["temperature"]))
    if case["top_k"]:
        chain.append(TopKLogitsWarper(case["top_k"]))
    if case["top_p"] < 1:
        chain.append(TopPLogitsWarper(case["top_p"]))
    if case["min_p"] > 0:
        chain.append(MinPLogitsWarper(case["min_p"]))
    kept = torch.softmax(chain(tokens, scores).double(), dim=-1)[0]
    return [[i, p] for i, p in enumerate(kept.tolist()) if p > 0]


def main():
    plain = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, bias=[])
    changes = [
        dict(),
        dict(temperature=0.6),
        dict(temperature=1.7),
        dict(top_k=7),
        dict(top_p=0.8),
        dict(top_p=0.35, temperature=1.4),
        dict(min_p=0.05),
        dict(repetition_penalty=1.3),
        dict(repetition_penalty=0.7),
        dict(bias=[[3, 4.0], [50, -6.5]]),
        dict(temperature=1.2, top_k=30, top_p=0.9, min_p=0.03, repetition_penalty=1.1, bias=[[8, 2.5]]),
    ]
    cases = []
    for index, change in enumerate(changes):
        case = dict(plain, seed=1000 + index, tokens=[1, 5, 5, 90, 13, 42], **{}) | change
        case["kept"] = probabilities(case)
        cases.append(case)
    path = pathlib.Path(__file__).parent / "goldens" / "sampling.json"
    path.write_text(json.dumps({"vocabulary": VOCABULARY, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()

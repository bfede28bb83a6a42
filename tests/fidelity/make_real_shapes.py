#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/real_shapes.json: for one published model of each family its settings, as config.json has
them, and how many parameters transformers gives the model that they describe (on the meta device: no weights).

Needs: torch, transformers. Run: make_real_shapes.py [OUTPUT]
"""
import json
import pathlib
import sys

import torch
import transformers


def plain(theta):
    return dict(rope_type="default", rope_theta=theta)


def text(model_type, hidden, layers, heads, kv, ffn, vocab, positions, rope, **more):
    return dict(model_type=model_type, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv, intermediate_size=ffn, vocab_size=vocab, max_position_embeddings=positions,
                rope_parameters=rope, **more)


MODELS = {
    "Qwen3-0.6B": text("qwen3", 1024, 28, 16, 8, 3072, 151936, 40960, plain(1e6), head_dim=128, tie_word_embeddings=True),
    "Qwen3-30B-A3B": text("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, 40960, plain(1e6), head_dim=128,
                          num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True),
    "Mistral-7B-v0.1": text("mistral", 4096, 32, 32, 8, 14336, 32000, 32768, plain(1e4), sliding_window=4096),
    "Mixtral-8x7B-v0.1": text("mixtral", 4096, 32, 32, 8, 14336, 32000, 32768, plain(1e6), num_local_experts=8,
                              num_experts_per_tok=2, sliding_window=None),
    "gemma-2b": text("gemma", 2048, 18, 8, 1, 16384, 256000, 8192, plain(1e4), head_dim=256),
    "gemma-2-9b": text("gemma2", 3584, 42, 16, 8, 14336, 256000, 8192, plain(1e4), head_dim=256, query_pre_attn_scalar=256,
                       sliding_window=4096, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gemma-3-1b-pt": text("gemma3_text", 1152, 26, 4, 1, 6912, 262144, 32768,
                          dict(full_attention=plain(1e6), sliding_attention=plain(1e4)), head_dim=256,
                          query_pre_attn_scalar=256, sliding_window=512),
    "phi-4": text("phi3", 5120, 40, 40, 10, 17920, 100352, 16384, plain(250000.0)),
    "Phi-4-mini-instruct": text("phi3", 3072, 32, 24, 8, 8192, 200064, 131072,
                                dict(rope_type="longrope", rope_theta=1e4, partial_rotary_factor=0.75,
                                     original_max_position_embeddings=4096, short_factor=[1.0] * 48,
                                     long_factor=[1.0 + i for i in range(48)]),
                                tie_word_embeddings=True, sliding_window=262144),
    "OLMo-2-1124-7B": text("olmo2", 4096, 32, 32, 32, 11008, 100352, 4096, plain(500000.0)),
    "OLMoE-1B-7B-0924": text("olmoe", 2048, 16, 16, 16, 1024, 50304, 4096, plain(1e4), num_experts=64,
                             num_experts_per_tok=8, norm_topk_prob=False),
    "granite-3.1-8b-base": text("granite", 4096, 40, 32, 8, 12800, 49155, 131072, plain(1e7), embedding_multiplier=12.0,
                                residual_multiplier=0.22, attention_multiplier=0.0078125, logits_scaling=16.0,
                                tie_word_embeddings=True),
    "SmolLM3-3B": text("smollm3", 2048, 36, 16, 4, 11008, 128256, 65536, plain(5e6), tie_word_embeddings=True,
                       no_rope_layer_interval=4),
    "gpt-oss-20b": text("gpt_oss", 2880, 24, 64, 8, 2880, 201088, 131072,
                        dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=4096),
                        head_dim=64, num_local_experts=32, num_experts_per_tok=4, sliding_window=128, attention_bias=True),
}


def main():
    here = pathlib.Path(__file__).parent
    output = sys.argv[1] if len(sys.argv) > 1 else here / "goldens" / "real_shapes.json"
    lines = []
    for name, settings in MODELS.items():
        arguments = {key: value for key, value in settings.items() if key != "model_type"}
        config = transformers.AutoConfig.for_model(settings["model_type"], **arguments)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        parameters = sum(p.numel() for p in model.parameters())
        print(f"{name:22} {parameters}")
        lines.append(json.dumps(dict(name=name, parameters=parameters, config=settings), separators=(",", ":")))
    with open(output, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


main()

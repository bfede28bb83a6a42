#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes goldens/random_models.json: logits of small random models of every architecture, computed by
transformers in float32 with eager attention; and goldens/random_models_bf16.json: of those where a rounding or
a choice decides the bits, what transformers makes of them in bf16.

The weights follow from seed, tensor name and index as tests/support/random_model.h says; the keys of a
case's "spec" are the fields of RandomModelSpec there.

Needs: numpy, torch, transformers. Run: make_model_goldens.py [--bf16]    (then only the second file)
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

SPEC_DEFAULTS = dict(
    model_type="llama", seed=1, layers=2, width=64, ffn_width=128, query_heads=4, kv_heads=4, head_dim=16,
    vocabulary=96, positions_max=512, tied=False, attention_bias=False, mlp_bias=False, activation="silu",
    window=0, window_first_layer=0, parallel_residual=True, rotary_share=1.0, rope_theta=10000.0,
    rope_scaling={}, old_config=False)

LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)

CASES = {
    "llama_multi_head": dict(seed=11),
    "llama_grouped_tied": dict(seed=12, query_heads=8, kv_heads=2, head_dim=32, tied=True),
    "llama_one_kv_head": dict(seed=13, query_heads=3, kv_heads=1, head_dim=64, width=192, layers=3),
    "llama_head_128_biases": dict(seed=14, query_heads=4, kv_heads=2, head_dim=128, attention_bias=True,
                                  mlp_bias=True, rope_theta=500000.0),
    "llama_rope_linear": dict(seed=15, rope_scaling=dict(rope_type="linear", factor=2.5)),
    "llama_rope_llama3": dict(seed=16, head_dim=32, query_heads=2, kv_heads=1, rope_scaling=LLAMA3),
    "llama_rope_yarn": dict(seed=17, head_dim=64, query_heads=2, kv_heads=2, rope_scaling=YARN),
    "llama_rope_yarn_options": dict(seed=18, head_dim=32, query_heads=2, kv_heads=2,
                                    rope_scaling=dict(YARN, truncate=False, beta_fast=16.0, beta_slow=2.0,
                                                      mscale=1.0, mscale_all_dim=0.5)),
    "llama_rope_yarn_attention_factor": dict(seed=19, rope_scaling=dict(YARN, attention_factor=1.25)),
    "llama_old_config": dict(seed=20, rope_theta=50000.0, rope_scaling=LLAMA3, old_config=True),
    "mistral_window": dict(seed=21, model_type="mistral", query_heads=4, kv_heads=2, window=8),
    "mistral_no_window": dict(seed=22, model_type="mistral", query_heads=2, kv_heads=1, head_dim=64),
    "qwen2_grouped": dict(seed=23, model_type="qwen2", query_heads=6, kv_heads=2, width=96),
    "qwen2_tied_upper_window": dict(seed=24, model_type="qwen2", tied=True, layers=3, window=6,
                                    window_first_layer=1),
    "qwen2_yarn_old_config": dict(seed=25, model_type="qwen2", head_dim=32, query_heads=2, kv_heads=1,
                                  rope_scaling=dict(YARN), old_config=True),
    "opt_tied": dict(seed=26, model_type="opt", tied=True, attention_bias=True, activation="relu"),
    "opt_untied_no_bias": dict(seed=27, model_type="opt", activation="gelu", query_heads=1, kv_heads=1,
                               head_dim=64),
    "gpt_neox_parallel": dict(seed=28, model_type="gpt_neox", rotary_share=0.25, attention_bias=True,
                              activation="gelu", query_heads=2, kv_heads=2, head_dim=32),
    "gpt_neox_sequential": dict(seed=29, model_type="gpt_neox", rotary_share=1.0, attention_bias=True,
                                parallel_residual=False, activation="gelu_new"),
    "gpt_neox_no_bias_tied": dict(seed=30, model_type="gpt_neox", rotary_share=0.5, tied=True,
                                  activation="gelu", old_config=True, width=128, query_heads=1,
                                  kv_heads=1, head_dim=128),
}

# Families of tests/support/random_decoders.cc. "extra" are members of config.json as it stands there and
# goes to transformers; "gguf_floats" settings of GGUF files, and "gguf" whether these can say what it is.
DECODER_DEFAULTS = dict(experts=0, experts_per_token=0, extra={}, gguf=True, gguf_floats={})
FOUR_LAYERS = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
TWO_ROPES = {"full_attention": dict(rope_type="linear", factor=4.0, rope_theta=200000.0),
             "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}
LONG_ROPE = dict(rope_type="longrope", short_factor=[1.0 + i / 8 for i in range(6)],
                 long_factor=[1.5 + i / 2 for i in range(6)], original_max_position_embeddings=32,
                 partial_rotary_factor=0.75)
GRANITE = dict(embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.09, logits_scaling=3.0)
GRANITE_GGUF = {"embedding_scale": 6.0, "residual_scale": 0.22, "attention.scale": 0.09, "logit_scale": 3.0}
GEMMA2 = dict(query_pre_attn_scalar=24, attn_logit_softcapping=20.0, final_logit_softcapping=10.0,
              sliding_window=6)

DECODERS = {
    "qwen3": dict(seed=41, model_type="qwen3", kv_heads=2, head_dim=32),
    "qwen3_tied_bias": dict(seed=42, model_type="qwen3", tied=True, attention_bias=True),
    "qwen3_windows": dict(seed=43, model_type="qwen3", layers=4, window=7, gguf=False,
                          extra=dict(use_sliding_window=True, sliding_window=7, max_window_layers=1,
                                     layer_types=FOUR_LAYERS)),
    "olmo2": dict(seed=44, model_type="olmo2", kv_heads=2),
    "granite": dict(seed=45, model_type="granite", kv_heads=2, extra=GRANITE, gguf_floats=GRANITE_GGUF),
    "granite_tied_biases": dict(seed=46, model_type="granite", tied=True, attention_bias=True, mlp_bias=True,
                                extra=dict(GRANITE, logits_scaling=8.0), gguf_floats=dict(GRANITE_GGUF, logit_scale=8.0)),
    "phi3": dict(seed=47, model_type="phi3", kv_heads=2, rotary_share=0.75, window=9,
                 extra=dict(sliding_window=9, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                   partial_rotary_factor=0.75))),
    "phi3_longrope_short": dict(seed=48, model_type="phi3", positions_max=256, gguf=False, lengths=[1, 5, 30],
                                sequence_tokens_max=32, extra=dict(rope_parameters=LONG_ROPE | dict(rope_theta=10000.0))),
    "phi3_longrope_long": dict(seed=49, model_type="phi3", positions_max=256, gguf=False, lengths=[33, 60],
                               extra=dict(rope_parameters=LONG_ROPE | dict(rope_theta=10000.0))),
    "smollm3": dict(seed=50, model_type="smollm3", layers=4, kv_heads=2, tied=True, rope_theta=2000000.0),
    "smollm3_listed": dict(seed=51, model_type="smollm3", layers=3, gguf=False, extra=dict(no_rope_layers=[1, 0, 1])),
    "gemma": dict(seed=52, model_type="gemma", kv_heads=1, head_dim=32, tied=True),
    "gemma2": dict(seed=53, model_type="gemma2", layers=3, width=96, kv_heads=2, head_dim=32, tied=True, window=6,
                   extra=dict(GEMMA2, query_pre_attn_scalar=32), checkpoint="F32",
                   gguf_floats={"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0}),
    "gemma2_bf16": dict(seed=53, model_type="gemma2", layers=3, width=96, kv_heads=2, head_dim=32, tied=True, window=6,
                        extra=GEMMA2, checkpoint="BF16", gguf=False),
    "gemma3": dict(seed=54, model_type="gemma3_text", layers=7, kv_heads=2, head_dim=32, tied=True, window=5,
                   rope_theta=1000000.0,
                   extra=dict(query_pre_attn_scalar=32, sliding_window=5,
                              rope_parameters={"full_attention": dict(rope_type="default", rope_theta=1000000.0),
                                               "sliding_attention": dict(rope_type="default", rope_theta=10000.0)})),
    "gemma3_bf16_ropes": dict(seed=55, model_type="gemma3_text", layers=4, width=96, kv_heads=2, tied=True, window=8,
                              gguf=False, checkpoint="BF16",
                              extra=dict(query_pre_attn_scalar=16, sliding_window=8, rope_parameters=TWO_ROPES,
                                         layer_types=FOUR_LAYERS)),
    "mixtral": dict(seed=56, model_type="mixtral", kv_heads=2, experts=5, experts_per_token=2, ffn_width=96),
    "qwen3_moe": dict(seed=57, model_type="qwen3_moe", kv_heads=2, experts=9, experts_per_token=3, ffn_width=48,
                      extra=dict(norm_topk_prob=True)),
    "qwen3_moe_shares": dict(seed=58, model_type="qwen3_moe", experts=6, experts_per_token=4, gguf=False,
                             ffn_width=32, extra=dict(norm_topk_prob=False)),
    "olmoe": dict(seed=59, model_type="olmoe", kv_heads=2, experts=8, experts_per_token=3, ffn_width=64),
    "gpt_oss": dict(seed=60, model_type="gpt_oss", layers=3, kv_heads=2, head_dim=32, experts=6, experts_per_token=2,
                    ffn_width=64, attention_bias=True, window=6, extra=dict(sliding_window=6)),
    "gpt_oss_yarn": dict(seed=61, model_type="gpt_oss", layers=2, experts=4, experts_per_token=4, ffn_width=32,
                         attention_bias=True, gguf=False,
                         extra=dict(sliding_window=128,
                                    rope_parameters=dict(YARN, rope_theta=150000.0, truncate=False))),
}

# Embedding scales, sets of rope factors, sinks.
BF16 = ["gemma2_bf16", "gemma3_bf16_ropes", "phi3_longrope_short", "phi3_longrope_long", "gpt_oss", "gpt_oss_yarn"]

PROMPT_LENGTHS = [1, 5, 48]
COLUMNS = 12
TOP = 4


def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def scale_exponent(name, shape):
    if name.endswith(".bias"):
        return -2
    if "embed_positions" in name:
        return -1
    if "embed_tokens" in name or "embed_in" in name:
        return 0
    sharper = any(part in name for part in ("q_proj", "k_proj", "query_key_value"))
    return int(sharper) - (shape[-1].bit_length() - 1) // 2


def random_values(name, shape, seed):
    index = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64)
    key = np.uint64(fnv1a64(name) ^ seed)
    with np.errstate(over="ignore"):
        bits = mix(key + index * np.uint64(0x9E3779B97F4A7C15))
    k = (bits >> np.uint64(56)).astype(np.int64) - 128
    if "norm" in name and name.endswith(".weight"):
        values = 1.0 + np.floor(k / 16) / 32
    else:
        values = k / 128 * 2.0 ** scale_exponent(name, shape)
    return values.astype(np.float32).reshape(shape)


MXFP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def stored_values(name, shape, spec):
    """What a checkpoint of the family has under this name."""
    values = random_values(name, shape, spec["seed"])
    if spec["model_type"].startswith("gemma") and "norm" in name:
        values -= 1
    if spec["model_type"] == "gpt_oss" and "mlp.experts." in name and not name.endswith("_bias"):
        unit = 2.0 ** (scale_exponent(name, shape) - 3)
        steps = np.array(MXFP4, np.float32) * unit
        values = np.copysign(steps[np.searchsorted(steps, np.abs(values), side="right") - 1], values)
    return values.astype(np.float32)


def parameter_values(name, shape, spec):
    """What transformers keeps under this name in memory: experts of a layer in one tensor."""
    if spec["model_type"] not in ("mixtral", "qwen3_moe", "olmoe"):
        return stored_values(name, shape, spec)
    mixtral = spec["model_type"] == "mixtral"
    name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    stem = name.rsplit(".", 1)[0]
    if name.endswith("experts.gate_up_proj"):
        half = (shape[1] // 2, shape[2])
        return np.stack([np.concatenate([stored_values(f"{stem}.{e}.{part}.weight", half, spec) for part in (gate, up)])
                         for e in range(shape[0])])
    if name.endswith("experts.down_proj"):
        return np.stack([stored_values(f"{stem}.{e}.{down}.weight", shape[1:], spec) for e in range(shape[0])])
    return stored_values(name, shape, spec)


def make_decoder_config(spec, common):
    common.update(intermediate_size=spec["ffn_width"], num_key_value_heads=spec["kv_heads"], rms_norm_eps=1e-6,
                  head_dim=spec["head_dim"], attention_bias=spec["attention_bias"], mlp_bias=spec["mlp_bias"],
                  rope_parameters=dict(rope_type="default", rope_theta=spec["rope_theta"]))
    if not spec["model_type"].startswith("gemma"):
        common.update(hidden_act=spec["activation"])
    if spec["experts"]:
        common.update(num_local_experts=spec["experts"], num_experts=spec["experts"],
                      num_experts_per_tok=spec["experts_per_token"], moe_intermediate_size=spec["ffn_width"],
                      experts_implementation="eager")
    common.update(spec["extra"])
    return transformers.AutoConfig.for_model(spec["model_type"], **common)


def make_config(spec):
    common = dict(num_hidden_layers=spec["layers"], hidden_size=spec["width"],
                  num_attention_heads=spec["query_heads"], vocab_size=spec["vocabulary"],
                  max_position_embeddings=spec["positions_max"], tie_word_embeddings=spec["tied"],
                  bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager")
    rope = dict(dict(rope_type="default"), **spec["rope_scaling"], rope_theta=spec["rope_theta"])
    kind = spec["model_type"]
    if "extra" in spec:
        return make_decoder_config(spec, common)
    if kind == "opt":
        return transformers.OPTConfig(**common, ffn_dim=spec["ffn_width"],
                                      activation_function=spec["activation"],
                                      enable_bias=spec["attention_bias"])
    common.update(intermediate_size=spec["ffn_width"], hidden_act=spec["activation"])
    if kind == "gpt_neox":
        rope["partial_rotary_factor"] = spec["rotary_share"]
        return transformers.GPTNeoXConfig(**common, rope_parameters=rope,
                                          use_parallel_residual=spec["parallel_residual"],
                                          attention_bias=spec["attention_bias"])
    common.update(num_key_value_heads=spec["kv_heads"], rope_parameters=rope, rms_norm_eps=1e-6)
    if spec["head_dim"] * spec["query_heads"] != spec["width"]:
        common["head_dim"] = spec["head_dim"]
    if kind == "mistral":
        return transformers.MistralConfig(**common, sliding_window=spec["window"] or None)
    if kind == "qwen2":
        return transformers.Qwen2Config(**common, use_sliding_window=spec["window"] != 0,
                                        sliding_window=spec["window"] or None,
                                        max_window_layers=spec["window_first_layer"])
    return transformers.LlamaConfig(**common, attention_bias=spec["attention_bias"],
                                    mlp_bias=spec["mlp_bias"])


def make_model(spec, dtype):
    model = transformers.AutoModelForCausalLM.from_config(make_config(spec), dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if spec["model_type"] == "gpt_neox" and name == "lm_head.weight":
                name = "embed_out.weight"  # As it is called in the files.
            parameter.copy_(torch.from_numpy(parameter_values(name, tuple(parameter.shape), spec)))
    return model


def run_case(spec, checkpoint=None, lengths=PROMPT_LENGTHS):
    model = make_model(spec, torch.float32)
    if checkpoint == "BF16":  # A number of the checkpoint's type; all else is exact in it.
        with torch.no_grad():
            scale = model.get_input_embeddings().embed_scale
            scale.copy_(scale.bfloat16().float())
    rng = np.random.default_rng(spec["seed"])
    columns = sorted(rng.choice(spec["vocabulary"], COLUMNS, replace=False).tolist())
    prompts = []
    for length in lengths:
        tokens = rng.integers(0, spec["vocabulary"], length).tolist()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].double().numpy()
        rows = []
        for position in sorted({0, length // 2, length - 1}):
            row = logits[position]
            top = np.argsort(-row, kind="stable")[:TOP]
            rows.append({"position": position,
                         "values": [round(float(row[c]), 5) for c in columns],
                         "top": [[int(t), round(float(row[t]), 5)] for t in top]})
        prompts.append({"tokens": tokens, "rows": rows})
    return columns, prompts


def run_bf16_case(name, golden):
    """The rows of the float32 golden in bf16, the scaled embeddings of the longest prompt, and its rotations."""
    spec = SPEC_DEFAULTS | DECODER_DEFAULTS | DECODERS[name]
    model = make_model({k: v for k, v in spec.items() if k in golden["spec"]}, torch.bfloat16)
    case = {"name": name, "prompts": []}
    for prompt in golden["prompts"]:
        with torch.no_grad():
            out = model(torch.tensor([prompt["tokens"]]), output_hidden_states=True)
        logits = out.logits[0].float().numpy()
        case["prompts"].append([[float(logits[row["position"]][c]) for c in golden["columns"]] for row in prompt["rows"]])
    case["embedded"] = out.hidden_states[0][0, :, :COLUMNS].float().tolist()
    if name.startswith("phi3"):
        positions = torch.arange(len(prompt["tokens"]))[None]
        cosines, sines = model.model.rotary_emb(out.hidden_states[0], positions)
        half = cosines.shape[-1] // 2
        case["cosines"] = cosines[0, :, :half].float().tolist()
        case["sines"] = sines[0, :, :half].float().tolist()
    return case


def write(path, cases):
    with open(path, "w", encoding="utf-8") as file:
        file.write("[\n")
        file.write(",\n".join(json.dumps(case, separators=(",", ":")) for case in cases))
        file.write("\n]\n")


def main():
    goldens = pathlib.Path(__file__).parent / "goldens"
    torch.manual_seed(0)
    if sys.argv[1:] != ["--bf16"]:
        write(goldens / "random_models.json", float32_cases())
    float32 = {case["name"]: case for case in json.loads((goldens / "random_models.json").read_text())}
    write(goldens / "random_models_bf16.json", [run_bf16_case(name, float32[name]) for name in BF16])


def float32_cases():
    cases = []
    for name, changes in CASES.items():
        spec = dict(SPEC_DEFAULTS, **changes)
        columns, prompts = run_case(spec)
        cases.append({"name": name, "spec": spec, "columns": columns, "prompts": prompts})
    for name, changes in DECODERS.items():
        spec = SPEC_DEFAULTS | DECODER_DEFAULTS | changes
        checkpoint = spec.pop("checkpoint", None)
        tokens_max = spec.pop("sequence_tokens_max", 0)
        columns, prompts = run_case(spec, checkpoint, spec.pop("lengths", PROMPT_LENGTHS))
        case = {"name": name, "spec": spec, "columns": columns, "prompts": prompts}
        if checkpoint:
            case["checkpoint"] = checkpoint  # The tensors' type that these logits are for; else for any.
        if tokens_max:
            case["sequence_tokens_max"] = tokens_max  # Of the deployment.
        cases.append(case)
    return cases


main()

# SPDX-License-Identifier: Apache-2.0
"""Writes a LLaMA of random bf16 weights as a Hugging Face folder, with the standard library alone: for suites whose figures depend on the
shape of a model and not on what it says. A token is a byte."""

import dataclasses
import json
import os

BYTES = 256
END = BYTES
# Of a bf16 element the upper byte: plus or minus, between 2^-7 and 2^-5 with any lower byte.
UPPER = bytes(0x3C if byte & 1 else 0xBC for byte in range(256))
ONE = b"\x80\x3f"


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    positions: int = 131072
    head_width: int = 0  # 0: that of heads which together are as wide as the model.

    @property
    def head_dim(self):
        return self.head_width or self.width // self.heads

    def kv_bytes(self):
        """Of a token in a layer, in bf16."""
        return 2 * 2 * self.kv_heads * self.head_dim

    def activation_bytes(self):
        return 2 * self.width

    def layer_bytes(self):
        """Bytes of a layer's matrices."""
        return 2 * self.width * (2 * self.heads * self.head_dim + 2 * self.kv_heads * self.head_dim + 3 * self.hidden)


def _names(shape):
    kv_width, query_width = shape.kv_heads * shape.head_dim, shape.heads * shape.head_dim
    yield "model.embed_tokens.weight", (BYTES + 1, shape.width)
    for i in range(shape.layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (shape.width,)
        yield layer + "self_attn.q_proj.weight", (query_width, shape.width)
        yield layer + "self_attn.k_proj.weight", (kv_width, shape.width)
        yield layer + "self_attn.v_proj.weight", (kv_width, shape.width)
        yield layer + "self_attn.o_proj.weight", (shape.width, query_width)
        yield layer + "post_attention_layernorm.weight", (shape.width,)
        yield layer + "mlp.gate_proj.weight", (shape.hidden, shape.width)
        yield layer + "mlp.up_proj.weight", (shape.hidden, shape.width)
        yield layer + "mlp.down_proj.weight", (shape.width, shape.hidden)
    yield "model.norm.weight", (shape.width,)
    yield "lm_head.weight", (BYTES + 1, shape.width)


def _elements(sizes):
    return sizes[0] * (sizes[1] if len(sizes) == 2 else 1)


def _values(name, sizes):
    """Matrices and biases are random, weights of norms are 1."""
    count = _elements(sizes)
    if len(sizes) == 1 and not name.endswith(".bias"):
        return ONE * count
    values = bytearray(2 * count)
    values[0::2] = os.urandom(count)
    values[1::2] = os.urandom(count).translate(UPPER)
    return values


def _byte_names():
    """Of the bytes in byte-level BPE: printable ones name themselves, the others come from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(BYTES) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(BYTES + i): byte for i, byte in enumerate(others)}


def write_model(folder, config, tensors):
    """`folder`: a pathlib.Path that exists. `tensors`: [(name, sizes)]; `config` is config.json."""
    end = {"id": END, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
        "decoder": byte_level, "model": {"type": "BPE", "vocab": _byte_names() | {"<|end|>": END}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    header, offset = {}, 0
    for name, sizes in tensors:
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, offset + 2 * _elements(sizes)]}
        offset += 2 * _elements(sizes)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, sizes in tensors:
            file.write(_values(name, sizes))


def write(folder, shape):
    """`folder` is a pathlib.Path that exists."""
    write_model(folder, {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.width, "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "vocab_size": BYTES + 1, "max_position_embeddings": shape.positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "bos_token_id": END, "eos_token_id": END, "torch_dtype": "bfloat16"}, list(_names(shape)))

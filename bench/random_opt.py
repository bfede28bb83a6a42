# SPDX-License-Identifier: Apache-2.0
"""Writes an OPT of random bf16 weights as a Hugging Face folder: learned positions, biases, a plain MLP, multi-head. As random_llama.py."""

import dataclasses

import random_llama

POSITION_ROWS = 2  # Ahead of those of positions.
VECTOR = 4  # Bytes of an element of biases and norms, at most.


@dataclasses.dataclass
class Shape:
    layers: int
    width: int
    heads: int
    positions: int = 2048

    @property
    def hidden(self):
        return 4 * self.width

    def kv_bytes(self):
        """Of a token in a layer, in bf16."""
        return 2 * 2 * self.width

    def activation_bytes(self):
        return 2 * self.width

    def attention_bytes(self):
        """Of a layer's four matrices of attention."""
        return 2 * 4 * self.width**2

    def layer_bytes(self):
        """Of a layer's matrices."""
        return self.attention_bytes() + 2 * 2 * self.width * self.hidden

    def last_slice_bytes(self):
        """Of what follows the last attention, but for the LM head, which is the embedding."""
        return self.layer_bytes() - 2 * 3 * self.width**2

    def table_bytes(self):
        return 2 * self.width * (random_llama.BYTES + 1 + POSITION_ROWS + self.positions)

    def vector_bytes(self):
        return VECTOR * (self.layers * (9 * self.width + self.hidden) + 2 * self.width)

    def tensors(self):
        outer = "model.decoder."
        yield outer + "embed_tokens.weight", (random_llama.BYTES + 1, self.width)
        yield outer + "embed_positions.weight", (self.positions + POSITION_ROWS, self.width)
        for i in range(self.layers):
            layer = f"{outer}layers.{i}."
            for name, rows, columns in (("self_attn.q_proj", self.width, self.width), ("self_attn.k_proj", self.width, self.width),
                                        ("self_attn.v_proj", self.width, self.width), ("self_attn.out_proj", self.width, self.width),
                                        ("fc1", self.hidden, self.width), ("fc2", self.width, self.hidden)):
                yield f"{layer}{name}.weight", (rows, columns)
                yield f"{layer}{name}.bias", (rows,)
            for name in ("self_attn_layer_norm", "final_layer_norm"):
                yield f"{layer}{name}.weight", (self.width,)
                yield f"{layer}{name}.bias", (self.width,)
        yield outer + "final_layer_norm.weight", (self.width,)
        yield outer + "final_layer_norm.bias", (self.width,)


def write(folder, shape):
    """`folder` is a pathlib.Path that exists."""
    random_llama.write_model(folder, {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": shape.width, "word_embed_proj_dim": shape.width,
        "ffn_dim": shape.hidden, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "vocab_size": random_llama.BYTES + 1,
        "max_position_embeddings": shape.positions, "activation_function": "relu", "do_layer_norm_before": True, "tie_word_embeddings": True,
        "bos_token_id": random_llama.END, "eos_token_id": random_llama.END, "torch_dtype": "bfloat16"}, list(shape.tensors()))

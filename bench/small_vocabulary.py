# SPDX-License-Identifier: Apache-2.0
"""A model of the quick start's shape with random weights and few tokens, as a Hugging Face directory.

What it says is noise, and takes as long as a real model's: layers as in SmolLM2-135M, and an LM head that is small compared with them.
"""

import contextlib
import json
import pathlib
import random
import tempfile

import cluster

QUICK_START = 49152  # Tokens of SmolLM2.
SMALLEST = 257       # The bytes, and the end of a text.
WIDTH, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 576, 1536, 30, 9, 3
END = "<|end|>"
ONE = b"\x80\x3f"  # In bf16.
SIGN_AND_EXPONENT = bytes((byte & 0x80) | 0x3d for byte in range(256))  # Of 2^-5.
MANTISSA = bytes(byte & 0x7f for byte in range(256))


def random_bf16(source, count):
    """Of magnitudes from 2^-5 to 2^-4."""
    values = bytearray(2 * count)
    values[0::2] = source.randbytes(count).translate(MANTISSA)
    values[1::2] = source.randbytes(count).translate(SIGN_AND_EXPONENT)
    return bytes(values)


def shapes(vocabulary):
    head = WIDTH // HEADS
    yield "model.embed_tokens.weight", (vocabulary, WIDTH)
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (WIDTH,)
        yield layer + "self_attn.q_proj.weight", (WIDTH, WIDTH)
        yield layer + "self_attn.k_proj.weight", (KV_HEADS * head, WIDTH)
        yield layer + "self_attn.v_proj.weight", (KV_HEADS * head, WIDTH)
        yield layer + "self_attn.o_proj.weight", (WIDTH, WIDTH)
        yield layer + "post_attention_layernorm.weight", (WIDTH,)
        yield layer + "mlp.gate_proj.weight", (INTERMEDIATE, WIDTH)
        yield layer + "mlp.up_proj.weight", (INTERMEDIATE, WIDTH)
        yield layer + "mlp.down_proj.weight", (WIDTH, INTERMEDIATE)
    yield "model.norm.weight", (WIDTH,)


def write_weights(path, vocabulary):
    source = random.Random(1)
    header, offset = {}, 0
    for name, shape in shapes(vocabulary):
        size = 2 * shape[0] * (shape[1] if len(shape) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in shapes(vocabulary):
            file.write(random_bf16(source, shape[0] * shape[1]) if len(shape) == 2 else ONE * shape[0])


def byte_names():
    """Of the 256 bytes in byte-level BPE: printable ones name themselves, the others come from 256 on."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def write(folder, vocabulary):
    """Errors: ValueError, of fewer tokens than SMALLEST."""
    if vocabulary < SMALLEST:
        raise ValueError(f"a vocabulary of {vocabulary}: {SMALLEST} tokens are the fewest")
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH,
              "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "vocab_size": vocabulary, "max_position_embeddings": 8192,
              "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu", "tie_word_embeddings": True,
              "bos_token_id": 256, "eos_token_id": 256, "torch_dtype": "bfloat16"}
    end = {"id": 256, "content": END, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # The others are never made of a text, but a load draws from all.
    others = {f"<|{i}|>": i for i in range(SMALLEST, vocabulary)}
    tokenizer = {"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level,
                 "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": byte_names() | {END: 256} | others, "merges": []}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    write_weights(folder / "model.safetensors", vocabulary)


@contextlib.contextmanager
def model(vocabulary):
    """The quick start's for its own number of tokens, else one that is there until the context ends."""
    if vocabulary == QUICK_START:
        yield cluster.MODEL
        return
    with tempfile.TemporaryDirectory(prefix="lamina-model-") as folder:
        write(pathlib.Path(folder), vocabulary)
        yield folder

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decode tokens a second of models with random weights, by Lamina and by PyTorch on the same GPU.

For each shape: a plain PyTorch loop (eager, bf16, F.scaled_dot_product_attention over KV that was allocated
before), transformers' generate where transformers is installed, and Lamina (deploy/gpu_serve.py, attention
on tensor cores) on a model of that shape which is written for it and removed again: as one pool ("pool"),
then with a compute and a memory node on the device ("device"). PyTorch's memory is given back before.

usage: gpu_torch.py --out FILE [--shape S]... [--layers N] [--device D] [--points LIST] [--limit SECONDS]
                    [--stretch SECONDS] [--folder DIR] [--bin DIR]
  --shape S          LLaMA-7B, LLaMA-3-8B, or tiny, for tests; repeat for more (default: the first two)
  --layers N         fewer layers, for tests (default: the shape's)
  --device D         default: cuda:0; cpu tries it without a GPU
  --points LIST      ROWSxCONTEXT, separated by commas (default: 1x512,16x1024,64x1024,64x4096)
  --limit SECONDS    for everything (default: 440)
  --stretch SECONDS  how long each point is measured (default: 2)
  --folder DIR       where the models are written, up to 17 GB at a time (default: the system's)
  --bin DIR          as of gpu_serve.py
Shapes share the time that is left. transformers comes last of each, as what can be missed.
JSON in FILE, written again after each result: {"device", "torch": version, "shapes": [{"shape", "layers",
"torch": {"points", "error"}, "transformers": {"points", "error"}, "write_s", "lamina": [parts of gpu_serve.py],
"ratios": [{"part", "rows", "context", "lamina_to_torch"}]}]}
Exit status: 0 all is there, 1 some part failed, 124 the time was up; 1 where PyTorch is missing.
"""

import argparse
import functools
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import gpu_serve

SHAPES = {
    "LLaMA-7B": {"width": 4096, "hidden": 11008, "layers": 32, "heads": 32, "kv_heads": 32, "vocabulary": 32000,
                 "theta": 10000.0, "capacity": "56GiB"},
    "LLaMA-3-8B": {"width": 4096, "hidden": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "vocabulary": 128256,
                   "theta": 500000.0, "capacity": "40GiB"},
    "tiny": {"width": 128, "hidden": 256, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 320,
             "theta": 10000.0, "capacity": "64MiB"},
}
EPSILON = 1e-5
END = 256  # Behind the 256 bytes.
SPREAD = 0.02
STEPS_MAX = 256  # Of one measurement; KV is allocated for them.
WARM_STEPS = 3
LAMINA_PARTS = ("pool", "device")
GENERATED = 33  # Tokens of transformers' answers.


def tensors(shape):
    """(name, shape) of the files' tensors, as Hugging Face names them."""
    width, hidden, head = shape["width"], shape["hidden"], shape["width"] // shape["heads"]
    yield "model.embed_tokens.weight", (shape["vocabulary"], width)
    for i in range(shape["layers"]):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (width,)
        yield layer + "self_attn.q_proj.weight", (width, width)
        yield layer + "self_attn.k_proj.weight", (shape["kv_heads"] * head, width)
        yield layer + "self_attn.v_proj.weight", (shape["kv_heads"] * head, width)
        yield layer + "self_attn.o_proj.weight", (width, width)
        yield layer + "post_attention_layernorm.weight", (width,)
        yield layer + "mlp.gate_proj.weight", (hidden, width)
        yield layer + "mlp.up_proj.weight", (hidden, width)
        yield layer + "mlp.down_proj.weight", (width, hidden)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (shape["vocabulary"], width)


def random_tensor(torch, sizes, device):
    if len(sizes) == 1:
        return torch.ones(sizes, dtype=torch.bfloat16, device=device)
    return torch.empty(sizes, dtype=torch.bfloat16, device=device).normal_(0, SPREAD)


def byte_names():
    """Of the 256 bytes in byte-level BPE: printable ones name themselves, the others come from 256 on."""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def model_config(shape):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape["width"],
            "intermediate_size": shape["hidden"], "num_hidden_layers": shape["layers"],
            "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"],
            "vocab_size": shape["vocabulary"], "max_position_embeddings": gpu_serve.SEQUENCE_TOKENS_MAX,
            "rms_norm_eps": EPSILON, "rope_theta": shape["theta"], "hidden_act": "silu", "tie_word_embeddings": False,
            "bos_token_id": END, "eos_token_id": END, "torch_dtype": "bfloat16"}


def write_model(torch, folder, shape, device, deadline):
    """A Hugging Face folder of random weights, made on the device."""
    end = {"id": END, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    others = {f"<|{i}|>": i for i in range(END + 1, shape["vocabulary"])}
    tokenizer = {"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": byte_level,
                 "post_processor": None, "decoder": byte_level,
                 "model": {"type": "BPE", "vocab": byte_names() | {"<|end|>": END} | others, "merges": []}}
    (folder / "config.json").write_text(json.dumps(model_config(shape)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    header, offset = {}, 0
    for name, sizes in tensors(shape):
        size = 2 * sizes[0] * (sizes[1] if len(sizes) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": sizes, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, sizes in tensors(shape):
            deadline.left()
            file.write(random_tensor(torch, sizes, device).view(torch.uint8).cpu().numpy().data)


class Loop:
    """One decode step after the other of B rows, each of which has `context` random tokens before it."""

    def __init__(self, torch, weights, shape, rows, context, device):
        self.torch, self.weights, self.shape, self.rows, self.position = torch, weights, shape, rows, context
        self.head = shape["width"] // shape["heads"]
        sizes = (rows, shape["kv_heads"], context + STEPS_MAX, self.head)
        self.kv = [[torch.empty(sizes, dtype=torch.bfloat16, device=device).normal_() for _ in "kv"]
                   for _ in range(shape["layers"])]
        self.ids = torch.zeros(rows, dtype=torch.long, device=device)
        frequencies = shape["theta"] ** (-torch.arange(0, self.head, 2, device=device).float() / self.head)
        angles = torch.outer(torch.arange(context + STEPS_MAX, device=device).float(), frequencies).repeat(1, 2)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rope(self, x):
        first, second = x.chunk(2, dim=-1)
        turned = self.torch.cat((-second, first), dim=-1)
        return x * self.cos[self.position] + turned * self.sin[self.position]

    def norm(self, x, name):
        return self.torch.nn.functional.rms_norm(x, (self.shape["width"],), self.weights[name], EPSILON)

    def step(self):
        f, w = self.torch.nn.functional, self.weights
        x = f.embedding(self.ids, w["model.embed_tokens.weight"])
        for i, (keys, values) in enumerate(self.kv):
            layer = f"model.layers.{i}."
            normal = self.norm(x, layer + "input_layernorm.weight")
            q, k, v = (f.linear(normal, w[f"{layer}self_attn.{n}_proj.weight"]).view(self.rows, -1, 1, self.head)
                       for n in "qkv")
            keys[:, :, self.position] = self.rope(k)[:, :, 0]
            values[:, :, self.position] = v[:, :, 0]
            upto = self.position + 1
            attended = f.scaled_dot_product_attention(self.rope(q), keys[:, :, :upto], values[:, :, :upto],
                                                      enable_gqa=self.shape["heads"] != self.shape["kv_heads"])
            x = x + f.linear(attended.reshape(self.rows, -1), w[layer + "self_attn.o_proj.weight"])
            normal = self.norm(x, layer + "post_attention_layernorm.weight")
            gate = f.silu(f.linear(normal, w[layer + "mlp.gate_proj.weight"]))
            x = x + f.linear(gate * f.linear(normal, w[layer + "mlp.up_proj.weight"]), w[layer + "mlp.down_proj.weight"])
        logits = f.linear(self.norm(x, "model.norm.weight"), w["lm_head.weight"])
        self.ids = logits.argmax(-1)
        self.position += 1


class Peer:
    """PyTorch on one device."""

    def __init__(self, torch, device, stretch):
        self.torch, self.device, self.stretch = torch, device, stretch

    def synchronize(self):
        if self.device != "cpu":
            self.torch.cuda.synchronize(self.device)

    def give_back(self):
        if self.device != "cpu":
            self.torch.cuda.empty_cache()

    def loop_rate(self, weights, shape, rows, context, deadline):
        loop = Loop(self.torch, weights, shape, rows, context, self.device)
        for _ in range(WARM_STEPS):
            loop.step()
        self.synchronize()
        begin, steps = time.monotonic(), 0
        while steps < STEPS_MAX - WARM_STEPS and time.monotonic() - begin < self.stretch:
            deadline.left()
            loop.step()
            steps += 1
            self.synchronize()  # A server, too, has each token before it goes on.
        return rows * steps / (time.monotonic() - begin)

    def generate_rate(self, model, rows, context):
        """Of the tokens after the first. Errors: ValueError, if these take no time that can be told."""
        ids = self.torch.randint(END, (rows, context), device=self.device)
        keys = {"attention_mask": self.torch.ones_like(ids), "do_sample": False, "pad_token_id": END}
        times = []
        for tokens in (2, 1, GENERATED):  # The first warms up.
            self.synchronize()
            begin = time.monotonic()
            model.generate(ids, min_new_tokens=tokens, max_new_tokens=tokens, **keys)
            self.synchronize()
            times.append(time.monotonic() - begin)
        if times[2] <= times[1]:
            raise ValueError(f"{GENERATED} tokens took {times[2]:.3f} s, one alone {times[1]:.3f} s")
        return rows * (GENERATED - 1) / (times[2] - times[1])

    def transformers_model(self, shape):
        """None where transformers is not installed."""
        try:
            import transformers
        except ImportError:
            return None
        config = transformers.LlamaConfig(**{k: v for k, v in model_config(shape).items() if k != "torch_dtype"})
        before = self.torch.get_default_dtype()
        self.torch.set_default_dtype(self.torch.bfloat16)
        try:
            with self.torch.device(self.device):
                return transformers.LlamaForCausalLM(config).eval()
        finally:
            self.torch.set_default_dtype(before)


def measure(result, points, rate, save):
    """The points' rates into `result`, whose "error" says what went wrong."""
    result.update({"points": [], "error": None})
    try:
        for rows, context in points:
            value = rate(rows, context)
            result["points"].append({"rows": rows, "context": context, "tokens_per_s": round(value, 2)})
            save()
    except gpu_serve.TimeUp:
        result["error"] = gpu_serve.TIME_UP
    except (RuntimeError, TypeError, ValueError) as error:  # Of PyTorch: out of memory, a version without this.
        result["error"] = f"{type(error).__name__}: {error}"
    save()


def ratios(parts, theirs):
    by_point = {(p["rows"], p["context"]): p["tokens_per_s"] for p in theirs}
    return [{"part": part["part"], "rows": p["rows"], "context": p["context"],
             "lamina_to_torch": round(p["tokens_per_s"] / by_point[p["rows"], p["context"]], 4)}
            for part in parts for p in part["points"] if (p["rows"], p["context"]) in by_point]


def run_torch(result, peer, shape, options, deadline, save):
    weights = {}
    result["torch"] = {}

    def rate(rows, context):
        if not weights:  # Here, so that memory that is too small for them is this part's error alone.
            weights.update((name, random_tensor(peer.torch, sizes, options.device)) for name, sizes in tensors(shape))
        return peer.loop_rate(weights, shape, rows, context, deadline)

    measure(result["torch"], options.points, rate, save)


def run_transformers(result, peer, shape, options, deadline, save):
    result["transformers"] = {}
    models = []

    def rate(rows, context):
        deadline.left()
        if not models:
            models.append(peer.transformers_model(shape))
        if models[0] is None:
            raise ValueError("transformers is not installed")
        return peer.generate_rate(models[0], rows, context)

    measure(result["transformers"], options.points, rate, save)


def run_lamina(result, peer, shape, options, found, deadline, save):
    parts = [gpu_serve.new_part(name, options.device) | {"points": [], "error": None} for name in LAMINA_PARTS]
    result["lamina"] = parts
    decode = "canonical" if options.device == "cpu" else "tensor"
    with tempfile.TemporaryDirectory(prefix="lamina-model-", dir=options.folder) as folder:
        options.model = pathlib.Path(folder)
        options.capacity = shape["capacity"]
        started = time.monotonic()
        try:
            write_model(peer.torch, options.model, shape, options.device, deadline)
        except (gpu_serve.TimeUp, OSError, RuntimeError) as error:  # The last: PyTorch is out of memory.
            up = isinstance(error, gpu_serve.TimeUp)
            for part in parts:
                part["error"] = gpu_serve.TIME_UP if up else f"writing the model: {error}"
            save()
            return
        peer.give_back()
        result["write_s"] = round(time.monotonic() - started, 2)
        for part in parts:
            gpu_serve.run_part(part, options, found, options.points, deadline, save, decode)


def named_parts(result):
    return [*((name, result[name]) for name in ("torch", "transformers")),
            *((f"lamina, {part['part']}", part) for part in result["lamina"])]


def table(result):
    for name, part in named_parts(result):
        for p in part["points"]:
            print(f"{result['shape']}: {name:14} {p['rows']:3} rows at {p['context']}: {p['tokens_per_s']} tokens/s")
        if part["error"] is not None:
            print(f"{result['shape']}: {name:14} failed: {part['error']}")
    for p in result["ratios"]:
        print(f"{result['shape']}: {p['rows']:3} rows at {p['context']}: Lamina, {p['part']}: {p['lamina_to_torch']} of "
              "PyTorch's loop", flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--shape", action="append", choices=SHAPES)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--points", type=gpu_serve.parse_points, default="1x512,16x1024,64x1024,64x4096")
    parser.add_argument("--limit", type=float, default=440)
    parser.add_argument("--stretch", type=float, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--bin")
    return parser.parse_args()


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + options.limit - gpu_serve.STOP_SECONDS
    try:
        import torch
        found = gpu_serve.programs(options.bin)
    except (ImportError, gpu_serve.Failure) as error:
        sys.exit(f"gpu_torch.py: {error}")
    results = {"device": options.device, "torch": torch.__version__, "shapes": []}
    peer = Peer(torch, options.device, options.stretch)
    wanted = options.shape or ["LLaMA-7B", "LLaMA-3-8B"]
    for i, name in enumerate(wanted):
        shape = SHAPES[name] | ({"layers": options.layers} if options.layers else {})
        result = {"shape": name, "layers": shape["layers"]}
        results["shapes"].append(result)
        share = (end - time.monotonic()) / (len(wanted) - i)
        save = functools.partial(gpu_serve.save_as, options.out, results)
        deadline = gpu_serve.Deadline(share)
        with torch.inference_mode():
            run_torch(result, peer, shape, options, deadline, save)
            peer.give_back()
            run_lamina(result, peer, shape, options, found, deadline, save)
            run_transformers(result, peer, shape, options, deadline, save)
            peer.give_back()
        result["ratios"] = ratios(result["lamina"], result["torch"]["points"])
        save()
        table(result)
    missing = "ValueError: transformers is not installed"
    parts = [part for result in results["shapes"] for _, part in named_parts(result)]
    return gpu_serve.exit_status([part for part in parts if part["error"] != missing])


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())

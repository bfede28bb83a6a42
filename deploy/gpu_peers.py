#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attention of one layer by others, on the shapes of `lamina-gpu-bench attention`.

By PyTorch's scaled_dot_product_attention (with FlashAttention and with cuDNN) and, where it is installed,
by FlashInfer over pages of 16 tokens, which it compiles at the first call. Heads are LLaMA-3-8B's, random
values in bf16.

usage: gpu_peers.py [--out FILE] [--repeats N] [--peer P]...
  --out FILE    write JSON here after each result (default: standard output, at the end)
  --repeats N   calls of each measurement, of which the fastest third counts (default: 30)
  --peer P      flash, cudnn or flashinfer; repeat for more (default: all)
JSON: {"device", "torch", "flashinfer": version or null, "results": [{"peer", "kind": "decode" or "prompt",
"rows" or "tokens", "context", "ms", "gb_per_s" or "tflop_per_s"} or {"peer", "kind", ..., "error"}]}
Exit status: 0 measured what there is, 1 there is no PyTorch or no device
"""

import argparse
import json
import os
import pathlib
import sys

KV_HEADS, GROUP, HEAD = 8, 4, 128
PAGE = 16
DECODE = [(64, 4096), (16, 4096), (1, 4096), (64, 1024)]
PROMPTS = [(512, 4096), (512, 512), (2048, 2048), (128, 4096), (512, 32768)]


def milliseconds(torch, call, repeats):
    """The mean of the fastest third of the calls, by the device's clock."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    fastest = sorted(times)[: max(1, repeats // 3)]
    return sum(fastest) / len(fastest)


def random_values(torch, *sizes):
    return torch.empty(sizes, dtype=torch.bfloat16, device="cuda").normal_()


class Sdpa:
    """PyTorch's, K and V of a batch in one tensor."""

    def __init__(self, torch, backend):
        self.torch = torch
        self.backend = backend

    def call(self, batch, queries, context):
        torch = self.torch
        from torch.nn.attention import sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        q = random_values(torch, batch, KV_HEADS * GROUP, queries, HEAD)
        k = random_values(torch, batch, KV_HEADS, context, HEAD)
        v = random_values(torch, batch, KV_HEADS, context, HEAD)
        mask = causal_lower_right(queries, context) if queries > 1 else None

        def attend():
            with sdpa_kernel([self.backend]):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)

        return attend


class FlashInfer:
    """Pages in order, prompts with K and V in one tensor."""

    def __init__(self, torch):
        import flashinfer

        self.torch = torch
        self.flashinfer = flashinfer
        self.workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")

    def call(self, batch, queries, context):
        torch, flashinfer = self.torch, self.flashinfer
        if queries > 1:
            q = random_values(torch, queries, KV_HEADS * GROUP, HEAD)
            k = random_values(torch, context, KV_HEADS, HEAD)
            v = random_values(torch, context, KV_HEADS, HEAD)
            return lambda: flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, backend="fa2")
        pages = batch * (context // PAGE)
        kv = random_values(torch, pages, 2, PAGE, KV_HEADS, HEAD)
        q = random_values(torch, batch, KV_HEADS * GROUP, HEAD)
        numbers = {"dtype": torch.int32, "device": "cuda"}
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(
            torch.arange(0, pages + 1, context // PAGE, **numbers),
            torch.arange(pages, **numbers),
            torch.full((batch,), PAGE, **numbers),
            KV_HEADS * GROUP,
            KV_HEADS,
            HEAD,
            PAGE,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
        return lambda: wrapper.run(q, kv)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0], epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--peer", action="append", choices=["flash", "cudnn", "flashinfer"])
    arguments = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("gpu_peers.py: PyTorch is not installed for this Python")
    if not torch.cuda.is_available():
        sys.exit("gpu_peers.py: no CUDA device")
    from torch.nn.attention import SDPBackend

    makers = {
        "flash": lambda: Sdpa(torch, SDPBackend.FLASH_ATTENTION),
        "cudnn": lambda: Sdpa(torch, SDPBackend.CUDNN_ATTENTION),
        "flashinfer": lambda: FlashInfer(torch),
    }
    results = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "flashinfer": None, "results": []}

    def write():
        text = json.dumps(results, indent=1) + "\n"
        if arguments.out:  # All of it or nothing, whenever this is ended.
            new = arguments.out.with_name(arguments.out.name + ".new")
            new.write_text(text)
            os.replace(new, arguments.out)
        return text

    for name in arguments.peer or makers:
        try:
            peer = makers[name]()
        except Exception as error:  # It is not installed, or not for this machine.
            results["results"].append({"peer": name, "error": str(error)})
            continue
        if name == "flashinfer":
            results["flashinfer"] = peer.flashinfer.__version__
        for rows, context in DECODE:
            point = {"peer": name, "kind": "decode", "rows": rows, "context": context}
            try:
                point["ms"] = milliseconds(torch, peer.call(rows, 1, context), arguments.repeats)
                point["gb_per_s"] = 4 * rows * context * KV_HEADS * HEAD / point["ms"] / 1e6
            except Exception as error:
                point["error"] = str(error)[:300]
            results["results"].append(point)
            write()
        for tokens, context in PROMPTS:
            point = {"peer": name, "kind": "prompt", "tokens": tokens, "context": context}
            try:
                point["ms"] = milliseconds(torch, peer.call(1, tokens, context), arguments.repeats)
                pairs = tokens * (context - (tokens - 1) / 2)
                point["tflop_per_s"] = 4 * pairs * KV_HEADS * GROUP * HEAD / point["ms"] / 1e9
            except Exception as error:
                point["error"] = str(error)[:300]
            results["results"].append(point)
            write()
    text = write()
    if not arguments.out:
        print(text, end="")


if __name__ == "__main__":
    main()

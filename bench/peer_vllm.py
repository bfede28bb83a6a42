# SPDX-License-Identifier: Apache-2.0
"""Decode rate of vLLM on the CPU for rows x context; run with the peers' own Python.

Prints one JSON line: {"rows", "context", "tokens_per_second"}. The rate is that of the tokens after the
first: (rows * tokens) / (time for 1 + tokens minus time for 1), the best of three.
"""

import argparse
import json
import pathlib
import random
import time


def hugging_face_model(gguf, folder):
    """The same weights in bf16, as a directory that vLLM reads; made once."""
    if not (folder / "config.json").exists():
        import torch
        import transformers
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
        # The weights were dequantised on loading, but the model still says that it is quantised, and
        # such a one is not saved.
        model.hf_quantizer = None
        model.is_quantized = False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--points", required=True, help="rows:context,rows:context")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    folder = hugging_face_model(arguments.gguf, arguments.folder)
    from vllm import LLM, SamplingParams
    llm = LLM(model=str(folder), dtype="bfloat16", max_model_len=8192, enable_prefix_caching=False,
              max_num_seqs=128, disable_log_stats=True)
    generator = random.Random(1)

    def seconds(rows, context, tokens):
        prompts = [{"prompt_token_ids": [generator.randrange(1000, 40000) for _ in range(context)]}
                   for _ in range(rows)]
        start = time.perf_counter()
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
                     use_tqdm=False)
        return time.perf_counter() - start

    for point in arguments.points.split(","):
        rows, context = (int(part) for part in point.split(":"))
        best = 0.0
        for _ in range(3):
            first = seconds(rows, context, 1)
            both = seconds(rows, context, 1 + arguments.tokens)
            best = max(best, rows * arguments.tokens / max(1e-9, both - first))
        print(json.dumps({"rows": rows, "context": context, "tokens_per_second": best}), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Decode rate of vLLM on the CPU for rows x context; run with the peers' own Python.

Prints one JSON line a point: {"rows", "context", "prompt_tokens_per_second", "tokens_per_second"}. The engine is stepped from here:
prompts take until every request has its first token; then nothing but decoding is left, and its steps are timed. The rate is that of
the fastest quarter of them, as others are measured by their best stretch.
"""

import argparse
import json
import os
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
    parser.add_argument("--dtype", default="bfloat16", help="bfloat16 (default) or float32")
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    folder = hugging_face_model(arguments.gguf, arguments.folder)
    # The engine in this process, so that its steps can be timed.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    llm = LLM(model=str(folder), dtype=arguments.dtype, max_model_len=8192, enable_prefix_caching=False,
              max_num_seqs=128, disable_log_stats=True)
    engine = llm.llm_engine
    generator = random.Random(1)

    def step_seconds(rows, context, tokens):
        """Of the prompts of all rows, and of steps in which all decode."""
        begin = time.perf_counter()
        for i in range(rows):
            prompt = {"prompt_token_ids": [generator.randrange(1000, 40000) for _ in range(context)]}
            # Requests whose prompts are done early go on until the last one's is.
            engine.add_request(f"{rows}-{context}-{i}", prompt,
                               SamplingParams(temperature=0, max_tokens=8192 - context, ignore_eos=True))
        started, seconds, prompts = set(), [], 0.0
        while len(seconds) < tokens:
            before = time.perf_counter()
            outputs = engine.step()
            after = time.perf_counter()
            if len(started) == rows:
                seconds.append(after - before)
            started.update(output.request_id for output in outputs if output.outputs[0].token_ids)
            if len(started) == rows and prompts == 0.0:
                prompts = after - begin
        engine.abort_request(list(started))
        while engine.has_unfinished_requests():
            engine.step()
        return prompts, sorted(seconds)

    for point in arguments.points.split(","):
        rows, context = (int(part) for part in point.split(":"))
        prompts, seconds = step_seconds(rows, context, arguments.tokens)
        fastest = seconds[:max(1, len(seconds) // 4)]
        best = rows * len(fastest) / sum(fastest)
        print(json.dumps({"rows": rows, "context": context, "prompt_tokens_per_second": rows * context / prompts,
                          "tokens_per_second": best}), flush=True)


if __name__ == "__main__":
    main()

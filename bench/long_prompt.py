# SPDX-License-Identifier: Apache-2.0
"""A prompt of 128k tokens through a bounded scratch: what the compute node's process takes at most, and whether tokens and log-probabilities are those
of a scratch that holds the whole prompt (`prefill.scratch_tokens`).

The bound: weights, windows, activations and `scratch_tokens` times a token's K and V, as the node accounts for them, and 64 MiB more for the
program itself. The model has random weights, 2 layers of width 128; its tokens are bytes.
"""

import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time

import cluster
import node_memory
import processor
import random_llama
from programs import BIN

KIB, MIB = 2**10, 2**20
PROGRAM = 64 * MIB
ANSWER = 16
FETCHING = ("fetch_heads", "fetch_recompute", "fetch_hybrid", "fetch_sparse")


def run(folder, prompt, tokens, scratch, policy):
    """(token ids, log-probabilities), seconds to the first token, and the node's memory."""
    shape = random_llama.Shape(**json.loads((folder / "shape.json").read_text()))
    fetch = (policy, {"window": f"{8 * tokens * shape.kv_bytes()}B"}) if policy in FETCHING else None
    with cluster.Cluster(1, memory_nodes=1, model=folder, running_max=1, scratch_tokens=scratch, sequence_tokens_max=tokens, fetch=fetch,
                         capacity=f"{2 * tokens * shape.layers * shape.kv_bytes()}B") as running, node_memory.Peak(running, "c0") as peak:
        begin = time.monotonic()
        done = subprocess.run([BIN / "lamina", "generate", "--server", running.address, "--prompt-file", prompt, "--max-tokens", str(ANSWER), "--ignore-eos",
                               "--logprobs", "1", "--json"], capture_output=True, text=True, check=True)
        seconds = time.monotonic() - begin
        answer = json.loads(done.stdout)
        return (answer["token_ids"], answer["logprobs"]), seconds, node_memory.of(running, "c0", peak)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--tokens", type=int, default=128 * KIB, help="of prompt and answer")
    parser.add_argument("--scratch", type=int, default=8 * KIB, help="tokens")
    parser.add_argument("--policy", choices=["attend_remote", *FETCHING], default="attend_remote")
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}")
    shape = random_llama.Shape(layers=2, width=128, hidden=256, heads=4, kv_heads=4, positions=arguments.tokens)
    results, answers = [], []
    with tempfile.TemporaryDirectory(prefix="lamina-long-") as name:
        folder = pathlib.Path(name)
        random_llama.write(folder, shape)
        (folder / "shape.json").write_text(json.dumps(vars(shape)))
        prompt = folder / "prompt.txt"
        letters = random.Random(1)
        prompt.write_text("".join(letters.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(arguments.tokens - ANSWER - 1)))
        print("| scratch, tokens | prompt, s | weights + windows + K and V + activations, MiB | resident at most, MiB | bound, MiB | |\n|---|---|---|---|---|---|")
        for scratch in (arguments.scratch, arguments.tokens):
            answer, seconds, memory = run(folder, prompt, arguments.tokens, scratch, arguments.policy)
            answers.append(answer)
            bound = memory.accounted + PROGRAM
            held = memory.resident <= bound
            results.append({"scratch": scratch, "seconds": seconds, "parts": memory.parts, "resident": memory.resident, "bound": bound, "held": held})
            parts = " + ".join(f"{memory.parts[part] / MIB:.0f}" for part in ("weights", "windows", "kv", "activations"))
            print(f"| {scratch:,} | {seconds:.0f} | {parts} = {memory.accounted / MIB:.0f} | {memory.resident / MIB:.0f} | {bound / MIB:.0f} | {'held' if held else 'exceeded'} |", flush=True)
    same = answers[0] == answers[1]
    print(f"\nTokens and log-probabilities are {'the same to the bit' if same else 'not the same'}.")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"machine": processor.machine(), "arguments": vars(arguments), "runs": results, "same": same}, out, indent=1)
    return 0 if same and all(one["held"] for one in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())

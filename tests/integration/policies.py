# SPDX-License-Identifier: Apache-2.0
"""A load that every policy must answer alike: prompts at once, greedy and drawn, with their log-probabilities."""

import json
import subprocess

import harness

# Together they need more slots than there are, each alone does not.
PROMPTS = ["The capital of France is", " ".join(f"Item {i} of the list." for i in range(16)), "1, 2, 3,",
           "Once upon a time"]
TOKENS = 72
# That of the policies that fetch, whatever the processor is fast at.
CANONICAL = {"decode": "canonical", "prefill": "canonical"}


def answers(test, cluster, policies=None, flag="--policy"):
    """Token ids and log-probabilities of all prompts, at once; one is sampled with a seed. With policies each prompt
    names the next of them in turn, with this flag."""
    running = []
    for i, prompt in enumerate(PROMPTS):
        policy = [flag, policies[i % len(policies)]] if policies else []
        sampling = ["--temperature", "0.9", "--seed", "7"] if i == 2 else ["--temperature", "0"]
        running.append(cluster.popen("generate", "--prompt", prompt, "--max-tokens", str(TOKENS), "--ignore-eos",
                                     "--logprobs", "1", "--json", *sampling, *policy, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE))
    found = []
    for process in running:
        out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
        test.assertEqual(process.returncode, 0, error)
        found.append((json.loads(out)["token_ids"], json.loads(out)["logprobs"]))
    return found

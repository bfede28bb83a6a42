# SPDX-License-Identifier: Apache-2.0
"""A load that every policy must answer alike: prompts at once, greedy and drawn, with their log-probabilities."""

import json
import subprocess

import harness
import short_model

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


def answers_through_a_kill(test, cluster, tokens=0):
    """Token ids of requests that ran when m0, which had K and V of some of them, was killed; `tokens` of them had come."""
    before = cluster.status()["tokens_generated"]
    running = []

    def alive():
        return sum(process.poll() is None for process in running)

    def are_running():
        status = cluster.status()
        return status["running"] >= alive() and status["tokens_generated"] >= before + tokens

    def is_used():
        return any(node["name"] == "m0" and node["slots_used"] > 0 for node in cluster.status()["nodes"])

    # Where a request goes depends on the bandwidths that were measured: more are started if need be.
    while len(running) < 2 or not is_used():
        test.assertLess(len(running), 16, cluster.logs())
        running += [cluster.popen(*short_model.ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        cluster.await_true(are_running, "running requests")
    cluster.kill("m0")
    test.assertGreater(alive(), 0, "all requests had ended before the kill")
    found = []
    for process in running:
        out, error = process.communicate(timeout=harness.COMMAND_SECONDS)
        test.assertEqual(process.returncode, 0, error)
        found.append(json.loads(out)["token_ids"])
    return found

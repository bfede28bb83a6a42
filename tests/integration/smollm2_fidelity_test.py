# SPDX-License-Identifier: Apache-2.0
"""The real model through real daemons, against transformers in float32 on the same weights.

The goldens (tests/fidelity/make_smollm2_goldens.py) are logits; the cluster gives log-probabilities. Both
agree up to one constant a position, so differences to the best token are compared.
"""

import json
import unittest
from pathlib import Path

import harness

GOLDENS = Path(__file__).resolve().parents[1] / "fidelity/goldens/smollm2.json"

# Weights and activations are bf16 here (8 bits of precision) and float32 there. The error of a logit is
# that of a sum of 576 products whose factors are each off by up to 2^-9, after 30 layers that add errors
# of their own; logits are of order 10. Seen: at most 0.2 among the likely tokens; twice that is allowed.
LOGIT_TOLERANCE = 0.4
PERPLEXITY_TOLERANCE = 0.005
LIKELY = 20  # As many alternatives as the cluster reports.


def ids(tokens):
    return ",".join(map(str, tokens))


class SmolLm2FidelityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls())
        cls.goldens = json.loads(GOLDENS.read_text())
        cls.cluster = harness.Cluster(model=harness.MODEL)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def runTest(self):
        pass  # Lets setUpClass make an instance to skip or fail with.

    def generate(self, tokens, count, logprobs):
        result = self.cluster.lamina("generate", "--tokens", ids(tokens), "--max-tokens", count,
                                     "--temperature", "0", "--ignore-eos", "--logprobs", logprobs,
                                     "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_tokenizes_the_prompts_as_transformers_does(self):
        for prompt in self.goldens["prompts"]:
            result = self.cluster.lamina("tokenize", "--json", "--prompt", prompt["text"])
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["tokens"], prompt["tokens"], prompt["text"])

    def test_logits_of_the_likely_tokens_are_within_the_tolerance(self):
        largest = 0.0
        for prompt in self.goldens["prompts"]:
            golden = dict(map(tuple, prompt["top"]))
            best = prompt["top"][0][0]
            answer = self.generate(prompt["tokens"], 1, LIKELY)
            found = {t["token"]: t["logprob"] for t in answer["logprobs"][0]["top"]}
            self.assertIn(best, found, prompt["text"])
            for token in found.keys() & golden.keys():
                difference = abs((found[token] - found[best]) - (golden[token] - golden[best]))
                largest = max(largest, difference)
                self.assertLess(difference, LOGIT_TOLERANCE, f"{prompt['text']!r} token {token}")
        print(f"largest difference of a logit {largest:.3f}")

    def test_greedy_tokens_are_the_same_wherever_the_margin_exceeds_the_tolerance(self):
        near = 0
        for prompt in self.goldens["prompts"]:
            done = 0
            greedy, margins = prompt["greedy"], prompt["greedy_margin"]
            while done < len(greedy):
                answer = self.generate(prompt["tokens"] + greedy[:done], len(greedy) - done, 0)
                wanted = greedy[done:]
                same = next((i for i, (a, b) in enumerate(zip(answer["token_ids"], wanted))
                             if a != b), len(wanted))
                done += same
                if done < len(greedy):
                    self.assertLess(margins[done], LOGIT_TOLERANCE,
                                    f"{prompt['text']!r} token {done} of the continuation")
                    near += 1
                    done += 1  # Go on behind the near tie, with transformers' choice.
        print(f"{near} near ties went the other way")

    def test_perplexity_of_a_long_text_is_within_half_a_percent(self):
        text = self.goldens["text"]
        result = self.cluster.lamina("score", "--tokens", ids(text["tokens"]), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        score = json.loads(result.stdout)
        self.assertEqual(len(score["logprobs"]), len(text["tokens"]) - 1)
        ratio = score["perplexity"] / text["perplexity"]
        print(f"perplexity {score['perplexity']:.4f}, transformers {text['perplexity']:.4f}")
        self.assertLess(abs(ratio - 1), PERPLEXITY_TOLERANCE)


if __name__ == "__main__":
    unittest.main()

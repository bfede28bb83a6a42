# SPDX-License-Identifier: Apache-2.0
"""Beam searches over the real model through real daemons, against transformers' generate() in float32 on the same
weights (tests/fidelity/make_beam_goldens.py), and the ways to ask for one.
"""

import json
import unittest
from pathlib import Path

import harness

GOLDENS = Path(__file__).resolve().parents[1] / "fidelity/goldens/smollm2_beams.json"

# Of a sum of log-probabilities, by tokens: weights and activations are float32 here and there, K and V are bf16 here.
# Twice of what was seen.
SUM_TOLERANCE = {2: 0.06, 5: 0.08, 20: 0.27}


def ids(tokens):
    return ",".join(map(str, tokens))


class BeamsFidelityTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        harness.require_model(cls())
        cls.goldens = json.loads(GOLDENS.read_text())
        cls.cluster = harness.Cluster(model=harness.MODEL, compute=[{"name": "c0", "compute_type": "f32"}])
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.__exit__)

    def runTest(self):
        pass  # Lets setUpClass make an instance to skip or fail with.

    def search(self, golden, *more):
        stopping = {True: "true", False: "false"}.get(golden["early_stopping"], golden["early_stopping"])
        width = self.goldens["width"]
        result = self.cluster.lamina("generate", "--tokens", ids(golden["tokens"]), "--max-tokens",
                                     golden["new_tokens"], "--beam-width", width, "--n", width,
                                     f"--length-penalty={golden['length_penalty']}", "--early-stopping", stopping,
                                     "--logprobs", "0", "--json", *more)
        self.assertEqual(result.returncode, 0, result.stderr)
        answers = sorted(harness.json_lines(result.stdout), key=lambda answer: answer["index"])
        self.assertEqual(len(answers), width)
        return answers

    def test_answers_are_those_of_transformers_wherever_the_margin_exceeds_the_rounding(self):
        compared, same, largest = 0, 0, {}
        for golden in self.goldens["searches"]:
            found = self.search(golden)
            by_tokens = {tuple(a["tokens"]): a["score"] for a in golden["answers"]}
            tolerance = SUM_TOLERANCE[golden["new_tokens"]]
            for answer in found:
                # What both have found, both give the same score.
                tokens = answer["token_ids"]
                if tuple(tokens) in by_tokens:
                    total = sum(one["logprob"] for one in answer["logprobs"])
                    scale = len(tokens) ** golden["length_penalty"]
                    difference = abs(total - by_tokens[tuple(tokens)] * scale)
                    largest[golden["new_tokens"]] = max(largest.get(golden["new_tokens"], 0), difference)
            same += [a["token_ids"] for a in found] == [a["tokens"] for a in golden["answers"]]
            if golden["margin"] > tolerance:
                compared += 1
                self.assertEqual([a["token_ids"] for a in found], [a["tokens"] for a in golden["answers"]])
        print(f"{compared} of {len(self.goldens['searches'])} searches have a margin; {same} have the same four "
              f"answers; largest difference of a sum by tokens {largest}")
        for tokens, difference in largest.items():
            self.assertLess(difference, SUM_TOLERANCE[tokens])
        self.assertGreaterEqual(compared, 5)
        self.assertGreaterEqual(same, 45)

    def test_the_best_answer_alone_is_the_first_of_all(self):
        golden = self.goldens["searches"][0]
        answers = self.search(golden)
        result = self.cluster.lamina("generate", "--tokens", ids(golden["tokens"]), "--max-tokens",
                                     golden["new_tokens"], "--beam-width", 4, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        (best,) = harness.json_lines(result.stdout)
        self.assertEqual(best["token_ids"], answers[0]["token_ids"])

    def test_a_search_that_cannot_be_is_refused_by_name(self):
        for flags, what in ((("--n", 5), "n is 5 and beam_width 4"), (("--temperature", 0.5), "temperature"),
                            (("--stop", "x"), "stop")):
            result = self.cluster.lamina("generate", "--prompt", "a", "--beam-width", 4, *flags)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(what, result.stderr)

    def test_best_of_shows_the_likeliest_of_what_n_would_show(self):
        ask = ("generate", "--prompt", "Once upon a time", "--max-tokens", 12, "--temperature", 1, "--seed", 5,
               "--logprobs", 0, "--json")
        result = self.cluster.lamina(*ask, "--n", 6)
        self.assertEqual(result.returncode, 0, result.stderr)
        choices = harness.json_lines(result.stdout)

        def mean(choice):
            return sum(one["logprob"] for one in choice["logprobs"]) / len(choice["logprobs"])

        choices.sort(key=mean, reverse=True)
        result = self.cluster.lamina(*ask, "--n", 2, "--best-of", 6)
        self.assertEqual(result.returncode, 0, result.stderr)
        best = sorted(harness.json_lines(result.stdout), key=lambda choice: choice["index"])
        self.assertEqual([b["token_ids"] for b in best], [c["token_ids"] for c in choices[:2]])


if __name__ == "__main__":
    unittest.main()

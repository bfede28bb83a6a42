#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""KV that outlives its requests: a chat over HTTP computes only what is new, with the same text, apart by API key."""

import json
import unittest
import urllib.request

import harness

TURNS = ["Name a fruit.", "Another one, please.", "Which of them is sweeter?", "Thank you. Say goodbye."]
LIST = "There are seven days in a week: " + ", ".join(
    ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday") * 4)
TOKENS = 40
KEYS = ["first-key-0123456789", "second-key-012345678"]


class PrefixCacheTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def ask(self, cluster, path, body, key=KEYS[0]):
        body = {"model": harness.MODEL.stem, "max_tokens": TOKENS, "temperature": 0, **body}
        request = urllib.request.Request(f"http://{cluster.gateway}{path}", json.dumps(body).encode(),
                                         {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(request, timeout=harness.COMMAND_SECONDS) as response:
            return json.load(response)

    def post(self, cluster, messages, key=KEYS[0], **more):
        return self.ask(cluster, "/v1/chat/completions", {"messages": messages, **more}, key)

    def chat(self, cluster, key=KEYS[0]):
        """The answers of all turns, and the usage of each."""
        messages, answers, usages = [], [], []
        for turn in TURNS:
            messages.append({"role": "user", "content": turn})
            result = self.post(cluster, messages, key)
            answers.append(result["choices"][0]["message"]["content"])
            usages.append(result["usage"])
            messages.append({"role": "assistant", "content": answers[-1]})
        return answers, usages

    def cluster(self, **keys):
        cluster = harness.Cluster(gateway={"listen": "127.0.0.1:0"}, **keys)
        key_file = cluster.directory / "keys"
        key_file.write_text("\n".join(KEYS) + "\n")
        cluster.overrides += ["--set", f"gateway.api_keys_file={key_file}"]
        return cluster

    def test_a_chat_computes_what_is_new_and_says_the_same(self):
        with self.cluster(prefix_cache="off") as cluster:
            expected, usages = self.chat(cluster)
            self.assertEqual([usage["prompt_tokens_details"]["cached_tokens"] for usage in usages], [0] * len(TURNS))
            logprobs, cached = self.prompt_logprobs(cluster)
            self.assertEqual(cached, 0)
        with self.cluster() as cluster:
            found, usages = self.chat(cluster)
            self.assertEqual(found, expected)
            self.check_usages(usages)
            self.check_status(cluster)
            self.check_salts(cluster, expected)
            self.check_prompt_logprobs(cluster, logprobs)

    def prompt_logprobs(self, cluster):
        """Those of all tokens of a prompt, and how many the answer to it found."""
        result = self.ask(cluster, "/v1/completions", {"prompt": LIST, "prompt_logprobs": 2})
        return result["choices"][0]["prompt_logprobs"], result["usage"]["prompt_tokens_details"]["cached_tokens"]

    def check_prompt_logprobs(self, cluster, expected):
        """They need every token computed, also those of a prompt that is kept."""
        self.assertGreater(len(expected), 48)
        self.assertTrue(all(expected[1:]))
        for warm in (False, True):
            found, cached = self.prompt_logprobs(cluster)
            self.assertEqual(found, expected)
            self.assertEqual(cached >= 48, warm)

    def check_usages(self, usages):
        before = None
        for usage in usages:
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(cached % 16, 0)
            if before is not None:
                # All of the turn before but the tokens of a block that was not full, and its last token. The
                # template may set an answer apart from how it was generated, by its end token.
                least = before["prompt_tokens"] - 16
                self.assertGreaterEqual(cached, least)
            before = usage

    def check_status(self, cluster):
        def slots(name):
            return sum(node[name] for node in cluster.status()["nodes"] if node["role"] == "memory")

        cluster.await_true(lambda: slots("slots_used") == 0, "slots of the last turn to be given up")
        self.assertGreater(slots("slots_kept"), 0)

    def check_salts(self, cluster, expected):
        again, usages = self.chat(cluster)
        self.assertEqual(again, expected)
        self.assertGreater(usages[0]["prompt_tokens_details"]["cached_tokens"], 0)
        # Another key finds nothing of it, and neither does the same key with a salt of its own.
        other, usages = self.chat(cluster, KEYS[1])
        self.assertEqual(other, expected)
        self.assertEqual(usages[0]["prompt_tokens_details"]["cached_tokens"], 0)
        message = [{"role": "user", "content": TURNS[0]}]
        salted = self.post(cluster, message, cache_salt="a")["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(salted, 0)
        salted = self.post(cluster, message, cache_salt="a")["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(salted, 0)


if __name__ == "__main__":
    unittest.main()

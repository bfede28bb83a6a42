#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Outputs of a given form: asked for by the openai package, judged by pydantic, json and re."""

import concurrent.futures
import json
import re
import tempfile
import unittest
from pathlib import Path
from typing import Literal

from harness import MODEL as MODEL_FILE, Cluster, json_lines, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("openai==3.54.0")

import openai  # noqa: E402  In the environment.
import pydantic  # noqa: E402  Comes with openai.

MODEL = "smollm2-135m-instruct"
CHAT = [{"role": "user", "content": "Describe a cat named Tom, who is three years old."}]
DATE = r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]"


class Cat(pydantic.BaseModel):
    """Not in alphabetical order, so that the order of an answer says something."""
    name: str = pydantic.Field(max_length=12)
    age: int = pydantic.Field(ge=0, le=40)
    colour: Literal["black", "white", "red"]
    tame: bool


class FormTest(unittest.TestCase):
    KEYS = {}

    @classmethod
    def setUpClass(cls):
        require_model(cls("test_a_model_of_pydantic_comes_back"))
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0"}, **cls.KEYS)
        cls.cluster.__enter__()
        cls.client = openai.OpenAI(base_url=f"http://{cls.cluster.gateway}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.__exit__()

    def chat(self, **keys):
        keys = {"model": MODEL, "max_tokens": 120, "temperature": 0, "messages": CHAT, **keys}
        return self.client.chat.completions.create(**keys)

    def forms(self, **outputs):
        return {"extra_body": {"structured_outputs": outputs}}

    def test_a_model_of_pydantic_comes_back(self):
        for seed, temperature in ((None, 0), (1, 1), (2, 1.5)):
            with self.subTest(temperature=temperature):
                answer = self.client.chat.completions.parse(
                    model=MODEL, max_tokens=120, temperature=temperature, seed=seed, messages=CHAT,
                    response_format=Cat)
                self.assertEqual(answer.choices[0].finish_reason, "stop")
                self.assertIsInstance(answer.choices[0].message.parsed, Cat)
                self.assertEqual(list(json.loads(answer.choices[0].message.content)),
                                 ["name", "age", "colour", "tame"])

    def test_a_stream_gives_the_same(self):
        form = {"type": "json_schema", "json_schema": {"name": "cat", "schema": Cat.model_json_schema()}}
        whole = self.chat(response_format=form).choices[0].message.content
        parts = [chunk.choices[0].delta.content or "" for chunk in self.chat(response_format=form, stream=True)]
        self.assertEqual("".join(parts), whole)
        self.assertGreater(len(parts), 5)

    def test_regular_expressions_and_choices(self):
        for seed in range(4):
            keys = {"temperature": 1.2, "seed": seed, "n": 3}
            for choice in self.chat(**keys, **self.forms(regex=DATE)).choices:
                self.assertIsNotNone(re.fullmatch(DATE, choice.message.content), choice.message.content)
                self.assertEqual(choice.finish_reason, "stop")
            for choice in self.chat(**keys, **self.forms(choice=["né", "a \"b\"", "c"])).choices:
                self.assertIn(choice.message.content, ("né", "a \"b\"", "c"))

    def test_any_object_and_what_is_cut_off(self):
        cut = self.chat(response_format={"type": "json_object"}, max_tokens=4)
        self.assertEqual(cut.choices[0].finish_reason, "length")
        self.assertTrue(cut.choices[0].message.content.startswith("{"))
        answer = self.client.completions.create(
            model=MODEL, prompt="A JSON object with one key: ", max_tokens=200, temperature=0,
            extra_body={"response_format": {"type": "json_object"}})
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].text), dict)

    def test_forms_with_others_change_nobodys_tokens(self):
        free = self.chat(max_tokens=24).choices[0].message.content
        dated = self.chat(**self.forms(regex=DATE)).choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            all_free = [pool.submit(self.chat, max_tokens=24) for _ in range(4)]
            all_dated = [pool.submit(self.chat, **self.forms(regex=DATE)) for _ in range(4)]
        self.assertEqual({f.result().choices[0].message.content for f in all_free}, {free})
        self.assertEqual({f.result().choices[0].message.content for f in all_dated}, {dated})

    def test_forms_that_are_wrong_are_refused_and_others_served(self):
        for keys in ({"response_format": {"type": "json_schema", "json_schema": {
                "name": "n", "schema": {"type": "colour"}}}},
                     self.forms(regex="("), self.forms(grammar="root ::= other"),
                     self.forms(regex="a" * 70000), self.forms(regex="a", choice=["b"])):
            with self.subTest(keys=str(keys)[:80]), self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**keys)
            self.assertIn(caught.exception.body["param"], ("response_format", "structured_outputs", None))
            self.assertTrue(caught.exception.body["message"])
        self.assertEqual(self.chat(**self.forms(choice=["yes"])).choices[0].message.content, "yes")

    def test_the_command_has_them_too(self):
        with tempfile.TemporaryDirectory() as folder:
            schema = Path(folder, "schema.json")
            schema.write_text(json.dumps(Cat.model_json_schema()))
            result = self.cluster.lamina("generate", "--chat", "--prompt", CHAT[0]["content"], "--max-tokens", "120",
                                         "--json", "--json-schema", schema)
            self.assertEqual(result.returncode, 0, result.stderr)
            Cat.model_validate_json(json_lines(result.stdout)[0]["text"])
            wrong = self.cluster.lamina("generate", "--prompt", "x", "--regex", "(")
            self.assertEqual(wrong.returncode, 1)
            self.assertIn("the form of the output", wrong.stderr)
            lines, answers = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            lines.write_text(json.dumps({
                "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": MODEL, "messages": CHAT, "max_tokens": 120, "temperature": 0,
                         "structured_outputs": {"regex": DATE}}}) + "\n")
            done = self.cluster.lamina("batch", "--input", lines, "--output", answers)
            self.assertEqual(done.returncode, 0, done.stderr)
            body = json.loads(answers.read_text())["response"]["body"]
            self.assertIsNotNone(re.fullmatch(DATE, body["choices"][0]["message"]["content"]))


class ReplicasTest(FormTest):
    """The same where each token of a sequence may be sampled by another process, the first by one for prefill only."""
    KEYS = {"compute": [{"name": "c0"}, {"name": "c1"}, {"name": "p0", "role": "prefill"}],
            "prefill": {"mode": "dedicated"}}


if __name__ == "__main__":
    unittest.main()

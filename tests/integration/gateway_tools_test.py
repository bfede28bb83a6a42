#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tools and thoughts, as the openai package sends and reads them.

The quick start's model is too small to call tools of its own accord. Where a call is required the
grammar makes it; where the model chooses, a form of the output has it say what is to be read.
"""

import json
import unittest
from pathlib import Path

from harness import MODEL as MODEL_FILE, Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("openai==3.54.0")

import openai  # noqa: E402  In the environment.
import pydantic  # noqa: E402  Comes with openai.

MODEL = "smollm2-135m-instruct"
TEMPLATE = Path(__file__).resolve().parent / "templates/hermes.jinja"
CHAT = [{"role": "user", "content": "What is the weather in Paris?"}]


def tool(name, properties, **keys):
    parameters = {"type": "object", "properties": properties, "required": list(properties),
                  "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"The {name}.",
                                             "parameters": parameters, **keys}}


WEATHER = tool("weather", {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1,
                                                                                "maximum": 9}})
TIME = tool("time", {"zone": {"type": "string", "enum": ["UTC", "CET"]}})
CALL = '<tool_call>\n{"name": "time", "arguments": {"zone": "CET"}}\n</tool_call>'


def named(name):
    return {"type": "function", "function": {"name": name}}


def says(text):
    """Has the model say a text."""
    return {"structured_outputs": {"choice": [text]}}


class GatewayToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_a_named_function_is_called"))
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0"}, chat_template=str(TEMPLATE))
        cls.cluster.__enter__()
        cls.client = openai.OpenAI(base_url=f"http://{cls.cluster.gateway}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.__exit__()

    def chat(self, **keys):
        keys = {"model": MODEL, "max_tokens": 200, "temperature": 0, "messages": CHAT, "tools": [WEATHER, TIME],
                **keys}
        return self.client.chat.completions.create(**keys)

    def streamed(self, **keys):
        """The calls of a stream, put together as clients do: {index: [id, name, arguments]}; its text; its end."""
        calls, text, ends = {}, "", []
        for chunk in self.chat(stream=True, **keys):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
                for delta in choice.delta.tool_calls or []:
                    if delta.index not in calls:
                        self.assertEqual(delta.type, "function")
                        calls[delta.index] = [delta.id, delta.function.name, ""]
                    calls[delta.index][2] += delta.function.arguments or ""
        self.assertEqual(len(ends), 1)
        return calls, text, ends[0]

    def check_weather(self, arguments):
        read = json.loads(arguments)
        self.assertEqual(list(read), ["city", "days"])
        self.assertIn(read["days"], range(1, 10))
        self.assertLessEqual(len(read["city"]), 12)

    def test_a_named_function_is_called(self):
        answer = self.chat(tool_choice=named("weather")).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertIsNone(answer.message.content)
        call, = answer.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "weather"))
        self.assertTrue(call.id.startswith("call_"))
        self.check_weather(call.function.arguments)

    def test_one_of_all_is_called_when_that_is_required(self):
        for seed in range(3):
            answer = self.chat(tool_choice="required", parallel_tool_calls=False, temperature=1.5, seed=seed)
            choice = answer.choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            call, = choice.message.tool_calls
            self.assertIn(call.function.name, ("weather", "time"))
            if call.function.name == "weather":
                self.check_weather(call.function.arguments)
            else:
                self.assertIn(json.loads(call.function.arguments)["zone"], ("UTC", "CET"))

    def test_a_stream_has_the_same_calls_in_pieces(self):
        whole = self.chat(tool_choice=named("weather")).choices[0].message.tool_calls[0].function
        calls, text, end = self.streamed(tool_choice=named("weather"))
        self.assertEqual((text, end), ("", "stop"))
        self.assertEqual(calls[0][1:], [whole.name, whole.arguments])
        deltas = [d for chunk in self.chat(stream=True, tool_choice=named("weather")) for c in chunk.choices
                  for d in c.delta.tool_calls or []]
        self.assertGreater(len(deltas), 4, "arguments come as they are made")

    def test_calls_of_the_models_own_accord_are_read(self):
        for answer, text, count in ((CALL, None, 1), ("I look.\n" + CALL + "\n" + CALL, "I look.", 2)):
            message = self.chat(extra_body=says(answer)).choices[0]
            self.assertEqual(message.finish_reason, "tool_calls")
            self.assertEqual(message.message.content, text)
            self.assertEqual([(c.function.name, json.loads(c.function.arguments)) for c in message.message.tool_calls],
                             [("time", {"zone": "CET"})] * count)
            self.assertEqual(len({c.id for c in message.message.tool_calls}), count)
            calls, streamed, end = self.streamed(extra_body=says(answer))
            self.assertEqual((streamed, end, len(calls)), (text or "", "tool_calls", count))
        one = self.chat(extra_body=says(CALL + "\n" + CALL), parallel_tool_calls=False).choices[0]
        self.assertEqual(len(one.message.tool_calls), 1)

    def test_malformed_calls_are_text(self):
        for answer in ('<tool_call>{"name": "time", "arguments": {</tool_call>',
                       '<tool_call>\n{"name": "rm", "arguments": {}}\n</tool_call>', "<tool_call>"):
            choice = self.chat(extra_body=says(answer)).choices[0]
            self.assertEqual((choice.message.content, choice.message.tool_calls, choice.finish_reason),
                             (answer, None, "stop"))
            self.assertEqual(self.streamed(extra_body=says(answer)), ({}, answer, "stop"))

    def test_no_choice_is_no_call(self):
        choice = self.chat(tool_choice="none", extra_body=says(CALL)).choices[0]
        self.assertEqual((choice.message.content, choice.message.tool_calls), (CALL, None))

    def test_a_conversation_goes_on_behind_a_call(self):
        call = self.chat(tool_choice=named("time"))
        history = CHAT + [call.choices[0].message, {"role": "tool", "content": "12:00",
                                                    "tool_call_id": call.choices[0].message.tool_calls[0].id}]
        answer = self.chat(messages=history, max_tokens=8)
        self.assertTrue(answer.choices[0].message.content)
        shown = self.client.post("/../tokenize", cast_to=object, body={
            "messages": [m if isinstance(m, dict) else m.model_dump() for m in history], "tools": [WEATHER, TIME]})
        self.assertEqual(shown["count"], answer.usage.prompt_tokens)
        text = self.client.post("/../detokenize", cast_to=object, body={"tokens": shown["tokens"]})["prompt"]
        self.assertIn('"name": "weather", "description": "The weather."', text)
        self.assertIn('<tool_call>\n{"name": "time", "arguments": {"zone": "', text)
        self.assertIn("<tool_response>\n12:00\n</tool_response>", text)

    def test_the_packages_own_parser_reads_a_call(self):
        class Weather(pydantic.BaseModel):
            """The weather of a city."""
            city: str = pydantic.Field(max_length=12)

        answer = self.client.chat.completions.parse(
            model=MODEL, max_tokens=100, temperature=0, messages=CHAT, tool_choice="required",
            tools=[openai.pydantic_function_tool(Weather)], parallel_tool_calls=False)
        self.assertIsInstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)

    def test_schemas_that_would_not_be_obeyed_are_refused(self):
        wrong = tool("f", {"x": {"type": "array", "items": {}, "uniqueItems": True}})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tools=[wrong], tool_choice="required")
        self.assertIn("uniqueItems", caught.exception.body["message"])

    def test_other_forms_exclude_a_required_call(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(tool_choice="required", extra_body=says("x"))
        self.assertEqual(caught.exception.body["param"], "tool_choice")

    def test_words_and_tokens_are_kept_out_or_in(self):
        free = self.chat(tools=[], max_tokens=24).choices[0].message.content
        word = max(free.split(), key=len)
        for length in (len(word), 3):
            kept = self.chat(tools=[], max_tokens=24, extra_body={"bad_words": [word[:length]]})
            self.assertNotIn(word[:length], kept.choices[0].message.content)
        ids = self.client.post("/../tokenize", cast_to=object, body={"prompt": " yes no"})["tokens"]
        only = self.chat(tools=[], max_tokens=9, extra_body={"allowed_token_ids": ids, "return_token_ids": True})
        self.assertLessEqual(set(only.choices[0].model_extra["token_ids"]), set(ids) | {2})
        self.assertEqual(len(only.model_extra["prompt_token_ids"]), only.usage.prompt_tokens)


class ThoughtTest(unittest.TestCase):
    """Thoughts in tags, by name: the template has none of its own."""

    @classmethod
    def setUpClass(cls):
        require_model(cls("test_thoughts_are_apart_from_text"))
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0", "reasoning_parser": "think"},
                              chat_template=str(TEMPLATE), memory_nodes=1)
        cls.cluster.__enter__()
        cls.client = openai.OpenAI(base_url=f"http://{cls.cluster.gateway}/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.__exit__()

    def chat(self, extra=None, **keys):
        return self.client.chat.completions.create(
            model=MODEL, max_tokens=80, temperature=0, messages=CHAT, extra_body=extra, **keys)

    def test_thoughts_are_apart_from_text(self):
        # Said as the form's text: the thought that may come before a form is skipped by the model.
        tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "<think>\nHm.\n</think>\n\nRain."}}
        answer = self.chat(extra={"response_format": tag})
        message = answer.choices[0].message
        self.assertEqual((message.content, message.model_extra["reasoning"], message.model_extra["reasoning_content"]),
                         ("Rain.", "Hm.", "Hm."))
        details = answer.usage.completion_tokens_details
        self.assertGreater(details.reasoning_tokens, 2)
        self.assertLess(details.reasoning_tokens, answer.usage.completion_tokens)
        hidden = self.chat(extra={"response_format": tag, "include_reasoning": False}).choices[0].message
        self.assertEqual((hidden.content, hidden.model_extra.get("reasoning")), ("Rain.", None))
        deltas = [c.choices[0].delta for c in self.chat(extra={"response_format": tag}, stream=True) if c.choices]
        self.assertEqual("".join(d.content or "" for d in deltas), "Rain.")
        self.assertEqual("".join((d.model_extra or {}).get("reasoning", "") for d in deltas), "Hm.")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Responses and Anthropic's Messages, by the openai and the anthropic package as they are."""

import json
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from harness import MODEL as MODEL_FILE, Cluster, json_lines, require_model, run, run_in_environment

if __name__ == "__main__":
    run_in_environment("openai==3.54.0", "anthropic==2.13.0")

import anthropic  # noqa: E402  In the environment.
import openai  # noqa: E402

MODEL = "smollm2-135m-instruct"
TEMPLATE = Path(__file__).resolve().parent / "templates/hermes.jinja"
KEY = "a-key-of-this-test"
SCHEMA = {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}}, "required": ["zone"],
          "additionalProperties": False}
QUESTION = "What time is it?"
GREEDY = {"temperature": 0}  # Which the package does not know.


class GatewayApisTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_a_response_is_what_a_chat_gives"))
        cls.folder = tempfile.TemporaryDirectory()
        keys = Path(cls.folder.name, "keys")
        keys.write_text(KEY + "\n")
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0", "api_keys_file": str(keys)},
                              chat_template=str(TEMPLATE), memory_nodes=1)
        cls.cluster.__enter__()
        cls.url = f"http://{cls.cluster.gateway}"
        cls.openai = openai.OpenAI(base_url=f"{cls.url}/v1", api_key=KEY, max_retries=0)
        cls.anthropic = anthropic.Anthropic(base_url=cls.url, api_key=KEY, max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.openai.close()
        cls.anthropic.close()
        cls.cluster.__exit__()
        cls.folder.cleanup()

    def chat(self, **keys):
        return self.openai.chat.completions.create(
            model=MODEL, max_tokens=6, temperature=0, messages=[{"role": "user", "content": QUESTION}], **keys)

    def respond(self, **keys):
        keys = {"model": MODEL, "max_output_tokens": 6, "temperature": 0, "input": QUESTION, **keys}
        return self.openai.responses.create(**keys)

    def message(self, **keys):
        keys = {"model": MODEL, "max_tokens": 6, "extra_body": GREEDY,
                "messages": [{"role": "user", "content": QUESTION}], **keys}
        return self.anthropic.messages.create(**keys)

    @staticmethod
    def prompt_tokens(message):
        """Of a message, those that were found too: Anthropic counts them apart."""
        usage = message.usage
        return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens

    def test_a_response_is_what_a_chat_gives(self):
        chat = self.chat()
        response = self.respond()
        self.assertEqual(response.output_text, chat.choices[0].message.content)
        self.assertEqual((response.usage.input_tokens, response.usage.output_tokens),
                         (chat.usage.prompt_tokens, chat.usage.completion_tokens))
        self.assertEqual((response.status, response.incomplete_details.reason), ("incomplete", "max_output_tokens"))
        text, last = "", None
        for event in self.respond(stream=True):
            text += event.delta if event.type == "response.output_text.delta" else ""
            last = event
        self.assertEqual(text, response.output_text)
        self.assertEqual(last.response.output_text, text)

    def test_a_response_calls_a_function_and_goes_on(self):
        tools = [{"type": "function", "name": "time", "parameters": SCHEMA, "strict": True}]
        response = self.respond(tools=tools, tool_choice="required", max_output_tokens=60, parallel_tool_calls=False)
        call, = response.output
        self.assertEqual((response.status, call.type, call.name), ("completed", "function_call", "time"))
        self.assertIn(json.loads(call.arguments)["zone"], ("UTC", "CET"))
        with self.openai.responses.stream(model=MODEL, input=QUESTION, tools=tools, tool_choice="required",
                                          max_output_tokens=60, temperature=0, parallel_tool_calls=False) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output[0].arguments, call.arguments)
        later = self.respond(input=[{"role": "user", "content": QUESTION}, call.model_dump(),
                                    {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}])
        self.assertTrue(later.output_text)

    def test_a_response_of_a_given_form(self):
        response = self.respond(max_output_tokens=60, text={"format": {
            "type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}})
        self.assertIn(json.loads(response.output_text)["zone"], ("UTC", "CET"))

    def test_what_would_need_a_memory_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.respond(previous_response_id="resp_1")
        self.assertEqual(caught.exception.body["param"], "previous_response_id")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.openai.embeddings.create(model=MODEL, input="x")
        self.assertIn("no embeddings", caught.exception.body["message"])

    def test_a_message_is_what_a_chat_gives(self):
        chat = self.chat()
        message = self.message()
        self.assertEqual(message.content[0].text, chat.choices[0].message.content)
        self.assertEqual((self.prompt_tokens(message), message.stop_reason), (chat.usage.prompt_tokens, "max_tokens"))
        with self.anthropic.messages.stream(model=MODEL, max_tokens=6, extra_body=GREEDY,
                                            messages=[{"role": "user", "content": QUESTION}]) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual((text, final.content[0].text, final.usage.output_tokens),
                         (message.content[0].text, text, message.usage.output_tokens))
        self.assertEqual(self.prompt_tokens(final), chat.usage.prompt_tokens)
        counted = self.anthropic.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": QUESTION}])
        self.assertEqual(counted.input_tokens, chat.usage.prompt_tokens)

    def test_messages_and_responses_say_how_much_of_their_prompt_was_found(self):
        story = "A clock on a tower struck thirteen, and nobody in the town asked why. " * 6
        asked = {"messages": [{"role": "user", "content": story}]}
        tokens = self.anthropic.messages.count_tokens(model=MODEL, **asked).input_tokens
        # Whole blocks of 16 tokens; the last token is always computed.
        found = (tokens - 1) // 16 * 16
        self.assertGreater(found, 64)
        messages = [self.message(**asked), self.message(**asked)]
        with self.anthropic.messages.stream(model=MODEL, max_tokens=6, extra_body=GREEDY, **asked) as stream:
            messages.append(stream.get_final_message())
        self.assertEqual([message.usage.cache_read_input_tokens for message in messages], [0, found, found])
        self.assertEqual([self.prompt_tokens(message) for message in messages], [tokens] * 3)
        usage = self.respond(input=story).usage
        self.assertEqual((usage.input_tokens, usage.input_tokens_details.cached_tokens), (tokens, found))

    def test_a_stop_sequence_that_ends_a_message_is_named(self):
        text = self.message(max_tokens=12).content[0].text
        stop = text.split()[1]
        message = self.message(max_tokens=12, stop_sequences=["@@", stop])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(message.content[0].text, text[:text.index(stop)])
        with self.anthropic.messages.stream(model=MODEL, max_tokens=12, extra_body=GREEDY, stop_sequences=["@@", stop],
                                            messages=[{"role": "user", "content": QUESTION}]) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.stop_sequence), ("stop_sequence", stop))

    def test_a_message_uses_a_tool_and_goes_on(self):
        tools = [{"name": "time", "description": "The time.", "input_schema": SCHEMA}]
        keys = {"tools": tools, "tool_choice": {"type": "tool", "name": "time"}, "max_tokens": 60}
        message = self.message(**keys)
        use, = message.content
        self.assertEqual((message.stop_reason, use.type, use.name), ("tool_use", "tool_use", "time"))
        self.assertIn(use.input["zone"], ("UTC", "CET"))
        with self.anthropic.messages.stream(model=MODEL, extra_body=GREEDY, **keys,
                                            messages=[{"role": "user", "content": QUESTION}]) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[0].input, use.input)
        later = self.message(tools=tools, messages=[
            {"role": "user", "content": QUESTION}, {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "12:00"}]}])
        self.assertTrue(later.content)
        begun = self.message(messages=[{"role": "user", "content": QUESTION},
                                       {"role": "assistant", "content": "It is"}])
        self.assertTrue(begun.content[0].text)

    def test_anthropics_errors_have_its_shape(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.message(max_tokens=-1)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError):
            self.message(model="other")
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=self.url, api_key="wrong", max_retries=0).messages.count_tokens(
                model=MODEL, messages=[{"role": "user", "content": "x"}])

    def test_the_command_says_what_is_wrong(self):
        http = run("status", server=self.cluster.gateway)
        self.assertEqual(http.returncode, 1)
        self.assertIn("speaks HTTP, as the gateway does", http.stderr)
        unknown = run("status", server="no-such-host.invalid:7400")
        self.assertEqual(unknown.returncode, 1)
        self.assertIn("no-such-host.invalid:7400 is not known here", unknown.stderr)
        for words in (["status", "--server", self.url], ["generate", "--tokens", "1,2,x"],
                      ["score", "--tokens", "1,2,x"]):
            self.assertEqual(run(*words).returncode, 2, words)
        refused = run("bench", "--json", "--requests", "1", server="127.0.0.1:1")
        self.assertEqual(refused.returncode, 1)
        self.assertEqual(json.loads(refused.stdout)["error"]["code"], "UNAVAILABLE")

    def test_a_batch_leaves_out_what_is_no_request(self):
        def line(name, **body):
            return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions",
                               "body": {"prompt": "a", "max_tokens": 2, **body}})
        lines = Path(self.folder.name, "in.jsonl")
        lines.write_text("\n".join([line("a", model=MODEL), "{no json", line("b", model="gpt-9"), line("c")]) + "\n")
        results = Path(self.folder.name, "out.jsonl")
        strict = self.cluster.lamina("batch", "--input", lines, "--output", results, "--strict")
        self.assertEqual((strict.returncode, results.exists()), (1, False))
        done = self.cluster.lamina("batch", "--input", lines, "--output", results)
        self.assertEqual(done.returncode, 1)
        self.assertIn("line 2", done.stderr)
        codes = {r["custom_id"]: r["response"]["status_code"] for r in json_lines(results.read_text())}
        self.assertEqual(codes, {"a": 200, "b": 404, "c": 200})

    def test_small_endpoints(self):
        def get(path):
            request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {KEY}"})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        self.assertEqual(get("/ping")["state"], "serving")
        info = get("/tokenizer_info")
        self.assertEqual(info["chat_template"], TEMPLATE.read_text())
        self.assertEqual(info["eos_token"], "<|im_end|>")
        self.assertEqual(get("/openapi.json")["components"]["schemas"]["TokenId"]["maximum"], info["vocab_size"] - 1)


if __name__ == "__main__":
    unittest.main()

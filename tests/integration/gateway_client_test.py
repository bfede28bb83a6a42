#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway, driven by the openai package as it is, against the command over gRPC."""

import asyncio
import json
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from harness import MODEL as MODEL_FILE, Cluster, json_lines, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("openai==3.54.0")

import openai  # noqa: E402  In the environment.
from openai.types import Completion  # noqa: E402
from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402

MODEL = "smollm2-135m-instruct"
PROMPT = "The capital of France is"
CHAT = [{"role": "user", "content": "Name three colours."}]
END = 2  # The model's end token.


def unknown_fields(model, where=""):
    """Fields of an answer, read into the openai package's types, that these do not know."""
    found = [f"{where}.{name}" for name in (model.model_extra or {})]
    for name in model.model_fields_set & set(type(model).model_fields):
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, openai.BaseModel):
                found += unknown_fields(item, f"{where}.{name}")
    return found


class GatewayClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_models"))
        cls.cluster = Cluster(model=MODEL_FILE, gateway={"listen": "127.0.0.1:0"})
        cls.cluster.__enter__()
        cls.url = f"http://{cls.cluster.gateway}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.cluster.__exit__()

    def complete(self, prompt=PROMPT, **keys):
        keys = {"model": MODEL, "max_tokens": 12, "temperature": 0, **keys}
        return self.client.completions.create(prompt=prompt, **keys)

    def chat(self, **keys):
        keys = {"model": MODEL, "max_tokens": 12, "temperature": 0, "messages": CHAT, **keys}
        return self.client.chat.completions.create(**keys)

    def generate(self, *arguments):
        result = self.cluster.lamina("generate", "--max-tokens", "12", "--json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json_lines(result.stdout)[0]

    def refused(self, error, call, **keys):
        """The error body of a call that must fail."""
        with self.assertRaises(error) as caught:
            call(**keys)
        body = caught.exception.body
        self.assertEqual(set(body), {"message", "type", "param", "code"})
        return body

    def test_models(self):
        names = [model.id for model in self.client.models.list()]
        self.assertEqual(names[0], MODEL)
        self.assertEqual(self.client.models.retrieve(names[1]).id, names[1])
        body = self.refused(openai.NotFoundError, self.client.models.retrieve, model="gpt-9")
        self.assertEqual(body["code"], "model_not_found")

    def test_a_completion_is_what_grpc_gives(self):
        expected = self.generate("--prompt", PROMPT)
        answer = self.complete()
        self.assertEqual(answer.choices[0].text, expected["text"])
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.prompt_tokens, expected["prompt_tokens"])
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.model, MODEL)

    def test_a_chat_is_what_grpc_gives(self):
        expected = self.generate("--chat", "--prompt", CHAT[0]["content"])
        message = self.chat().choices[0].message
        self.assertEqual(message.content, expected["text"])
        self.assertEqual(message.role, "assistant")
        expected = self.generate("--chat", "--prompt", "Name three\ncolours.")
        parts = [{"type": "text", "text": "Name three"}, {"type": "text", "text": "colours."}]
        again = self.chat(messages=[{"role": "user", "content": parts}])
        self.assertEqual(again.choices[0].message.content, expected["text"])

    def test_streams_give_the_same_text_and_usage(self):
        whole = self.complete(n=2)
        chunks = list(self.complete(n=2, stream=True, stream_options={"include_usage": True}))
        for index in (0, 1):
            mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
            self.assertEqual("".join(c.text for c in mine), whole.choices[index].text)
            self.assertEqual([c.finish_reason for c in mine][-1], "length")
            self.assertEqual({c.finish_reason for c in mine[:-1]}, {None})
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage, whole.usage)
        self.assertEqual({c.usage for c in chunks[:-1]}, {None})
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_chat_streams_begin_with_the_role(self):
        whole = self.chat()
        extra = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        chunks = list(self.chat(stream=True, extra_body=extra))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        counts = [c.usage.completion_tokens for c in chunks]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(chunks[-1].usage, whole.usage)
        self.assertEqual({c.usage.prompt_tokens for c in chunks}, {whole.usage.prompt_tokens})

    def test_batches_of_text_and_of_tokens(self):
        texts = ["One two three", PROMPT]
        alone = [self.complete(text).choices[0].text for text in texts]
        answer = self.complete(texts)
        self.assertEqual([c.text for c in answer.choices], alone)
        self.assertEqual([c.index for c in answer.choices], [0, 1])
        tokens = [json.loads(self.cluster.lamina("tokenize", "--prompt", text, "--json").stdout)
                  for text in texts]
        answer = self.complete([t["tokens"] for t in tokens])
        self.assertEqual([c.text for c in answer.choices], alone)
        self.assertEqual(self.complete(tokens[1]["tokens"]).choices[0].text, alone[1])

    def test_logprobs_have_openais_shapes(self):
        choice = self.complete(logprobs=3, max_tokens=4).choices[0]
        logprobs = choice.logprobs
        self.assertEqual("".join(logprobs.tokens), choice.text)
        self.assertEqual(logprobs.text_offset[0], 0)
        self.assertEqual(logprobs.text_offset[1], len(logprobs.tokens[0]))
        for name, value, top in zip(logprobs.tokens, logprobs.token_logprobs,
                                    logprobs.top_logprobs):
            self.assertEqual(max(top.values()), top[name])
            self.assertEqual(top[name], value)
            self.assertGreaterEqual(len(top), 3)
        content = self.chat(logprobs=True, top_logprobs=2, max_tokens=4).choices[0].logprobs.content
        self.assertEqual(len(content), 4)
        for entry in content:
            self.assertEqual(bytes(entry.bytes).decode(), entry.token)
            self.assertEqual(len(entry.top_logprobs), 2)
            self.assertEqual(entry.top_logprobs[0].token, entry.token, "greedy takes the first")
        streamed = [e for c in self.chat(logprobs=True, top_logprobs=2, max_tokens=4, stream=True)
                    for e in (c.choices[0].logprobs.content if c.choices[0].logprobs else [])]
        self.assertEqual(streamed, content)

    def record(self, path, **body):
        """The events of a stream as they came over the wire, without [DONE]."""
        data = json.dumps({"model": MODEL, "max_tokens": 4, "temperature": 0, "stream": True, **body})
        request = urllib.request.Request(f"{self.url}{path}", data.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            events = answer.read().decode().split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        self.assertEqual({event[:6] for event in events[:-1]}, {"data: "})
        return [json.loads(event[6:]) for event in events[:-2]]

    def assert_shape(self, kind, event):
        """Every field that the type demands is there, each has its type, and there is none besides."""
        self.assertEqual(unknown_fields(kind.model_validate(event, strict=True)), [], event)

    def test_recorded_streams_have_the_documented_shape(self):
        usage = {"stream_options": {"include_usage": True}}
        for body in ({"messages": CHAT}, {"messages": CHAT, "n": 2, **usage},
                     {"messages": CHAT, "logprobs": True, "top_logprobs": 2, **usage}):
            with self.subTest(body=body):
                events = self.record("/chat/completions", **body)
                for event in events:
                    self.assert_shape(ChatCompletionChunk, event)
                whole = self.record_whole("/chat/completions", **body)
                self.assert_shape(ChatCompletion, whole)
        for body in ({"prompt": PROMPT}, {"prompt": [PROMPT, "One"], **usage}, {"prompt": PROMPT, "logprobs": 2}):
            with self.subTest(body=body):
                # The package has one type for both: a chunk's finish_reason is null but in the last.
                for event in self.record("/completions", **body):
                    choices = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in event["choices"]]
                    self.assert_shape(Completion, {**event, "choices": choices})
                self.assert_shape(Completion, self.record_whole("/completions", **body))

    def record_whole(self, path, **body):
        body.pop("stream_options", None)
        data = json.dumps({"model": MODEL, "max_tokens": 4, "temperature": 0, **body})
        request = urllib.request.Request(f"{self.url}{path}", data.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def test_prompt_logprobs_are_those_of_score(self):
        answer = self.complete(max_tokens=2, extra_body={"prompt_logprobs": 0}).choices[0]
        tokens = json.loads(self.cluster.lamina("tokenize", "--prompt", PROMPT, "--json").stdout)["tokens"]
        shown = answer.prompt_logprobs
        self.assertIsNone(shown[0])
        self.assertEqual([list(entry) for entry in shown[1:]], [[str(token)] for token in tokens[1:]])
        score = json.loads(self.cluster.lamina("score", "--tokens", "-", "--json",
                                               stdin=" ".join(map(str, tokens))).stdout)
        for entry, expected in zip(shown[1:], score["logprobs"]):
            self.assertAlmostEqual(next(iter(entry.values()))["logprob"], expected, places=4)
        body = self.refused(openai.BadRequestError, self.complete, extra_body={"prompt_logprobs": 21})
        self.assertEqual(body["param"], "prompt_logprobs")
        self.assertEqual(self.complete(prompt=tokens[:1], max_tokens=1, extra_body={"prompt_logprobs": 1})
                         .choices[0].prompt_logprobs, [None])

    def test_prompt_logprobs_have_ranks_and_alternatives(self):
        # An own answer as the prompt: each of its tokens was the likeliest when it was sampled, next to the
        # same alternatives.
        first = self.complete(max_tokens=8, logprobs=3).choices[0]
        tokens = json.loads(self.cluster.lamina("tokenize", "--prompt", PROMPT + first.text, "--json").stdout)["tokens"]
        again = self.complete(prompt=tokens, max_tokens=0, echo=True, logprobs=3, extra_body={"prompt_logprobs": 3})
        shown = again.choices[0].prompt_logprobs
        self.assertEqual(len(shown), len(tokens))
        for token, entry in zip(tokens[1:], shown[1:]):
            ranks = {key: value["rank"] for key, value in entry.items()}
            self.assertEqual(next(iter(ranks)), str(token))
            self.assertEqual(set(ranks.values()), {1, 2, 3, ranks[str(token)]})
            self.assertEqual(len(ranks), 3 if ranks[str(token)] <= 3 else 4)
            best = sorted(entry.values(), key=lambda value: value["rank"])
            logprobs = [value["logprob"] for value in best]
            self.assertEqual(logprobs, sorted(logprobs, reverse=True))
        for entry, then in zip(shown[-8:], first.logprobs.top_logprobs):
            self.assertEqual(next(iter(entry.values()))["rank"], 1)
            self.assertEqual({value["decoded_token"] for value in entry.values()}, set(then))
        # The same numbers in the form of echo.
        for entry, top in zip(shown[1:], again.choices[0].logprobs.top_logprobs[1:]):
            for value in entry.values():
                self.assertEqual(top[value["decoded_token"]], value["logprob"])

    def test_prompt_logprobs_of_a_chat_are_of_its_template(self):
        answer = self.chat(max_tokens=1, extra_body={"prompt_logprobs": 1})
        request = urllib.request.Request(self.url.removesuffix("/v1") + "/tokenize",
                                         json.dumps({"model": MODEL, "messages": CHAT}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            tokens = json.load(reply)["tokens"]
        self.assertEqual([next(iter(entry)) for entry in answer.prompt_logprobs[1:]], [str(t) for t in tokens[1:]])
        self.assertEqual(answer.usage.prompt_tokens, len(tokens))

    def test_echo_shows_the_prompt_and_its_logprobs(self):
        alone = self.complete(max_tokens=3).choices[0].text
        self.assertEqual(self.complete(max_tokens=3, echo=True).choices[0].text, PROMPT + alone)
        answer = self.complete(max_tokens=0, echo=True, logprobs=0)
        self.assertEqual(answer.choices[0].text, PROMPT)
        self.assertEqual(answer.usage.completion_tokens, 0)
        self.assertEqual("".join(answer.choices[0].logprobs.tokens), PROMPT)
        tokens = self.cluster.lamina("tokenize", "--prompt", PROMPT).stdout
        score = json.loads(self.cluster.lamina("score", "--tokens", "-", "--json",
                                               stdin=tokens).stdout)
        shown = answer.choices[0].logprobs.token_logprobs
        self.assertIsNone(shown[0])
        for mine, expected in zip(shown[1:], score["logprobs"]):
            self.assertAlmostEqual(mine, expected, places=4)
        streamed = "".join(c.choices[0].text for c in
                           self.complete(max_tokens=3, echo=True, stream=True))
        self.assertEqual(streamed, PROMPT + alone)

    def test_an_echo_has_one_entry_more_than_the_prompt_though_the_model_ends(self):
        # As lm-eval scores continuations.
        tokens = json.loads(self.cluster.lamina("tokenize", "--prompt", PROMPT, "--json").stdout)["tokens"]
        for bias, finish in ({}, "length"), ({str(END): 100}, "stop"):
            answer = self.complete(prompt=[tokens], max_tokens=1, echo=True, logprobs=1, logit_bias=bias)
            self.assertEqual(answer.choices[0].finish_reason, finish)
            self.assertEqual(answer.choices[0].text.startswith(PROMPT), True)
            self.assertEqual("<|im_end|>" in answer.choices[0].text, False)
            shown = answer.choices[0].logprobs
            for entries in shown.tokens, shown.token_logprobs, shown.top_logprobs, shown.text_offset:
                self.assertEqual(len(entries), len(tokens) + 1)

    def test_stop_strings_do_not_leak(self):
        text = self.complete(max_tokens=24).choices[0].text
        stop = text[9:14]  # From the middle of one word into another.
        expected = text[:text.index(stop)]
        answer = self.complete(max_tokens=24, stop=[stop, "never there"]).choices[0]
        self.assertEqual((answer.text, answer.finish_reason), (expected, "stop"))
        seen = [c.choices[0] for c in self.complete(max_tokens=24, stop=stop, stream=True)]
        self.assertEqual("".join(c.text for c in seen), expected)
        self.assertEqual(seen[-1].finish_reason, "stop")

    def test_sampling_parameters_reach_the_model(self):
        hot = {"temperature": 1.5, "seed": 7, "top_p": 0.9, "extra_body": {"top_k": 40}}
        self.assertEqual(self.complete(**hot).choices[0].text, self.complete(**hot).choices[0].text)
        differing = {self.complete(temperature=1.5, seed=s).choices[0].text for s in range(4)}
        self.assertGreater(len(differing), 1)
        first = self.complete(max_tokens=1, logprobs=0).choices[0]
        token = self.cluster.lamina("tokenize", "--prompt", first.text, "--json")
        token = json.loads(token.stdout)["tokens"][0]
        other = self.complete(max_tokens=1, logit_bias={str(token): -100}).choices[0].text
        self.assertNotEqual(other, first.text)
        long = self.chat(max_tokens=60, extra_body={"ignore_eos": True})
        self.assertEqual(long.usage.completion_tokens, 60)
        best = self.complete(temperature=1.0, seed=3, best_of=3, n=1)
        self.assertEqual(len(best.choices), 1)
        self.assertEqual(best.usage.completion_tokens, 36)

    def test_beams_are_searched(self):
        greedy = self.complete(temperature=0).choices[0].text
        one = self.complete(extra_body={"use_beam_search": True, "beam_width": 1})
        self.assertEqual(one.choices[0].text, greedy)
        answers = self.complete(n=3, logprobs=0, extra_body={"use_beam_search": True, "beam_width": 5})
        sums = [sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
                for choice in answers.choices]
        self.assertEqual(len(sums), 3)
        self.assertEqual(sums, sorted(sums, reverse=True))
        chat = self.chat(extra_body={"use_beam_search": True, "early_stopping": "never"})
        self.assertTrue(chat.choices[0].message.content)

    def post(self, path, body):
        """The HTTP status, and the body of the answer."""
        request = urllib.request.Request(self.url + path, json.dumps({"model": MODEL, **body}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def test_a_batch_chooses_among_answers_as_the_gateway_does(self):
        plain = {"prompt": PROMPT, "max_tokens": 12}
        beams = {**plain, "use_beam_search": True}
        asked = {
            "beams": beams,
            "beams of all words": {**beams, "beam_width": 5, "n": 3, "length_penalty": 0.5, "early_stopping": "never"},
            "beams of a chat": {"messages": CHAT, "max_tokens": 12, "use_beam_search": True, "n": 2},
            "best of": {**plain, "best_of": 3, "temperature": 1, "seed": 3, "top_p": 1, "top_k": 0},
            "too wide": {**beams, "beam_width": 11},
            "too narrow": {**beams, "beam_width": 2, "n": 3},
            "hot": {**beams, "temperature": 0.5},
            "with a stop": {**beams, "stop": "x"},
            "no search": {**plain, "length_penalty": 2},
            "less than n": {**plain, "n": 3, "best_of": 2}}

        def path_of(body):
            return "/chat/completions" if "messages" in body else "/completions"

        def shown(status, body):
            if "error" in body:
                return status, body["error"]
            choices = [(choice["index"], choice["text"] if "text" in choice else choice["message"]["content"],
                        choice["finish_reason"]) for choice in body["choices"]]
            return status, choices, body["usage"]["completion_tokens"]

        with tempfile.TemporaryDirectory() as folder:
            lines, results = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
            lines.write_text("".join(json.dumps({"custom_id": name, "method": "POST", "url": f"/v1{path_of(body)}",
                                                 "body": {"model": MODEL, **body}}) + "\n"
                                     for name, body in asked.items()))
            done = self.cluster.lamina("batch", "--input", lines, "--output", results)
            self.assertEqual(done.returncode, 0, done.stderr)
            found = {result["custom_id"]: result["response"] for result in json_lines(results.read_text())}
        self.assertEqual(set(found), set(asked))
        for name, body in asked.items():
            with self.subTest(name):
                status, answer = self.post(path_of(body), body)
                self.assertEqual(status, 400 if name in list(asked)[4:] else 200)
                self.assertEqual(shown(found[name]["status_code"], found[name]["body"]), shown(status, answer))

    def test_errors_name_what_is_wrong(self):
        bad = openai.BadRequestError
        body = self.refused(openai.NotFoundError, self.complete, model="gpt-9")
        self.assertEqual((body["param"], body["code"]), ("model", "model_not_found"))
        for keys, param, code in (
                ({"temperature": 3}, "temperature", "decimal_above_max_value"),
                ({"temperature": "hot"}, "temperature", "invalid_type"),
                ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
                ({"n": 1000}, "n", "integer_above_max_value"),
                ({"stop": ["x"] * 17}, "stop", "array_above_max_length"),
                ({"suffix": "x"}, "suffix", "unsupported_parameter"),
                ({"extra_body": {"temperatur": 1}}, "temperatur", "unknown_parameter"),
                ({"prompt": []}, "prompt", "empty_array"),
                ({"prompt": ["x"] * 200}, "prompt", "array_above_max_length"),
                ({"prompt": "word " * 9000}, None, "context_length_exceeded")):
            with self.subTest(param=param, code=code):
                body = self.refused(bad, self.complete, **keys)
                self.assertEqual((body["param"], body["code"]), (param, code))
                self.assertEqual(body["type"], "invalid_request_error")
        for kind in ("grammar", "json_schema"):
            body = self.refused(bad, self.chat, response_format={"type": kind})
            self.assertEqual(body["param"], "response_format")
        body = self.refused(bad, self.chat, messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://x"}}]}])
        self.assertEqual(body["param"], "messages[0].content[0].type")

    def test_many_streams_at_once(self):
        async def one(client, index):
            stream = await client.completions.create(
                model=MODEL, prompt=f"Number {index} is", max_tokens=6, temperature=0, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def all_of_them():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="x", max_retries=0) as client:
                return await asyncio.gather(*(one(client, i) for i in range(24)))

        texts = asyncio.run(all_of_them())
        self.assertEqual(texts[5], self.complete("Number 5 is", max_tokens=6).choices[0].text)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One request, followed: its id in the logs of every daemon, in answers and in spans; JSON logs."""

import http.client
import json
import unittest

from harness import MODEL as WHOLE_MODEL, START_SECONDS, Cluster, require_model

DAEMONS = ("coordinator", "gateway", "c0", "m0")
MODEL = "smollm2-135m-instruct"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLER = "00f067aa0ba902b7"
WORDS = "Xylophones and quagmires"


class FollowingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_every_line_of_every_log_is_json"))
        cls.cluster = Cluster(model=WHOLE_MODEL, memory_nodes=1, gateway={"listen": "127.0.0.1:0"},
                              log={"level": "debug", "format": "json"})
        spans = cls.cluster.directory / "spans.jsonl"
        cls.cluster.overrides += ["--set", f"coordinator.spans={spans}"]
        cls.cluster.__enter__()
        cls.spans = spans

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def ask(self, headers=None, **keys):
        connection = http.client.HTTPConnection(self.cluster.gateway, timeout=START_SECONDS)
        self.addCleanup(connection.close)
        body = {"model": MODEL, "prompt": WORDS, "max_tokens": 3, "temperature": 0, **keys}
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        return answer, answer.read()

    def lines(self, daemon):
        return [json.loads(line) for line in self.cluster.log(daemon).splitlines()]

    def lines_of(self, daemon, request_id):
        return [line for line in self.lines(daemon) if line.get("request_id") == request_id]

    def await_line(self, daemon, request_id, message):
        def there():
            return [line for line in self.lines_of(daemon, request_id)
                    if line["message"] == message]
        self.cluster.await_true(there, f"'{message}' of {request_id} in the log of {daemon}")
        return there()[0]

    def spans_of(self, request_id):
        """The spans of a request by name, once they are there."""
        def found():
            for line in self.spans.read_text().splitlines():
                spans = json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
                if any(a["value"].get("stringValue") == request_id for a in spans[0]["attributes"]):
                    return {span["name"]: span for span in spans}
            return None
        self.cluster.await_true(found, f"spans of {request_id}")
        return found()

    def test_a_request_is_in_the_logs_of_all_who_work_on_it(self):
        answer, _ = self.ask({"x-request-id": "follow-me-1"})
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.getheader("x-request-id"), "follow-me-1")
        admitted = self.await_line("coordinator", "follow-me-1", "admitted")
        finished = self.await_line("coordinator", "follow-me-1", "finished")
        answered = self.await_line("gateway", "follow-me-1", "answered")
        self.assertEqual(admitted["id"], answered["id"])
        self.assertEqual(finished["completion_tokens"], 3)
        for node in ("c0", "m0"):
            joined = self.await_line(node, "follow-me-1", "request joins")
            left = self.await_line(node, "follow-me-1", "request leaves")
            self.assertEqual(joined["sequence"], admitted["sequence"])
            self.assertEqual(left["sequence"], admitted["sequence"])

    def test_a_request_without_an_id_gets_one(self):
        answer, _ = self.ask()
        given = answer.getheader("x-request-id")
        self.assertTrue(given)
        self.await_line("coordinator", given, "finished")
        self.await_line("m0", given, "request leaves")

    def test_a_traceparent_becomes_the_parent_of_spans(self):
        state = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
        self.ask({"x-request-id": "traced", "traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": state})
        spans = self.spans_of("traced")
        self.assertEqual({span["traceState"] for span in spans.values()}, {state})
        self.assertEqual(set(spans), {"generate", "queue", "prefill", "decode"})
        self.assertEqual({span["traceId"] for span in spans.values()}, {TRACE})
        self.assertEqual(spans["generate"]["parentSpanId"], CALLER)
        for name in ("queue", "prefill", "decode"):
            self.assertEqual(spans[name]["parentSpanId"], spans["generate"]["spanId"])
        order = [int(spans["queue"]["startTimeUnixNano"]), int(spans["queue"]["endTimeUnixNano"]),
                 int(spans["prefill"]["endTimeUnixNano"]), int(spans["decode"]["endTimeUnixNano"])]
        self.assertEqual(order, sorted(order))

    def test_a_traceparent_of_another_form_begins_a_trace(self):
        self.ask({"x-request-id": "misled", "traceparent": f"00-{TRACE.upper()}-{CALLER}-01", "tracestate": "a=b"})
        spans = self.spans_of("misled")
        self.assertNotIn("traceState", spans["generate"])
        self.assertNotIn("parentSpanId", spans["generate"])
        self.assertNotEqual(spans["generate"]["traceId"].lower(), TRACE)

    def test_errors_carry_the_id(self):
        answer, body = self.ask({"x-request-id": "too-long"}, prompt=[1] * 9000)
        self.assertEqual(answer.status, 400, body)
        self.assertEqual(answer.getheader("x-request-id"), "too-long")
        refused = self.await_line("coordinator", "too-long", "refused")
        self.assertEqual(refused["status"], "INVALID_ARGUMENT")

    def test_commands_without_a_gateway_are_followed_too(self):
        result = self.cluster.lamina("generate", "--prompt", WORDS, "--max-tokens", "2",
                                     "--ignore-eos", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        request_id = json.loads(result.stdout)["request_id"]
        self.await_line("coordinator", request_id, "finished")
        self.await_line("c0", request_id, "request leaves")

    def test_every_line_of_every_log_is_json(self):
        answer, _ = self.ask({"x-request-id": "quiet"})
        self.assertEqual(answer.status, 200)
        self.await_line("m0", "quiet", "request leaves")
        for daemon in DAEMONS:
            lines = self.lines(daemon)
            self.assertTrue(lines, daemon)
            for line in lines:
                self.assertEqual(line["node"], daemon)
                self.assertIn(line["level"], ("debug", "info", "warning", "error"))
                self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            # Prompts are nobody's business.
            self.assertNotIn(WORDS.split()[0], self.cluster.log(daemon))


if __name__ == "__main__":
    unittest.main()

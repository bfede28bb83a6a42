#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""/metrics and /health of every daemon of a real cluster, and the dashboard and alerts over them.

The pages are read by a strict reader of Prometheus's text format here, by promtool, and by Debian's
Prometheus, which deploy/get_prometheus.sh unpacks into the build folder without installing it.
"""

import json
import os
import re
import shutil
import subprocess
import unittest
import urllib.error
import urllib.parse
import urllib.request

from harness import BIN, MODEL, REPO, Cluster, require_model

MONITORING = REPO / "deploy/monitoring"
FREE = "127.0.0.1:0"
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)$')
_METRIC = re.compile(r"\b(?:vllm:|lamina_)[a-z0-9_]+")
SECONDS = 20


def tool(test, name):
    """The path of a program of Debian's package prometheus; gets it if it is not there."""
    installed = shutil.which(name)
    if installed is not None:
        return installed
    folder = BIN.parent / "environments/prometheus"
    got = subprocess.run([str(REPO / "deploy/get_prometheus.sh"), "--output", str(folder)],
                         capture_output=True, text=True)
    if got.returncode != 0:
        if os.environ.get("LAMINA_REQUIRE_MODEL") == "1":
            test.fail(got.stderr)
        raise unittest.SkipTest(got.stderr)
    return str(folder / "usr/bin" / name)


def cluster_file():
    return json.dumps({
        "model": str(MODEL),
        "coordinator": {"listen": FREE, "http": FREE},
        "compute": [{"name": "c0", "http": FREE}],
        "memory": [{"name": f"m{i}", "capacity": "256MiB", "http": FREE} for i in range(2)],
        "gateway": {"listen": FREE}})


def read_page(text):
    """{(name, labels): value} of a page; fails on anything that is not the text format."""
    samples, types, helps = {}, {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            assert name not in helps, f"{name} has its help twice"
            helps.add(name)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is in two places"
            assert kind in ("counter", "gauge", "histogram"), line
            types[name] = kind
        else:
            match = _SAMPLE.match(line)
            assert match, f"not a sample: {line}"
            name, labels, value = match.groups()
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            kind = types.get(name) or types.get(base)
            assert kind, f"{name} has no type before it"
            assert kind != "counter" or name.endswith("_total"), f"{name} is a counter without _total"
            assert (name, labels) not in samples, f"{line} is there twice"
            samples[name, labels] = float(value)
    assert text.endswith("\n") and helps == set(types)
    return samples


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_health"))
        cls.cluster = Cluster(text=cluster_file())
        cls.cluster.__enter__()
        result = cls.cluster.lamina("generate", "--prompt", "One two three", "--max-tokens", "5",
                                    "--ignore-eos")
        assert result.returncode == 0, result.stderr

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()

    def url(self, daemon, path):
        if daemon == "gateway":
            return f"http://{self.cluster.gateway}{path}"
        found = re.findall(r"metrics at (http://\S+)/metrics", self.cluster.log(daemon))
        self.assertTrue(found, self.cluster.log(daemon))
        return found[-1] + path

    def get(self, daemon, path):
        with urllib.request.urlopen(self.url(daemon, path), timeout=SECONDS) as answer:
            return answer.read().decode()

    def page(self, daemon):
        return read_page(self.get(daemon, "/metrics"))

    def value(self, page, name, *parts):
        found = [v for (n, labels), v in page.items() if n == name and all(p in (labels or "") for p in parts)]
        self.assertEqual(len(found), 1, f"{name} {parts}")
        return found[0]

    def total(self, page, name):
        values = [v for (n, _), v in page.items() if n == name]
        self.assertTrue(values, name)
        return sum(values)

    def test_health(self):
        for daemon in ("coordinator", "c0", "m0", "m1"):
            self.assertEqual(self.get(daemon, "/health"), "ok\n")
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.get("m0", "/nothing")
        self.assertEqual(caught.exception.code, 404)

    def test_the_coordinator_counts_requests(self):
        before = self.page("coordinator")
        result = self.cluster.lamina("generate", "--prompt", "One two three", "--max-tokens", "7",
                                     "--ignore-eos", "--json")
        prompt = json.loads(result.stdout)["prompt_tokens"]
        refused = self.cluster.lamina("generate", "--tokens", "9999999")
        self.assertEqual(refused.returncode, 1)
        after = self.page("coordinator")

        def grown(name, *parts):
            return self.value(after, name, *parts) - self.value(before, name, *parts)

        # By the name of the model in /v1/models.
        self.assertEqual(grown("vllm:generation_tokens_total", f'model_name="{MODEL.stem}"'), 7)
        self.assertEqual(grown("vllm:prompt_tokens_total"), prompt)
        self.assertEqual(grown("vllm:request_success_total", 'finished_reason="length"'), 1)
        self.assertEqual(grown("vllm:request_success_total", 'finished_reason="stop"'), 0)
        self.assertEqual(grown("vllm:time_to_first_token_seconds_count"), 1)
        self.assertEqual(grown("vllm:inter_token_latency_seconds_count"), 6)
        for part in ("queue", "prefill", "decode"):
            self.assertEqual(grown(f"vllm:request_{part}_time_seconds_count"), 1)
        whole = grown("vllm:e2e_request_latency_seconds_sum")
        parts = sum(grown(f"vllm:request_{part}_time_seconds_sum")
                    for part in ("queue", "prefill", "decode"))
        self.assertAlmostEqual(whole, parts, places=5)
        self.assertEqual(grown("lamina_requests_failed_total", 'code="invalid_argument"'), 1)
        self.assertEqual(self.value(after, "vllm:num_requests_running"), 0)
        self.assertEqual(self.value(after, "lamina_serving"), 1)
        self.assertEqual(self.value(after, "lamina_node_ready", 'node="m1"'), 1)
        self.assertGreater(self.value(after, "lamina_node_slots", 'node="m0"'), 0)

    def test_the_coordinator_counts_what_prompts_find(self):
        prompt = "What is counted here is seen by no other test. " * 8

        def grown():
            """The tokens that looked for K and V, those that found them, and the answer that says so to its client."""
            before = self.page("coordinator")
            result = self.cluster.lamina("generate", "--prompt", prompt, "--max-tokens", "3", "--ignore-eos",
                                         "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            after = self.page("coordinator")
            asked, found = (self.value(after, name, f'model_name="{MODEL.stem}"') - self.value(before, name)
                            for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"))
            return asked, found, json.loads(result.stdout)

        asked, found, answer = grown()
        self.assertGreater(answer["prompt_tokens"], 64)
        self.assertEqual((asked, found), (answer["prompt_tokens"], 0))
        asked, found, answer = grown()
        # Blocks of 16 tokens, and the last token is always computed.
        self.assertEqual(asked, answer["prompt_tokens"])
        self.assertEqual(found, (answer["prompt_tokens"] - 1) // 16 * 16)
        self.assertEqual(found, answer["cached_tokens"])

    def test_nodes_count_their_work(self):
        compute = self.page("c0")
        self.assertGreater(self.value(compute, "lamina_busy_seconds_total", 'role="compute"'), 0)
        self.assertGreater(self.value(compute, "lamina_sent_bytes_total"), 0)
        self.assertEqual(self.total(compute, "lamina_refused_messages_total"), 0)
        memory = [self.page(name) for name in ("m0", "m1")]
        self.assertGreater(sum(self.value(p, "lamina_kv_read_bytes_total") for p in memory), 0)
        self.assertGreater(self.value(memory[0], "lamina_read_bandwidth_bytes_per_second"), 0)
        used = max(memory, key=lambda page: self.value(page, "lamina_kv_read_bytes_total"))
        self.assertGreater(self.value(used, "lamina_read_bandwidth_share"), 0)

    def test_time_goes_into_parts_and_bytes_to_peers(self):
        compute = self.page("c0")
        for part in ("lay_out", "dense", "send", "chunks", "head", "take", "wait_attention"):
            self.assertGreater(self.value(compute, "lamina_part_seconds_total", f'part="{part}"'), 0, part)
        parts = {labels: v for (name, labels), v in compute.items() if name == "lamina_part_seconds_total"}
        busy = sum(v for labels, v in parts.items() if 'part="wait_' not in labels)
        self.assertAlmostEqual(self.value(compute, "lamina_busy_seconds_total"), busy, delta=busy * 1e-3)
        # What one end sends the other receives: both count since they started.
        sent = sum(self.value(compute, "lamina_link_sent_bytes_total", f'peer="m{i}"') for i in range(2))
        self.assertEqual(sent, self.value(compute, "lamina_sent_bytes_total"))
        memory = [self.page(f"m{i}") for i in range(2)]
        received = sum(self.value(page, "lamina_received_bytes_total") for page in memory)
        self.assertGreater(received, 0)
        for page in memory:
            self.assertEqual(self.value(page, "lamina_link_put_failures_total", 'peer="c0"'), 0)
        self.assertGreater(sum(self.value(page, "lamina_part_seconds_total", 'part="attend"')
                               for page in memory), 0)
        self.assertGreater(sum(self.value(page, "lamina_link_wait_seconds_total", 'peer="c0"')
                               for page in memory), 0)

    def post(self, body):
        request = urllib.request.Request(self.url("gateway", "/v1/completions"), json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return answer.read()

    def test_the_gateway_counts_what_clients_see(self):
        before = self.page("gateway")
        body = {"model": MODEL.stem, "prompt": "One two three", "max_tokens": 5, "ignore_eos": True}
        streamed = self.post({**body, "stream": True})
        self.assertTrue(streamed.endswith(b"data: [DONE]\n\n"))
        self.post(body)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.post({**body, "temperature": 9})
        caught.exception.close()
        after = self.page("gateway")

        def grown(name, *parts):
            old = [v for (n, labels), v in before.items() if n == name and all(p in (labels or "") for p in parts)]
            return self.value(after, name, *parts) - sum(old)

        path = 'path="/v1/completions"'
        self.assertEqual(grown("lamina_gateway_requests_total", path, 'code="200"'), 2)
        self.assertEqual(grown("lamina_gateway_requests_total", path, 'code="400"'), 1)
        self.assertEqual(grown("lamina_gateway_refused_total", 'reason="decimal_above_max_value"'), 1)
        self.assertEqual(grown("lamina_gateway_time_to_first_token_seconds_count"), 1)
        self.assertEqual(grown("lamina_gateway_completion_seconds_count"), 2)
        # Events may carry several tokens; those of the first have no gap.
        self.assertLessEqual(grown("lamina_gateway_inter_token_latency_seconds_count"), 4)
        self.assertGreater(grown("lamina_gateway_sent_bytes_total"), len(streamed))
        # What the coordinator counts of requests is passed on, and nothing else of its page.
        self.assertEqual(grown("vllm:generation_tokens_total", 'model_name="'), 10)
        theirs = {key for key in self.page("coordinator") if key[0].startswith("vllm:")}
        self.assertEqual({key for key in after if not key[0].startswith("lamina_gateway_")}, theirs)
        self.assertEqual(self.value(after, "lamina_gateway_streams"), 0)

    def labels_of(self, name):
        return {labels for n, labels in self.page("coordinator") if n == name}

    def await_measured_links(self):
        self.cluster.await_true(
            lambda: len(self.labels_of("lamina_node_link_bandwidth_bytes_per_second")) >= 2,
            "the links are measured")

    def test_links_are_as_they_were_measured(self):
        self.await_measured_links()
        page = self.page("coordinator")
        for peer in ("m0", "m1"):
            of = ('node="c0"', f'peer="{peer}"')
            self.assertGreater(self.value(page, "lamina_node_link_bandwidth_bytes_per_second", *of), 0)
            self.assertGreater(self.value(page, "lamina_node_link_latency_seconds", *of), 0)
        # Use bounds them: a row has been there and back.
        generated = self.cluster.lamina("generate", "--prompt", "One two three", "--max-tokens", "4", "--ignore-eos")
        self.assertEqual(generated.returncode, 0, generated.stderr)
        self.cluster.await_true(
            lambda: any(link["exchange_seconds"] > 0 for link in self.cluster.status()["links"]), "an exchange is told")
        # With the labels of what it is compared with, which a node reports a little later.
        self.cluster.await_true(
            lambda: self.labels_of("lamina_node_link_bandwidth_bytes_per_second") <=
            self.labels_of("lamina_node_link_sent_bytes_total"),
            "sent bytes have the labels of the links")

    def test_dashboard_and_alerts_ask_for_metrics_that_there_are(self):
        dashboard = json.loads((MONITORING / "dashboard.json").read_text())
        self.await_measured_links()
        self.cluster.await_true(lambda: len(self.labels_of("lamina_node_sent_bytes_total")) == 3,
                                "every node has told its counters")
        # A count by path and status is there once there was such an answer.
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.post({"model": "nobody", "prompt": ""})
        caught.exception.close()
        asked = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
        self.assertGreater(len(asked), 20)
        asked += re.findall(r"expr: (.*)", (MONITORING / "alerts.yml").read_text())
        there = {name for d in ("coordinator", "gateway") for name, _ in self.page(d)}
        for expression in asked:
            for name in _METRIC.findall(expression):
                self.assertIn(name, there, expression)

    def test_promtool_agrees(self):
        promtool = tool(self, "promtool")
        subprocess.run([promtool, "check", "rules", str(MONITORING / "alerts.yml")], check=True)
        subprocess.run([promtool, "check", "config", str(MONITORING / "prometheus.yml")], check=True)
        for daemon in ("coordinator", "c0", "m0", "gateway"):
            # The names that vLLM chose have colons, which promtool does not like.
            ours = "\n".join(line for line in self.get(daemon, "/metrics").splitlines() if "vllm:" not in line)
            subprocess.run([promtool, "check", "metrics"], input=ours + "\n", text=True, check=True)


class DashboardTest(unittest.TestCase):
    def test_what_is_drawn_as_seconds_is_a_time(self):
        dashboard = json.loads((MONITORING / "dashboard.json").read_text())
        for panel in dashboard["panels"]:
            config = panel["fieldConfig"]
            units = {override["matcher"]["options"]: value["value"] for override in config["overrides"]
                     for value in override["properties"] if value["id"] == "unit"}
            for target in panel["targets"]:
                if units.get(target["refId"], config["defaults"]["unit"]) == "s":
                    self.assertIn("_seconds", target["expr"], panel["title"])


class PrometheusTest(unittest.TestCase):
    """Debian's Prometheus, with our configuration, over a cluster of ours."""

    def test_prometheus_scrapes_every_daemon_and_evaluates_the_rules(self):
        require_model(self)
        prometheus = tool(self, "prometheus")
        with Cluster(text=cluster_file()) as cluster:
            targets = [re.findall(r"metrics at http://(\S+)/metrics", cluster.log(name))[-1]
                       for name in ("coordinator", "c0", "m0", "m1")]
            result = cluster.lamina("generate", "--prompt", "One two three", "--max-tokens", "5",
                                    "--ignore-eos")
            self.assertEqual(result.returncode, 0, result.stderr)
            server = self.start(prometheus, cluster, targets)

            def ask(path, **query):
                url = f"http://{server}/api/v1/{path}?{urllib.parse.urlencode(query)}"
                with urllib.request.urlopen(url, timeout=SECONDS) as answer:
                    return json.load(answer)["data"]

            def all_up():
                active = ask("targets")["activeTargets"]
                return len(active) == len(targets) and all(t["health"] == "up" for t in active)

            def value_of(expression):
                result = ask("query", query=expression)["result"]
                return float(result[0]["value"][1]) if result else None

            cluster.await_true(all_up, "every target is up")
            cluster.await_true(lambda: value_of("vllm:generation_tokens_total") == 5, "5 tokens counted")
            # A scrape may time out on a busy machine; the next one does not.
            cluster.await_true(lambda: value_of("count(up == 1)") == len(targets), "every scrape worked")
            cluster.await_true(lambda: value_of("count(lamina_node_ready == 1)") == 3, "3 nodes ready")
            self.assertGreater(value_of('sum(lamina_part_seconds_total{part="attend"})'), 0)

            def rules():
                return [rule for group in ask("rules")["groups"] for rule in group["rules"]]
            cluster.await_true(lambda: rules() and all(r["health"] == "ok" for r in rules()),
                               "every rule evaluates")
            self.assertEqual([r["name"] for r in rules() if r["state"] == "firing"], [])

    def start(self, prometheus, cluster, targets):
        """Starts it with the repository's configuration over these targets; returns its host:port."""
        text = (MONITORING / "prometheus.yml").read_text()
        text, changed = re.subn(r"targets: \[.*\]", f"targets: {json.dumps(targets)}", text)
        self.assertEqual(changed, 1)
        text = text.replace("scrape_interval: 5s", "scrape_interval: 1s, evaluation_interval: 1s")
        text = text.replace("[alerts.yml]", json.dumps([str(MONITORING / "alerts.yml")]))
        (cluster.directory / "prometheus.yml").write_text(text)
        log = cluster.directory / "prometheus.log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [prometheus, f"--config.file={cluster.directory}/prometheus.yml",
                 f"--storage.tsdb.path={cluster.directory}/tsdb", "--web.listen-address=127.0.0.1:0"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        listening = re.compile(r'msg="Listening on" address=(\S+)')
        cluster.await_true(lambda: listening.search(log.read_text()) or process.poll() is not None,
                           "Prometheus listens")
        self.assertIsNone(process.poll(), log.read_text())
        server = listening.search(log.read_text()).group(1)

        def ready():
            # It listens before its storage is open, and answers 503 until then.
            try:
                with urllib.request.urlopen(f"http://{server}/-/ready", timeout=SECONDS):
                    return True
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                return False
        cluster.await_true(ready, "Prometheus is ready")
        return server


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Running clusters whose nodes have prices: what three kinds of tokens cost is the bill, in bench, status and /metrics."""

import json
import re
import unittest
import urllib.request

import harness

FREE = "127.0.0.1:0"
KINDS = ("input", "output", "cached")
PRICE = 3.5  # Of all nodes, per hour.
POOLS = {
    "attend_remote": {"compute": [{"name": "c0", "price": "2/h"}],
                      "memory": [{"name": "m0", "capacity": "64MiB", "price": "1/h"}, {"name": "m1", "capacity": "64MiB", "price": "0.5/h"}]},
    "local": {"policy": "local", "memory": [], "compute": [{"name": "c0", "capacity": "64MiB", "price": "3.5/h"}]},
}
# Prompts begin with the same 64 tokens.
REQUESTS = [{"arrival_s": i / 5, "input_tokens": 100, "output_tokens": 24, "prefix": 1, "prefix_tokens": 64} for i in range(10)]
TOKENS = sum(request["output_tokens"] for request in REQUESTS)


def per_hour(status, kind):
    return status["cost"][f"per_million_{kind}"] / status["uptime_seconds"] * 3600


class PricesTest(unittest.TestCase):
    def setUp(self):
        harness.require_model(self)

    def bench(self, cluster):
        trace = cluster.directory / "trace.jsonl"
        trace.write_text("".join(json.dumps(request) + "\n" for request in REQUESTS))
        result = cluster.lamina("bench", "--trace", trace, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def metrics(self, cluster):
        address = re.findall(r"metrics at (http://\S+)", cluster.log("coordinator"))[-1]
        with urllib.request.urlopen(address, timeout=harness.COMMAND_SECONDS) as answer:
            return answer.read().decode()

    def check_parts(self, cost, seconds):
        self.assertAlmostEqual(cost["hourly"], PRICE)
        bill = PRICE * seconds / 3600
        self.assertAlmostEqual(sum(cost[kind] for kind in KINDS), bill, delta=1e-3 * bill)
        for kind in KINDS:
            self.assertGreater(cost[kind], 0, kind)
            self.assertGreater(cost[f"per_million_{kind}"], 0, kind)

    def check_metrics(self, cluster):
        """A page between two statuses of a cluster that rests has their prices, each by its own seconds since the start."""
        taken = []

        def rests():
            taken[:] = cluster.status(), self.metrics(cluster), cluster.status()
            return all(abs(per_hour(taken[0], kind) / per_hour(taken[2], kind) - 1) < 1e-6 for kind in KINDS)
        cluster.await_true(rests, "two statuses with the same shares")
        _, page, status = taken
        self.check_parts(status["cost"], status["uptime_seconds"])
        self.assertIn("\n# HELP lamina_cost_per_million_tokens Measured cost of 1,000,000 tokens", page)
        uptime = float(re.search(r"^lamina_uptime_seconds (\S+)$", page, re.MULTILINE).group(1))
        self.assertEqual(float(re.search(r"^lamina_price_per_hour (\S+)$", page, re.MULTILINE).group(1)), PRICE)
        told = dict(re.findall(r'^lamina_cost_per_million_tokens\{kind="([a-z]+)"\} (\S+)$', page, re.MULTILINE))
        self.assertEqual(set(told), set(KINDS))
        for kind in KINDS:
            self.assertAlmostEqual(float(told[kind]) / uptime * 3600 / per_hour(status, kind), 1, delta=1e-3, msg=kind)

    def test_the_parts_of_the_bill_are_prices_times_time(self):
        for name, pools in POOLS.items():
            with self.subTest(name), harness.Cluster(coordinator={"listen": FREE, "http": FREE}, **pools) as cluster:
                self.bench(cluster)  # Nodes measure their lines.
                report = self.bench(cluster)
                cost = report["cost"]
                self.check_parts(cost, report["seconds"])
                self.assertAlmostEqual(cost["per_million_output"] * TOKENS / 1e6, cost["output"], delta=1e-3 * cost["output"])
                self.check_metrics(cluster)
                self.assertRegex(cluster.lamina("status").stdout, r"(?m)^cost: .* found computed; measured since it started$")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An emulated bus: what nodes put on it, by kind, is its bandwidth times the time that it was busy."""

import os
import re
import subprocess
import time
import unittest
import urllib.request

import harness

MIB = 1 << 20
KINDS = ["activations", "kv", "probes", "rows", "weights"]
# Longer than the block of slots that comes before the first one of activations.
PROMPT = " ".join(f"Item {i} of the list." for i in range(20))
GENERATE = ["generate", "--prompt", PROMPT, "--max-tokens", "24", "--ignore-eos"]


def on_a_bus(name, bandwidth="400MB", **keys):
    transport = f"throttle(bandwidth={bandwidth},bus={name}-{os.getpid()})+shm"
    return {"transport": [transport], "limits": {"sequence_tokens_max": 256}, **keys}


def buses(cluster):
    return {bus["direction"]: bus for node in cluster.status()["nodes"] if node["name"] == "c0" for bus in node["buses"]}


def page(cluster):
    """Values of c0's metrics page, by name and labels."""
    url = re.findall(r"metrics at (http://\S+)/metrics", cluster.log("c0"))[-1]
    with urllib.request.urlopen(f"{url}/metrics", timeout=harness.COMMAND_SECONDS) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith("lamina_bus_")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


class BusTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def check_sums(self, cluster):
        """Both directions; once what is under way has been counted."""
        cluster.await_true(lambda: all(abs(sum(bus["bytes"].values()) - bus["bytes_per_second"] * bus["busy_seconds"]) <
                                       0.02 * sum(bus["bytes"].values()) for bus in buses(cluster).values()),
                           "kinds that add up")
        found = buses(cluster)
        self.assertEqual(sorted(found), ["from", "to"])
        for bus in found.values():
            self.assertEqual(sorted(bus["bytes"]), KINDS)
        return found

    def test_k_and_v_activations_and_weights_share_it(self):
        keys = on_a_bus("mixed", policy="fetch_hybrid", fetch={"window": "16MiB", "activation_percent": 50},
                        compute=[{"name": "c0", "weights_budget": "160MiB", "weights": "bf16", "http": "127.0.0.1:0"}])
        with harness.Cluster(model=harness.MODEL, memory_nodes=2, **keys) as cluster:
            self.assertEqual(cluster.lamina(*GENERATE).returncode, 0)
            found = self.check_sums(cluster)
            to = found["to"]["bytes"]
            self.assertGreater(to["kv"], 0)
            self.assertGreater(to["activations"], 0)
            # In each step come the weights that do not stay.
            self.assertGreater(to["weights"], 24 * 80 * MIB)
            back = found["from"]["bytes"]
            self.assertEqual(back["weights"], 0)
            self.assertGreater(back["kv"], 0)
            self.assertGreater(back["activations"], 0)
            self.assertGreater(back["probes"], 0)  # The compute node measures links.
            self.assertEqual(to["probes"], 0)
            metrics = page(cluster)
            label = 'node="c0",role="compute",direction="to"'
            self.assertEqual(metrics[f"lamina_bus_bandwidth_bytes_per_second{{{label}}}"], 400e6)
            total = sum(metrics[f'lamina_bus_bytes_total{{{label},kind="{kind}"}}'] for kind in KINDS)
            busy = metrics[f"lamina_bus_busy_seconds_total{{{label}}}"]
            self.assertAlmostEqual(total / (400e6 * busy), 1, delta=0.02)

    def test_rows_go_out_and_outputs_come_back(self):
        with harness.Cluster(model=harness.MODEL, memory_nodes=2, **on_a_bus("rows")) as cluster:
            self.assertEqual(cluster.lamina(*GENERATE).returncode, 0)
            found = self.check_sums(cluster)
            for kind in ["kv", "activations", "weights"]:
                self.assertEqual(found["to"]["bytes"][kind], 0)
            self.assertGreater(found["to"]["bytes"]["rows"], 0)
            self.assertGreater(found["from"]["bytes"]["rows"], 0)
            self.assertGreater(found["from"]["bytes"]["kv"], 0)  # Of prompts.

    def test_nothing_comes_before_the_clock_allows_it(self):
        """Bytes that requests waited for, over the bandwidth, against their time. A busy machine only takes longer than these."""
        bandwidth = 20e6
        keys = on_a_bus("clock", "20MB", policy="fetch_heads", fetch={"window": "16MiB"})
        with harness.Cluster(memory_nodes=2, **keys) as cluster:
            # One to each memory node, which share the bus: either may have half of it.
            start = time.monotonic()
            running = [cluster.popen("generate", "--prompt", prompt, "--max-tokens", "40", "--ignore-eos", stdout=subprocess.DEVNULL,
                                     stderr=subprocess.PIPE) for prompt in (PROMPT, f"Others. {PROMPT}")]
            for process in running:
                _, error = process.communicate(timeout=harness.COMMAND_SECONDS)
                self.assertEqual(process.returncode, 0, error)
            seconds = time.monotonic() - start
            # Every step has waited for all K and V of its rows, but for one or two of 40 that were planned before the last token was known.
            come = self.check_sums(cluster)["to"]["bytes"]["kv"]
            self.assertGreater(come, bandwidth)  # Else there is no time to compare with.
            self.assertLessEqual(0.9 * come / bandwidth, seconds)

    def test_a_cluster_without_one_has_none(self):
        with harness.Cluster(model=harness.MODEL, memory_nodes=1) as cluster:
            self.assertEqual(buses(cluster), {})


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lamina trace on a real cluster: the file is read and its rows, arrows and steps are checked."""

import collections
import json
import subprocess
import unittest

from harness import COMMAND_SECONDS, MODEL, Cluster, require_model

LAYERS = 30
LANES = 2
REQUESTS = 4
WORKER = 1


class TraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        require_model(cls("test_rows_nest"))
        # Heads are spread, so that both memory nodes have work whatever reads they measure.
        cls.cluster = Cluster(model=MODEL, memory_nodes=2, partition="head", pipeline={"lanes": LANES})
        cls.cluster.__enter__()
        cls.requests = []
        try:
            cls.record()
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    def record(cls):
        # Endless ones, which are cancelled at the end.
        for i in range(REQUESTS):
            cls.requests.append(cls.cluster.popen(
                "generate", "--prompt", "One two three", "--max-tokens", "8000", "--ignore-eos",
                "--request-id", f"followed-{i}", stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL))
        def decoding():
            status = cls.cluster.status()
            return (status["running"] == REQUESTS
                    and all(lane["rows"] > 0 for lane in status["lanes"]))
        cls.cluster.await_true(decoding, "all requests decode", list(cls.cluster.processes))
        for seconds in ("0.5", "2", "8"):  # On a busy machine a step takes long.
            cls.record_for(seconds)
            if len(cls("test_rows_nest").whole_steps()) > LANES:
                break

    @classmethod
    def record_for(cls, seconds):
        path = cls.cluster.directory / "trace.json"
        result = cls.cluster.lamina("trace", "--seconds", seconds, "--output", path, "--json")
        assert result.returncode == 0, result.stderr
        cls.report = json.loads(result.stdout)
        cls.events = json.loads(path.read_text())["traceEvents"]
        cls.processes = {e["args"]["name"]: e["pid"] for e in cls.events
                         if e["ph"] == "M" and e["name"] == "process_name"}
        cls.slices = [e for e in cls.events if e["ph"] == "X"]

    @classmethod
    def tearDownClass(cls):
        for request in cls.requests:
            request.terminate()
        for request in cls.requests:
            request.wait(COMMAND_SECONDS)
        cls.cluster.__exit__()

    def worker(self, process):
        return [e for e in self.slices if e["pid"] == self.processes[process] and e["tid"] == WORKER]

    def window(self):
        """The time in which every node was recording."""
        nodes = [self.worker(name) for name in ("c0 (compute)", "m0 (memory)", "m1 (memory)")]
        return (max(min(e["ts"] for e in node) for node in nodes),
                min(max(e["ts"] + e["dur"] for e in node) for node in nodes))

    def whole_steps(self):
        """(lane, step) of steps that began and ended while every node was recording."""
        spans = {}
        for event in self.worker("c0 (compute)"):
            if "lane" in event["args"]:
                step = (event["args"]["lane"], event["args"]["step"])
                start, end = spans.get(step, (event["ts"], 0))
                spans[step] = (min(start, event["ts"]), max(end, event["ts"] + event["dur"]))
        begin, end = self.window()
        whole = set()
        for lane in range(LANES):
            steps = sorted(step for step in spans if step[0] == lane)
            whole |= {s for s in steps[1:-1] if spans[s][0] >= begin and spans[s][1] <= end}
        return whole

    def test_rows_nest(self):
        rows = collections.defaultdict(list)
        for event in self.slices:
            rows[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
        self.assertGreaterEqual(len(rows), LANES + 3 + 4)  # Lanes, workers, links.
        for row, slices in rows.items():
            ends = []
            for start, length, name in sorted(slices):
                while ends and ends[-1] <= start + 1e-3:
                    ends.pop()
                self.assertTrue(not ends or start - length <= ends[-1] + 1e-3, (row, start, name))
                ends.append(start - length)

    def test_every_row_has_its_name(self):
        self.assertEqual(set(self.processes), {"coordinator", "lanes", "c0 (compute)", "m0 (memory)",
                                               "m1 (memory)"})
        names = {e["args"]["name"] for e in self.events
                 if e["ph"] == "M" and e["name"] == "thread_name"}
        self.assertEqual(names, {"lane 0", "lane 1", "replica", "memory worker", "link c0 to m0",
                                 "link c0 to m1", "link m0 to c0", "link m1 to c0"})

    def test_every_slice_of_a_step_is_there(self):
        whole = self.whole_steps()
        self.assertGreater(len(whole), LANES)
        self.assertEqual([node["dropped"] for node in self.report["nodes"]], [0, 0, 0])
        done = collections.defaultdict(collections.Counter)
        for event in self.worker("c0 (compute)"):
            if "lane" in event["args"]:
                done[event["args"]["lane"], event["args"]["step"]][
                    event["name"], event["args"]["layer"]] += 1
        attended = collections.Counter()
        for node in ("m0 (memory)", "m1 (memory)"):
            for event in self.worker(node):
                if event["name"] == "attend":
                    attended[event["args"]["lane"], event["args"]["step"], event["args"]["layer"]] += 1
        for lane, step in whole:
            parts = done[lane, step]
            for layer in range(LAYERS):
                self.assertEqual(parts["dense", layer], 1, (lane, step, layer))
                self.assertEqual(parts["send", layer], attended[lane, step, layer])
                self.assertEqual(parts["take", layer], attended[lane, step, layer])
                self.assertGreaterEqual(attended[lane, step, layer], 1)
            # In chunks of the vocabulary, between which the other lane runs.
            self.assertGreater(parts["head", LAYERS], 1, (lane, step))

    def test_lanes_show_their_steps(self):
        in_steps = collections.defaultdict(collections.Counter)
        for event in self.slices:
            if event["pid"] == self.processes["lanes"]:
                in_steps[event["tid"] - 1, event["args"]["step"]][event["name"]] += 1
        for lane, step in self.whole_steps():
            names = in_steps[lane, step]
            self.assertEqual(names[f"step {step}"], 1)
            self.assertEqual(names["head"], 1)
            for layer in range(LAYERS):
                self.assertEqual((names[f"dense {layer}"], names[f"attention {layer}"]), (1, 1))

    def test_puts_come_before_their_arrival(self):
        begin, end = self.window()
        starts = {e["id"]: e["ts"] for e in self.events
                  if e["ph"] == "s" and begin <= e["ts"] <= end}
        links = collections.Counter()
        for event in self.events:
            if event["ph"] == "f" and event["id"] in starts:
                self.assertLessEqual(starts[event["id"]], event["ts"], event["id"])
                links[event["id"].split(":")[1]] += 1
        self.assertEqual(set(links), {"c0>m0", "c0>m1", "m0>c0", "m1>c0"})
        # Only what was on its way at either end of the timeline has one half of its arrow.
        self.assertGreater(sum(links.values()), len(starts) * 0.9)

    def test_the_clocks_of_one_host_are_one(self):
        for node in self.report["nodes"]:
            self.assertLessEqual(abs(node["clock_offset_us"]), node["clock_error_us"] + 1, node)

    def test_requests_are_named(self):
        expected = {f"followed-{i}" for i in range(REQUESTS)}
        ends = {e["args"]["request_id"] for e in self.events if e.get("cat") == "request" and e["ph"] == "b"}
        self.assertEqual(ends & expected, expected)
        of_steps = set()
        for event in self.slices:
            if event["pid"] == self.processes["lanes"]:
                of_steps |= set(event["args"].get("requests", []))
        self.assertEqual(of_steps, expected)

    def test_a_length_that_cannot_be_is_refused(self):
        result = self.cluster.lamina("trace", "--seconds", "61")
        self.assertEqual(result.returncode, 2)
        self.assertIn("60", result.stderr)

    def test_status_names_the_largest_bubble(self):
        result = self.cluster.lamina("status")
        self.assertRegex(result.stdout, r"busy: c0 \d+\.\d%, m0 \d+\.\d%, m1 \d+\.\d%\n"
                                        r"largest bubble: \w+ stands still \d+\.\d% of the time for")


if __name__ == "__main__":
    unittest.main()

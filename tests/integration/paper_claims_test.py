#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh paper says of claims whose points are given, how it tells of its progress and how long it takes. No cluster runs."""

import argparse
import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import paper_alisa  # noqa: E402
import paper_alisa_figures as alisa  # noqa: E402
import paper_headinfer  # noqa: E402
import paper_hybridserve  # noqa: E402
import paper_hybridserve_figures as hybridserve  # noqa: E402
import paper_kvpr_figures as kvpr  # noqa: E402
import paper_shared as shared  # noqa: E402
from paper_scripts_test import printed  # noqa: E402


class PapersSetUpTest(unittest.TestCase):
    """HybridServe's: weights over the same bus, activations on the device."""

    def measure(self, steps, **keys):
        """What was run, the points and what is printed, where a step takes steps[context, activations stay] seconds."""
        asked = argparse.Namespace(**{"rows": 8, "lanes": 2, "streamed_ratios": "0.5", "streamed_contexts": "448,1792", **keys})
        made = []

        def run(bench, percent, transport, resident=False):
            made.append((bench.budget, percent, resident, "bus=" in transport))
            kv = bench.rows * bench.context * bench.shape.layers * bench.shape.kv_bytes()
            return paper_hybridserve.Point(steps[bench.context, resident], 1e-6, kv / 1e6, 0.5, 0.0, 75.0 if resident else 0.0, "words")

        with mock.patch.object(paper_hybridserve.Bench, "run", run), tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            points, text = printed(paper_hybridserve.streamed_resident, folder, 1e-6, asked)
            _, verdicts = printed(paper_hybridserve.judge_streamed, points)
        return made, points, text + verdicts

    def test_both_ways_stream_their_weights_over_one_bus(self):
        steps = {(448, False): 0.3, (448, True): 0.125, (1792, False): 0.9, (1792, True): 0.5}
        made, points, text = self.measure(steps)
        budget = 3 * paper_hybridserve.STREAMED.layer_bytes() + (3 << 20)
        self.assertEqual(made, 2 * [(budget, 0, False, True), (budget, "auto", True, True)])
        self.assertEqual([round(point["weights"], 3) for point in points], [0.5, 0.125])
        # Half as long to make as to send: 1 + 1 / c with weights of no more than that.
        self.assertIn("| 0.5 | 448 | 0.50 | 1024 | 300 | 125 | 75% | 2.40 (3.00; 3.00) |", text)
        self.assertIn("as in the paper: 2.40 times K and V alone at c = 0.5 (bound 3.00; the paper's mean over another engine 2.19): reproduced.", text)
        self.assertIn("Farthest from the formula: c = 0.5 at 1792 tokens, 1.80 for 3.00 (asked: within 10%): not reproduced.", text)

    def test_what_no_bound_allows_has_no_verdict(self):
        _, _, text = self.measure({(448, False): 1.0, (448, True): 0.6}, streamed_ratios="2", streamed_contexts="448")
        self.assertIn("as in the paper: none was asked for whose bound allows the paper's 2.19: not measured.", text)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):
    def said(self, out, at, count, seconds=None):
        """Lines of so many steps, which begin at these times."""
        with mock.patch.object(shared.time, "monotonic", side_effect=at):
            steps = shared.Steps(count, seconds, out)
            for number in range(1, count + 1):
                steps.say(f"step {number}")
        return out.getvalue().splitlines()

    def test_a_terminal_has_a_bar_and_the_time_to_go(self):
        # The clock is read once at the start, and for each step behind which one has been done.
        lines = self.said(Terminal(), [0, 30, 300, 330], 4)
        self.assertEqual(lines, ["[....................] 1/4 step 1", "[#####...............] 2/4 step 2; 2 min to go", "[##########..........] 3/4 step 3; 5 min to go",
                                 "[###############.....] 4/4 step 4; 2 min to go"])

    def test_what_steps_take_is_told_before_one_is_done(self):
        lines = self.said(Terminal(), [0, 20, 40], 3, [10, 50, 0])
        self.assertEqual([line.split("; ")[1] for line in lines], ["1 min to go", "2 min to go", "0 s to go"])

    def test_elsewhere_lines_are_plain(self):
        self.assertEqual(self.said(io.StringIO(), [0, 30], 2), ["[1/2] step 1", "[2/2] step 2"])

    def test_each_command_takes_ten_minutes_at_most_or_says_in_what_turns(self):
        for module in (kvpr, hybridserve, alisa):
            minutes = dict(module.MINUTES)
            self.assertLessEqual(minutes.pop(shared.CLAIMS), shared.MINUTES_MOST)
            self.assertEqual(set(minutes), set(module.PARTS))
            self.assertLessEqual(max(minutes.values()), shared.MINUTES_MOST)
        self.assertLessEqual(paper_headinfer.LONG_MINUTES, shared.MINUTES_MOST)
        for minutes in (paper_headinfer.MINUTES, *(module.MINUTES for module in (kvpr, hybridserve, alisa))):
            total = sum(value for name, value in minutes.items() if name != shared.CLAIMS)
            self.assertEqual("; in turns: " in shared.minutes_in_words(minutes), total > shared.MINUTES_MOST)

    def test_parts_that_take_too_long_together_are_told_in_turns(self):
        minutes = {"figure 1": 6, "figure 2": 3.5, "figure 3": 4, "figure 4": 12, shared.CLAIMS: 5}
        self.assertEqual(shared.minutes_in_words(minutes), "About 25.5 minutes on two quiet cores for all: figure 1 6, figure 2 3.5, figure 3 4, figure 4 12. That is more than 10; in turns: "
                                                           "figure 1, figure 2; figure 3; figure 4. The claims (--claims): 5.")
        self.assertEqual(shared.minutes_in_words({"table 1": 1}), "About 1 minutes on two quiet cores for all: table 1 1.")

    def test_all_parts_begin_with_what_they_take(self):
        arguments = argparse.Namespace(only="alisa", claims=False, figure=None, images=None)
        parts = {"figure 1": lambda _: 1, "figure 2": lambda _: 2}
        for asked in (None, ["2"]):
            arguments.figure = asked
            _, text = printed(shared.run_asked, arguments, parts, shared.Bench, None, {"figure 1": 2, "figure 2": 0, shared.CLAIMS: 3})
            self.assertEqual("About 2 minutes on two quiet cores" in text, asked is None)
            self.assertEqual("All of it took" in text, asked is None)


class SpeedTest(unittest.TestCase):
    def test_steps_of_a_share_of_the_tokens_are_those_at_the_context_asked_for(self):
        running = mock.Mock(row_seconds=lambda rows, context: rows * context / 1e6)
        with mock.patch.object(paper_alisa.cluster, "Cluster", lambda *_, **__: contextlib.nullcontext(running)):
            found = paper_alisa.step_seconds(paper_alisa.fetching("fetch_sparse", caching_ratio=0.2), argparse.Namespace(link="shm", rows=4, context=1024), "bf16")
        self.assertAlmostEqual(found, 0.004096)


class OptionsTest(unittest.TestCase):
    def test_a_table_alone_is_written_too(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(paper_headinfer, "table3", lambda _: {"m": 1}):
            path = pathlib.Path(folder) / "table.json"
            with mock.patch.object(sys, "argv", ["paper_headinfer.py", "--table", "3", "--json", str(path)]):
                printed(paper_headinfer.main)
            self.assertEqual(json.loads(path.read_text())["table3"], {"m": 1})

    def test_patterns_without_window_sums_have_no_verdict(self):
        point = {"first": 0, "kv": "bf16", "pattern": "local", "ratio": 0.5, "perplexity": 2.0, "dense": 1.0, "float64": 2.0}
        _, text = printed(paper_alisa.judge, [point])
        self.assertIn("Window sums were not measured (--patterns): no verdict.", text)

    def test_the_order_of_the_other_patterns_is_said_by_ratio(self):
        points = [{"first": 0, "kv": "bf16", "pattern": pattern, "ratio": ratio, "perplexity": found, "dense": 1.0, "float64": wanted}
                  for pattern, ratio, found, wanted in (("window_sums", 0.8, 1.0, 1.0), ("local", 0.8, 3.0, 3.0), ("strided", 0.8, 2.0, 4.0), ("window_sums", 0.5, 1.0, 1.0),
                                                        ("local", 0.5, 3.0, 3.0), ("strided", 0.5, 6.0, 6.0))]
        _, text = printed(paper_alisa.judge, points)
        self.assertIn("than a stride at every ratio: reproduced.", text)
        self.assertIn("Of the other two the better one: 80% a stride, 50% the most recent; in float64: 80% the most recent, 50% the most recent.", text)


    def test_int8_is_judged_by_bf16_with_the_same_pattern_and_tokens(self):
        points = [{"first": 0, "kv": form, "pattern": pattern, "ratio": ratio, "perplexity": found, "dense": 1.0, "float64": math.nan}
                  for form, pattern, ratio, found in (("bf16", "local", 0.5, 4.0), ("bf16", "local", 0.2, 5.0), ("bf16", "strided", 0.5, 10.0), ("int8", "local", 0.5, 4.1),
                                                      ("int8", "local", 0.2, 4.9), ("int8", "strided", 0.2, 9.0))]
        _, text = printed(paper_alisa.judge, points)
        self.assertIn("INT8 with local: 0.980 to 1.025 times bf16's perplexity at the same tokens.\n", text)
        self.assertNotIn("INT8 with strided", text)  # At other tokens.
        _, text = printed(paper_alisa.judge, [point for point in points if point["kv"] == "int8"])
        self.assertNotIn("INT8 with", text)

    def test_what_float64_has_no_figure_of_is_left_out(self):
        points = [{"first": first, "kv": "bf16", "pattern": pattern, "ratio": ratio, "perplexity": found, "dense": 1.0, "float64": wanted}
                  for first, pattern, ratio, found, wanted in (
                      (0, "window_sums", 0.7, 1.0, math.nan), (0, "window_sums", 0.5, 1.0, 1.002), (1536, "window_sums", 0.5, 1.0, 1.001),
                      (0, "local", 0.7, 3.0, math.nan), (0, "strided", 0.7, 4.0, math.nan),
                      (1536, "local", 0.5, 3.0, 3.0), (1536, "strided", 0.5, 2.0, 2.0))]
        _, text = printed(paper_alisa.judge, points)
        self.assertIn("Of the other two the better one, from token 0: 70% the most recent; in float64: not computed.\n", text)
        self.assertIn("Of the other two the better one, from token 1536: 50% a stride; in float64: 50% a stride.\n", text)
        self.assertIn("Farthest from Algorithm 1 in float64: 0.20% (asked: 0.5%): reproduced.", text)
        _, text = printed(paper_alisa.judge, points[:1])
        self.assertIn("Algorithm 1 was not computed in float64 at these ratios: no verdict.", text)
        self.assertTrue(paper_alisa.row("bf16", "local", 0.7, 3.0, 1.0, math.nan).endswith("| 3.000 | not computed |  |"))
        with tempfile.TemporaryDirectory() as folder:
            paper_alisa.draw_quality(points[:2], folder)
            self.assertNotIn("nan", (pathlib.Path(folder) / "alisa_quality.svg").read_text())


if __name__ == "__main__":
    unittest.main()

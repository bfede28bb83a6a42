#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh policies does around its measurements: points, clusters, turns, steps at the context asked for. No cluster runs."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import cluster  # noqa: E402
import paper_shared  # noqa: E402
import policies  # noqa: E402

POINTS = json.loads((REPO / "bench/policy_points.json").read_text())["points"]
STORES = {"model": "multi_head", "rows": 8, "context": 512, "attend": False, "bus_mb": 600}


class PointsTest(unittest.TestCase):
    def test_each_policy_can_be_had_at_two_points_at_least(self):
        self.assertEqual(len(POINTS), 12)
        for policy in policies.POLICIES:
            self.assertGreaterEqual(sum(policies.can_have(point, policy) for point in POINTS), 2, policy)
        # With one lane the model prefers fetch_hybrid to fetch_recompute at any load.
        self.assertGreaterEqual(sum(point.get("lanes", 1) > 1 and policies.can_have(point, "fetch_recompute") for point in POINTS), 2)

    def test_a_point_says_all_that_sets_it_apart(self):
        words = [policies.words(point) for point in POINTS]
        self.assertEqual(len(set(words)), len(words))
        self.assertIn("multi_head, 4 x 1024, bus 300 MB/s, stores, 2 lanes", words)
        self.assertIn("multi_head, 12 x 1024, bus 300 MB/s, stores, room for 70MiB on the memory node", words)

    def test_where_memory_is_little_all_rows_fit_as_activations_in_part_and_not_as_k_and_v(self):
        little = [point for point in POINTS if "memory" in point]
        self.assertEqual(len(little), 2)
        kv, activation = policies.SHAPE.kv_bytes(), policies.SHAPE.activation_bytes()
        for point in little:
            load = point["rows"] * point["context"]
            self.assertLess(policies.tokens_in_memory(point, kv), 0.75 * load)
            self.assertGreater(policies.tokens_in_memory(point, (kv + 3 * activation) // 4), 1.02 * load)
            self.assertEqual([policies.can_have(point, policy) for policy in policies.POLICIES], [False, False, True, False, True])
        self.assertEqual(policies.tokens_in_memory({"memory": "1GiB"}, kv), 131072)
        self.assertTrue(policies.can_have(little[0] | {"memory": "96MiB"}, "fetch_recompute"))
        self.assertFalse(policies.can_have(little[0] | {"memory": "95MiB"}, "fetch_recompute"))


class SweepTest(unittest.TestCase):
    def setUp(self):
        self.sweep = policies.Sweep("folder")
        self.report = policies.report

    def test_lanes_of_a_point_are_those_of_its_clusters(self):
        with mock.patch.object(cluster, "Cluster") as made:
            for point, lanes in ((STORES, "auto"), (STORES | {"lanes": 2}, 2)):
                for policy in ("fetch_recompute", "auto"):
                    self.sweep.cluster(point, policy)
                    self.assertEqual(made.call_args.args, (lanes,), policy)
            self.sweep.cluster(STORES | {"lanes": 2, "compute": "1GiB"}, "local")
        self.assertEqual(made.call_args.args, (1,))

    def test_memory_of_a_point_is_that_of_its_memory_node(self):
        with mock.patch.object(cluster, "Cluster") as made:
            for policy in ("fetch_heads", "auto"):
                self.sweep.cluster(STORES | {"memory": "70MiB"}, policy)
                self.assertEqual(made.call_args.kwargs["capacity"], "70MiB", policy)
                self.sweep.cluster(STORES, policy)
                self.assertNotIn("capacity", made.call_args.kwargs, policy)

    def test_fetch_hybrid_settles_on_its_share_before_it_is_measured(self):
        done = []
        running = mock.Mock(row_seconds=lambda *_: done.append("measured") or 0.1, status=lambda: {}, settled=lambda _: {},
                            last_stretches=[cluster.Stretch(80.0, {("c0", "dense"): 0.5, ("m0", "tables"): 0.001}, 4096.0, 8.0)])
        self.sweep.cluster = lambda *_: contextlib.nullcontext(running)
        with mock.patch.object(paper_shared, "wait_for_share", lambda _: done.append("settled")), mock.patch.object(paper_shared.time, "sleep"):
            self.sweep.seconds(STORES, "fetch_hybrid")
            self.assertEqual(done, ["settled", "measured", "settled", "measured"])
            done.clear()
            self.sweep.seconds(STORES, "fetch_recompute")
            self.assertEqual(done, ["measured"])
        self.assertEqual(self.sweep.notes[-1], {
            "point": policies.words(STORES), "policy": "fetch_recompute",
            "stretches": [{"tokens_per_second": 80.0, "rows": 8.0, "context_tokens": 4096.0, "shares": {"c0 dense": 0.5}}]})

    def test_each_turn_has_all_and_begins_elsewhere(self):
        asked, said, kept = [], [], []
        status = {"policy": "fetch_heads", "policy_figures": [{"policy": "fetch_heads", "seconds": 0.2}, {"policy": "local", "seconds": 0}]}
        self.sweep.seconds = lambda _, policy: (0.1 * len(asked), (asked.append(policy), status)[1])
        found = policies.measure(self.sweep, STORES, 3, keep=lambda result: kept.append(len(result["turns"])), say=said.append)
        self.assertEqual(asked, ["fetch_heads", "fetch_recompute", "fetch_hybrid", "auto",
                                 "fetch_recompute", "fetch_hybrid", "auto", "fetch_heads",
                                 "fetch_hybrid", "auto", "fetch_heads", "fetch_recompute"])
        self.assertEqual(said[3:5], [f"{policies.words(STORES)}: auto", f"{policies.words(STORES)}: fetch_recompute"])
        self.assertEqual(kept, [1, 2, 3])
        # The first, the eighth and the eleventh call.
        self.assertAlmostEqual(found["steps"]["fetch_heads"], 0.7)
        self.assertEqual([turn["order"] for turn in found["turns"]], [asked[:4], asked[4:8], asked[8:]])
        self.assertEqual([policy for policy, _ in found["took"]], ["fetch_heads"] * 3)
        self.assertEqual(found["predicted"], {"fetch_heads": 0.2})

    def test_a_turn_that_is_done_is_not_measured_again(self):
        asked = []
        self.sweep.seconds = lambda _, policy: (0.2, (asked.append(policy), {"policy": "fetch_heads", "policy_figures": []})[1])
        done = [turn_of({"fetch_heads": 0.1}, ("fetch_heads", 0.3))]
        found = policies.measure(self.sweep, STORES, 2, done)
        self.assertEqual(asked, ["fetch_hybrid", "auto", "fetch_heads", "fetch_recompute"])
        self.assertEqual(found["turns"][0], done[0])
        self.assertEqual(len(done), 1)
        self.assertAlmostEqual(found["steps"]["fetch_heads"], 0.15)

    def test_the_sweep_goes_on_behind_clusters_that_fail_and_keeps_each_point(self):
        written = []

        def seconds(_, point, policy):
            if (point["context"], policy) in ((512, "fetch_heads"), (1024, "auto")):
                raise RuntimeError("the cluster did not start")
            return 0.2, {"policy": "fetch_heads", "policy_figures": []}

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "sweep.json"
            points = pathlib.Path(folder) / "policy_points.json"
            points.write_text(json.dumps({"points": [STORES, STORES | {"context": 1024}]}))
            arguments = ["policies.py", "--json", str(path)]

            def report(result):
                written.append(len(json.loads(path.read_text())["results"]))
                return self.report(result)

            with mock.patch.object(policies.Sweep, "seconds", seconds), mock.patch.object(policies.random_llama, "write"), \
                    mock.patch.multiple(policies, HERE=points.parent, report=report), mock.patch.object(sys, "argv", arguments), \
                    contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors, \
                    self.assertRaisesRegex(SystemExit, "2 clusters failed"):
                policies.main()
            results = json.loads(path.read_text())["results"]
        self.assertEqual(written, [1, 2])
        self.assertEqual([result["failed"] for result in results], [["fetch_heads"], ["auto"]])
        self.assertIn("multi_head, 8 x 512, bus 600 MB/s, stores: fetch_heads gave up: the cluster did not start", errors.getvalue())
        self.assertIn("| failed | 200.0, 0.0 | 200.0, 0.0 | fetch_heads, 200.0 | ", out.getvalue())
        self.assertIn("| 200.0, 0.0 | 200.0, 0.0 | 200.0, 0.0 | failed |  |  |\n", out.getvalue())
        self.assertIn("1 of 1 choices are within 10%", out.getvalue())
        self.assertIn("2 points, turns: 1, 8 measurements to go, some 3 minutes\n", out.getvalue())
        self.assertIn("[1/8] multi_head, 8 x 512, bus 600 MB/s, stores: fetch_heads; 3 min to go\n", errors.getvalue())
        self.assertIn("; 1 of 2 points are not measured\n", out.getvalue())


class ResumeTest(unittest.TestCase):
    """Two points of four measurements each, three turns."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "sweep.json"
        (self.folder / "policy_points.json").write_text(json.dumps({"points": [STORES, STORES | {"context": 1024}]}))
        self.measured = []
        self.fails = lambda number, policy: False

    def seconds(self, point, policy):
        self.measured.append((point["context"], policy))
        if self.fails(len(self.measured), policy):
            raise RuntimeError("the cluster did not start")
        return {"fetch_recompute": 0.1}.get(policy, 0.2), {"policy": "fetch_recompute", "policy_figures": []}

    def run_sweep(self, *arguments):
        """(Standard output, errors, how it ended) of one run, whose measurements are in self.measured."""
        self.measured.clear()
        with mock.patch.object(policies.Sweep, "seconds", lambda _, point, policy: self.seconds(point, policy)), mock.patch.object(policies.random_llama, "write"), \
                mock.patch.object(policies, "HERE", self.folder), mock.patch.object(sys, "argv", ["policies.py", "--json", str(self.path), *arguments]), \
                contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
            ended = None
            try:
                policies.main()
            except (SystemExit, KeyboardInterrupt) as end:
                ended = end
        return out.getvalue(), errors.getvalue(), ended

    def test_a_run_that_was_broken_off_goes_on_with_the_turn_that_it_was_in(self):
        def stop(number, _):
            if number == 11:  # In the third turn of the first point.
                raise KeyboardInterrupt
            return False

        self.fails = stop
        _, _, ended = self.run_sweep("--turns", "3", "--resume")  # There is nothing yet.
        self.assertIsInstance(ended, KeyboardInterrupt)
        self.assertEqual([len(result["turns"]) for result in json.loads(self.path.read_text())["results"]], [2])
        self.fails = lambda *_: False
        out, _, ended = self.run_sweep("--turns", "3", "--resume")
        self.assertIsNone(ended)
        self.assertEqual([context for context, _ in self.measured], [512] * 4 + [1024] * 12)
        self.assertEqual([len(result["turns"]) for result in json.loads(self.path.read_text())["results"]], [3, 3])
        self.assertIn("16 measurements to go", out)
        self.assertIn("2 of 2 choices are within 10% of the fastest policy; fastest: attend_remote 0, local 0, fetch_heads 0, fetch_recompute 2, fetch_hybrid 0\n", out)
        self.assertIn("at 2 points at least; at fewer: attend_remote, local, fetch_heads, fetch_hybrid\n", out)

    def test_points_of_several_runs_are_in_one_file_and_in_order(self):
        self.run_sweep("--points", "2")
        out, _, _ = self.run_sweep("--points", "1", "--resume")
        self.assertEqual({context for context, _ in self.measured}, {512})
        self.assertEqual([result["point"]["context"] for result in json.loads(self.path.read_text())["results"]], [512, 1024])
        self.assertIn("2 of 2 choices", out)

    def test_a_turn_in_which_a_cluster_failed_is_measured_again(self):
        self.fails = lambda number, _: number == 1
        _, _, ended = self.run_sweep()
        self.assertIn("1 clusters failed", str(ended))
        self.fails = lambda *_: False
        _, errors, ended = self.run_sweep("--resume", "--points", "1")
        self.assertIsNone(ended)
        self.assertEqual(len(self.measured), 4)
        self.assertIn("stores: no whole turn, left out\n", errors)
        # One that nobody asked for stays as it was.
        self.fails = lambda number, _: number == 5
        self.run_sweep()
        _, _, ended = self.run_sweep("--resume", "--points", "1")
        self.assertIn("1 clusters failed", str(ended))
        self.assertEqual(self.measured, [])

    def test_another_machines_file_is_refused_and_nothing_is_resumed_without_one(self):
        self.run_sweep("--points", "1")
        self.path.write_text(json.dumps(json.loads(self.path.read_text()) | {"machine": "another"}))
        _, _, ended = self.run_sweep("--resume")
        self.assertIn("is of another machine: another", str(ended))
        self.assertEqual(self.measured, [])
        with mock.patch.object(sys, "argv", ["policies.py", "--resume"]), contextlib.redirect_stderr(io.StringIO()) as errors, self.assertRaises(SystemExit):
            policies.main()
        self.assertIn("--resume goes on with the file of --json", errors.getvalue())


def turn_of(steps, auto=None):
    return {"order": [*steps, "auto"], "steps": steps, "auto": {"policy": auto[0], "seconds": auto[1]} if auto else None, "predicted": {}, "failed": []}


class PairsTest(unittest.TestCase):
    def test_ratios_are_those_within_turns(self):
        # The machine is twice as slow in the second turn and three times in the third: by medians of all turns fetch_heads would be the fastest.
        turns = [turn_of({"local": 1.0, "fetch_heads": 1.1}, ("fetch_heads", 1.2)), turn_of({"local": 2.0, "fetch_heads": 2.2}, ("fetch_heads", 2.4)),
                 turn_of({"local": 3.0, "fetch_heads": 1.9}, ("fetch_heads", 3.6))]
        self.assertEqual(policies.ranking(turns)[0], ("local", 1.0))
        self.assertAlmostEqual(policies.ranking(turns)[1][1], 1.1)
        self.assertAlmostEqual(policies.loss_of(turns, "fetch_heads"), 0.1)
        self.assertEqual(policies.loss_of(turns, "local"), 0.0)

    def test_what_auto_took_counts_for_the_choice_and_not_for_who_is_the_fastest(self):
        turns = [turn_of({"local": 1.0, "fetch_heads": 1.3}, ("fetch_heads", 0.9))]
        self.assertEqual(policies.ranking(turns)[0][0], "local")
        self.assertEqual(policies.loss_of(turns, "fetch_heads"), 0.0)
        # But for a policy that nobody has measured by itself.
        self.assertEqual(policies.ranking([turn_of({"local": 1.0}, ("fetch_heads", 0.9))])[0][0], "fetch_heads")

    def test_the_worst_choice_counts_where_turns_differ(self):
        turns = [turn_of({"local": 1.0, "fetch_heads": 1.3}, (took, 1.3)) for took in ("local", "fetch_heads", "local")]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            best, holds = policies.report(policies.result_of(STORES, turns))
        self.assertEqual((best, holds), ("local", False))
        self.assertIn("| fetch_heads and local, 1300.0 | local (fetch_heads 1.30) | +30% fails |", out.getvalue())

    def test_a_policy_that_has_no_rival_loses_nothing(self):
        turns = [turn_of({"fetch_heads": 1.3}, ("fetch_heads", 1.4))]
        self.assertEqual((policies.ranking(turns), policies.loss_of(turns, "fetch_heads")), ([("fetch_heads", 1.0)], 0.0))

    def test_places_in_turns_differ(self):
        for count in (3, 4, 6):
            asked = [*policies.POLICIES, "auto"][:count]
            for turns in (1, 2, 3):
                orders = [policies.order(asked, turn, turns) for turn in range(turns)]
                self.assertTrue(all(sorted(one) == sorted(asked) for one in orders))
                for policy in asked:
                    self.assertEqual(len({one.index(policy) for one in orders}), turns, (count, turns))


class StepTest(unittest.TestCase):
    def test_a_step_is_that_at_the_context_asked_for(self):
        contexts = (1200, 1500, 1800)
        for name, seconds in (("grows with them", lambda tokens: 1e-4 * tokens), ("does not grow", lambda _: 0.1), ("grows in part", lambda tokens: 0.05 + 2e-5 * tokens)):
            self.assertAlmostEqual(cluster.step_at([(tokens, seconds(tokens)) for tokens in contexts], 1000), seconds(1000), msg=name)

    def test_one_stretch_that_others_disturbed_does_not_count(self):
        self.assertAlmostEqual(cluster.step_at([(1200, 0.12), (1500, 0.25), (1800, 0.18)], 1000), 0.10)

    def test_what_grows_is_between_nothing_and_all(self):
        self.assertAlmostEqual(cluster.step_at([(1200, 0.14), (1500, 0.12), (1800, 0.10)], 1000), 0.12)
        self.assertAlmostEqual(cluster.step_at([(1200, 0.01), (1500, 0.10), (1800, 0.19)], 1500), 0.10)
        self.assertGreater(cluster.step_at([(1200, 0.01), (1500, 0.10), (1800, 0.19)], 1000), 0)
        self.assertAlmostEqual(cluster.step_at([(1000, 0.1)] * 3, 1000), 0.1)

    def test_rows_that_take_turns_have_their_own_context(self):
        """Eight of sixteen rows decode, each of 100 tokens and more."""
        running = cluster.Running("here")
        running.first_tokens = running.requests_running = lambda: 8.0
        running.check_load = lambda: None
        running.begin_load = lambda rows, _: setattr(running, "load_rows", rows)
        running.stretches = lambda: [cluster.Stretch(160.0 / (1 + grown), {}, 800.0 * (1 + grown), 8) for grown in (0.1, 0.2, 0.3)]
        with mock.patch.object(cluster, "NOBODY_BEGINS_SECONDS", -1.0), mock.patch.object(cluster.time, "sleep"):
            self.assertAlmostEqual(running.row_seconds(16, 100), 0.1)
            # One of the eight waits again after the first stretch; a link sends as many tokens for the others.
            running.stretches = lambda: [cluster.Stretch(160.0 / (1 + grown), {}, 100.0 * rows * (1 + grown), rows) for rows, grown in ((8, 0.1), (7, 0.2), (7, 0.3))]
            self.assertAlmostEqual(running.row_seconds(16, 100), 0.1)

    def test_nothing_is_measured_while_prompts_are_computed(self):
        """Two of sixteen rows decode, and two more have been computing their prompts for longer than anybody is waited for."""
        begun = iter([0.0] + [2.0] * 5 + [4.0] * 5)
        running = cluster.Running("here")
        running.check_load = lambda: None
        running.begin_load = lambda rows, _: setattr(running, "load_rows", rows)
        seen = {"begun": 0.0}

        def first_tokens():
            seen["begun"] = next(begun)
            return seen["begun"]

        running.first_tokens = first_tokens
        running.requests_running = lambda: 4.0
        running.stretches = lambda: [seen["begun"]]
        with mock.patch.object(cluster, "NOBODY_BEGINS_SECONDS", -1.0), mock.patch.object(cluster.time, "sleep"):
            self.assertEqual(running.decode_stretches(16, 100, wait_for_all=False), [4.0])


if __name__ == "__main__":
    unittest.main()

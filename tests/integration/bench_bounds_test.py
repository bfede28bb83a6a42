#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What suites compare their figures with: bounds of the same run, predictions, and sides in turns. Nothing is measured here."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import sys
import types
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import cluster  # noqa: E402
import decode  # noqa: E402
import fetch  # noqa: E402
import fetch_attention  # noqa: E402
import floor  # noqa: E402
import local  # noqa: E402
import paper_hybridserve  # noqa: E402
import peer_systems  # noqa: E402
import prefill  # noqa: E402
import sampling  # noqa: E402
import spill  # noqa: E402
import spill_model  # noqa: E402
import spill_watch  # noqa: E402
import tables  # noqa: E402
import threads  # noqa: E402
import trace  # noqa: E402
import turns  # noqa: E402


class FetchTest(unittest.TestCase):
    def test_a_stream_over_a_network_is_compared_with_puts(self):
        def measured(command, **_):
            rows = [{"bytes": 8, "bare_ns": 1}, {"stream_bytes": 4096, "stream_bytes_per_second": 2e9},
                    {"stream_bytes": 65536, "stream_bytes_per_second": 50e9},
                    {"walk_bytes": 4096, "walk_bytes_per_second": 1e9, "walk_next_to_reads_bytes_per_second": 6e9},
                    {"walk_bytes": 65536, "walk_bytes_per_second": 10e9, "walk_next_to_reads_bytes_per_second": 5e9}]
            self.assertEqual(command[1:3], ["--transport", "ucx://"])
            self.assertIn("--source-mib 384 --window-mib 12 --messages 7 ", " ".join(map(str, command)))
            pathlib.Path(command[-1]).write_text(json.dumps(rows))

        with mock.patch.object(fetch.subprocess, "run", measured), mock.patch.object(fetch, "program", lambda name: name):
            puts = fetch.put_rates("ucx", 384, 7, window_mib=12)
            self.assertEqual(puts, {"memory": 10e9, "next_to_reads": 6e9, "cache": 50e9})
            self.assertIsNone(fetch.put_rates("shm", 384, 7))
        slower = {source: rate / 2 for source, rate in puts.items()}
        point = {"kv": "bf16", "resident": "0", "window_mib": 12, "rows": 4, "context": 1024, "tokens_per_second": 100, "step_s": 0.04,
                 "streaming": 0.5, "bytes_per_second": 9e9, "slowest_bytes_per_second": 3e9, "puts": [slower, puts],
                 "waited_for_core": 0.021, "huge_mib": {"c0": 300, "m0": 2048}}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            fetch.report([point], copy=12e9)
        self.assertIn("| 9.0 | 3.0 | 0.75 | 5.0, 10.0 | 0.90 | 1.50 | 0.18 | 2.1% | 300, 2048 |", out.getvalue())
        self.assertIn("Asked: 0.85 of puts from memory.", out.getvalue())
        for key in ("puts", "waited_for_core", "huge_mib"):  # Of a cluster that serves already.
            del point[key]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            fetch.report([point], copy=None)
        self.assertIn("| 9.0 | 3.0 |\n", out.getvalue())

    def test_puts_are_measured_next_to_each_point(self):
        """Behind a point they are those before the next one, if that has as large a window."""
        order, written = [], []

        def put_rates(_link, _mebibytes, _messages, window):
            order.append(f"puts {window}")
            return {source: len(order) * 1e9 for source in ("memory", "next_to_reads", "cache")}

        def measure(_arguments, form, resident, window, rows, context):
            order.append(f"{rows}x{context} {window}")
            return {"kv": form, "resident": resident, "window_mib": window, "rows": rows, "context": context, "tokens_per_second": 1, "step_s": 1,
                    "streaming": 1, "bytes_per_second": 1e9, "slowest_bytes_per_second": 1e9}

        fakes = {"put_rates": put_rates, "measure": measure, "copy_rate": lambda _: 1e9, "write": lambda _, figures: written.append(figures)}
        with mock.patch.multiple(fetch, **fakes), mock.patch.object(sys, "argv", ["fetch", "--link", "ucx", "--points", "1x4096,4x1024"]), \
                contextlib.redirect_stdout(io.StringIO()):
            fetch.main()
            self.assertEqual(order, ["puts 64", "1x4096 64", "puts 64", "4x1024 64", "puts 64"])
            self.assertEqual([[puts["memory"] for puts in point["puts"]] for point in written[0]["points"]], [[1e9, 3e9], [3e9, 5e9]])
            order.clear()
            sys.argv += ["--points", "1x4096", "--window", "64,12"]
            fetch.main()
        self.assertEqual(order, ["puts 64", "1x4096 64", "puts 64", "puts 12", "1x4096 12", "puts 12"])

    def test_the_thread_that_ran_longest_says_who_waited(self):
        before, after = {"1": (1.0, 5.0), "2": (9.0, 0.5)}, {"1": (1.1, 8.0), "2": (10.5, 0.75), "3": (0.2, 4.0)}
        self.assertEqual(fetch.busiest_waited(before, after), 0.25)
        self.assertEqual(fetch.busiest_waited({}, {}), 0.0)
        threads = fetch.thread_seconds(os.getpid())
        self.assertGreater(threads[str(os.getpid())][0], 0.0)
        self.assertGreaterEqual(fetch.huge_mebibytes(os.getpid()), 0)

    def test_a_copy_has_the_rate_that_the_stream_had(self):
        begun, rates = [], []

        @contextlib.contextmanager
        def copying(rate):
            rates.append(rate)
            yield None

        def stretch(*_):
            return fetch_attention.Stretch(attention=9e9, sent=3e9)

        fakes = {"begin": lambda _, *load: begun.append(load), "end": lambda *_: None, "copying": copying, "stretch": stretch}
        with mock.patch.multiple(fetch_attention, **fakes):
            found = fetch_attention.turn(mock.Mock(), (8, 1024), (4, 1024))
        self.assertEqual(rates, [0, 3e9, 0])
        self.assertEqual(begun, [(4, 1024, "fetch_heads"), (1, 16, "fetch_heads"), (1, 16, "fetch_heads")])
        self.assertEqual(list(found), ["stream", "copy", "alone"])


class HybridServeTest(unittest.TestCase):
    def test_activations_on_the_device_are_held_against_the_paper(self):
        for c in (0.125, 0.5, 1, 4):
            for other in (0, 0.3, 1.5):
                best = min(max(1 - share / 1000, share / 1000 * c + other) for share in range(1001)) / max(1, other)
                self.assertAlmostEqual(paper_hybridserve.resident_formula(c, other), best, delta=2e-3)
            self.assertAlmostEqual(1 / paper_hybridserve.resident_formula(c, 0), 1 + 1 / c)

        def said(*steps):
            points = [{"c": c, "kv": {"step": 0.1}, "hybrid": {"step": 0.06}, "resident": {"step": step, "share": 50.0, "megabytes": 17},
                       "resident_formula": paper_hybridserve.resident_formula(c, 0)} for c, step in steps]
            with contextlib.redirect_stdout(io.StringIO()) as out:
                paper_hybridserve.print_resident(points)
            return out.getvalue()

        text = said((0.5, 0.04), (1, 0.055))
        self.assertIn("| 1 | 55 | 50% | 1.82 (2.00; 2.00) | 1.09 | 17 |", text)
        self.assertIn("on the compute node: 2.50 times K and V alone at c = 0.5 (bound 3.00; the paper's mean over another engine 2.19): reproduced.", text)
        self.assertIn("2.00 times K and V alone at c = 0.5 (bound 3.00; the paper's mean over another engine 2.19): not reproduced.", said((0.5, 0.05)))
        self.assertIn("none was asked for whose bound allows the paper's 2.19: not measured.", said((1, 0.055)))


class SpillTest(unittest.TestCase):
    def test_a_sequence_that_has_lost_its_slots_is_computed_again_when_there_is_room(self):
        """Two of 100 + 100 tokens on 250 slots. Both have 125 slots when none is left, behind 25 steps; the first one ends behind 74 more, and the
        other one computes its 126 tokens again, which bring the next, and ends behind 73."""
        seconds_of_steps = spill_model.Times(step=1, row=0, context=0, prompt=0.01)
        outcome = spill_model.outcome_of(2, 100, 100, 250, seconds_of_steps)
        self.assertEqual((outcome.computed_again, outcome.preemptions), (126, 1))
        self.assertAlmostEqual(outcome.seconds, 200 * 0.01 + 25 + 74 + 126 * 0.01 + 73)

    def test_what_would_leave_no_headroom_does_not_join(self):
        """The second one wants 117 slots of the 110 that are left."""
        outcome = spill_model.outcome_of(2, 100, 100, 210, spill_model.Times(step=1, row=0, context=0, prompt=0))
        self.assertEqual((outcome.computed_again, outcome.preemptions, outcome.seconds), (0, 0, 99 + 99))
        with self.assertRaisesRegex(ValueError, "199 slots have no room for a sequence of 200 tokens"):
            spill_model.outcome_of(2, 100, 100, 199, spill_model.Times(1, 0, 0, 0))

    def test_the_preemptions_are_those_that_were_measured(self):
        """14 requests of 600 + 400 tokens on 7,281 slots: a scheduler preempted 4 and computed 3,089 tokens again."""
        outcome = spill_model.outcome_of(14, 600, 400, 7281, spill_model.Times(0.01, 0.001, 1e-6, 0.001))
        self.assertEqual(outcome.preemptions, 4)
        self.assertAlmostEqual(outcome.computed_again, 3089, delta=300)

    def test_what_a_step_takes_goes_through_what_was_measured(self):
        points = [(rows, context, 0.01 + 0.001 * rows + 2e-6 * context) for rows, context in ((2, 500), (64, 5000), (12, 15000))]
        times = spill_model.times_through(points, prompt_rate=800)
        self.assertAlmostEqual(times.of(20, 1000, 40), 0.01 + 0.02 + 0.002 + 40 / 800)
        self.assertAlmostEqual(times.of(0, 0, 40), 40 / 800)
        fell = spill_model.times_through([(2, 500, 0.02), (64, 5000, 0.02), (12, 15000, 0.01)], prompt_rate=800)
        self.assertEqual(fell.context, 0)

    def find(self, loads, seconds=60.0):
        rates = {"write_bytes_per_second": 1e9, "read_bytes_per_second": 1e9}
        times = spill_model.Times(step=0.01, row=0.001, context=1e-6, prompt=0.001)
        arguments = types.SimpleNamespace(times=2.0, loads=loads, seconds=seconds, kv="bf16", rows=1, context=1, output=1, capacity="1MiB")
        with mock.patch.object(spill, "measured", lambda _: (times, rates)), contextlib.redirect_stdout(io.StringIO()) as out:
            chosen = spill.find(arguments)
        return chosen, out.getvalue()

    def test_the_load_is_taken_for_which_most_is_predicted(self):
        chosen, out = self.find("14x600x400,64x16x64,28x60x460")
        self.assertEqual((chosen.rows, chosen.context, chosen.output), (64, 16, 64))
        self.assertEqual(chosen.capacity, f"{64 * 80 // 2 * 23040}B")
        self.assertIn("| 64x16x64 | 2560 |", out)
        self.assertRegex(out, r"most is predicted for 64x16x64, 1\.\d\d times; 1\.5 for none of at most 60 s")

    def test_no_load_is_taken_whose_turn_takes_too_long(self):
        chosen, out = self.find("14x600x400,2x100x100", seconds=10)
        self.assertEqual(chosen.rows, 2)
        self.assertIn("| 14x600x400 | 7000 |", out)
        with self.assertRaisesRegex(SystemExit, "more than --seconds 1: name smaller --loads"):
            self.find("14x600x400", seconds=1)

    def test_what_is_predicted_is_without_what_was_computed_again(self):
        """Ten seconds, of which three are for tokens that take 46 us each to the tier and back."""
        rates = {"write_bytes_per_second": 1e9, "read_bytes_per_second": 1e9}
        turns = [{"seconds": 10, "computed_again": 3000, "prompt_tokens_per_second": 1000}]
        self.assertAlmostEqual(spill.predicted(turns, rates, types.SimpleNamespace(kv="bf16")), 10 / (10 - 3 + 3000 * 46.08e-6))

    def test_moves_take_a_part_of_the_loads_time(self):
        turns = [{"seconds": 20, "spill": {"seconds_in": 0.1, "seconds_out": 0.2}}, {"seconds": 30, "spill": {"seconds_in": 0, "seconds_out": 0.2}}]
        self.assertAlmostEqual(spill.moving_share(turns), 0.01)

    def test_the_time_of_reads_is_told_by_what_it_went_into(self):
        tier = {"sequences_in": 2, "seconds_in": 0.02, "queued_seconds": 0.002, "reading_seconds": 0.01, "behind_seconds": 0.002, "copying_seconds": 0.008}
        turns = [{"spill": tier, "step_seconds": 0.06}, {"spill": {**tier, "seconds_in": 0.028}, "step_seconds": 0.02}]
        found = spill.parts_of_reads(turns)
        self.assertEqual({name: round(value, 6) for name, value in found.items()},
                         {"queued": 1, "at the disk": 5, "behind the last read": 1, "between reads": 5, "of all threads to check and copy": 4,
                          "from the report to a step": 20})

    def test_attention_next_to_moves_is_compared_with_that_around_them(self):
        """Ten bytes a second of attention, nine in the two stretches with a move, and two long behind it, with other rows. What was read in the two
        takes 1.8 s of their 2 elsewhere; the move took a quarter of their time, so that 0.45 s of attention became 0.65."""
        rates = [10] * 12 + [9, 9] + [10] * 12 + [2] * 8
        looks = [spill_watch.Look(0, 0, 0, 0)]
        for index, rate in enumerate(rates):
            last = looks[-1]
            looks.append(spill_watch.Look(last.at + 1, last.read_bytes + rate, last.attend_seconds + 1, 0.5 if index >= 13 else 0.0))
        found = spill_watch.next_to_moves(looks)
        self.assertEqual((found.seconds, found.stretches, found.share), (2, 2, 0.25))
        self.assertAlmostEqual(found.ratio, 0.45 / 0.65)
        self.assertAlmostEqual(spill_watch.sum_of([found, found]).ratio, 0.45 / 0.65)
        self.assertEqual(spill_watch.next_to_moves(looks[:5]).ratio, 1)

    def test_a_move_longer_than_a_stretch_slows_all_in_which_it_was_under_way(self):
        """Of 2.5 s, counted in the last of four stretches of a second. What is slowed is nothing to compare with."""
        rates = [10] * 12 + [9] * 4 + [10] * 12
        looks = [spill_watch.Look(0, 0, 0, 0)]
        for index, rate in enumerate(rates):
            last = looks[-1]
            looks.append(spill_watch.Look(last.at + 1, last.read_bytes + rate, last.attend_seconds + 1, 2.5 if index >= 15 else 0.0))
        found = spill_watch.next_to_moves(looks)
        self.assertEqual((found.seconds, found.stretches, found.share), (4, 4, 0.625))
        self.assertAlmostEqual(found.expected, 3.6)

    def test_loads_are_watched_with_the_tier_and_without(self):
        status = {"tokens_prefilled": 0, "preemptions": 0,
                  "nodes": [{"name": "m0", "slots_total": 1, "kv_bytes_read": 1, "part_seconds": {}, "spill": None}]}
        load = {"output_tokens_per_second": 1.0, "seconds": 1.0, "failed": 0}
        watched = []
        watch = lambda running: watched.append(running) or contextlib.nullcontext(types.SimpleNamespace(looks=[]))  # noqa: E731
        running = types.SimpleNamespace(status=lambda: status, metrics=lambda: {"lamina_restore_step_seconds_sum": 0.5})
        with mock.patch.multiple(spill, started=lambda *_: contextlib.nullcontext(running), prompt_rate=lambda *_: 1.0, load_on=lambda *_: load), \
                mock.patch.object(spill_watch, "Watch", watch):
            for spills in (False, True):
                one = spill.turn(types.SimpleNamespace(rows=1, context=1), spills)
                self.assertEqual((one["next_to_moves"]["stretches"], one["step_seconds"]), (0, 0.5))
        self.assertEqual(watched, [running, running], "or one of the two has more of the cores")

    def test_a_watch_adds_up_what_a_node_counts(self):
        page = {'lamina_kv_read_bytes_total{node="m0",role="memory"}': 7.0, 'lamina_part_seconds_total{node="m0",role="memory",part="attend"}': 2.0,
                'lamina_part_seconds_total{node="m0",role="memory",part="store"}': 9.0,
                'lamina_spill_seconds_total{node="m0",role="memory",direction="out"}': 0.5,
                'lamina_spill_seconds_total{node="m0",role="memory",direction="in"}': 0.25}
        with spill_watch.Watch(types.SimpleNamespace(metrics=lambda _: page)) as watch:
            pass
        look = watch.look()
        self.assertEqual((look.read_bytes, look.attend_seconds, look.move_seconds), (7.0, 2.0, 0.75))


class FloorTest(unittest.TestCase):
    """A machine that reads 60 GB/s, 20 on one core, and multiplies at 0.2 TFLOP/s a core. Figures by hand."""

    LIMITS = {"read_bytes_per_second": 60e9, "gemm_flops_per_second": 0.2e12,
              "cores": [{"core": core, "read_bytes_per_second": 20e9, "gemm_flops_per_second": 0.2e12} for core in (0, 1)]}

    def test_one_node_adds_what_binds_each_op(self):
        bf16 = floor.Arrangement(269e6)
        # One row reads 269 MB and K and V of 1,000 tokens, 23.04 MB.
        self.assertAlmostEqual(floor.floor_ms(self.LIMITS, 1, 1000, bf16), 4.483 + 0.384, places=3)
        # 32 rows multiply 134.5e6 parameters 32 times on two cores, and read 768 MB of K and V next.
        self.assertAlmostEqual(floor.floor_ms(self.LIMITS, 32, 32000, bf16), 21.517 + 12.288, places=3)

    def test_weights_count_as_they_lie(self):
        packed = floor.Arrangement(97.4e6)
        self.assertAlmostEqual(floor.floor_ms(self.LIMITS, 1, 0, packed), 1.623, places=3)
        embedding = 2 * 576 * 49152
        for kernels, unread in (("pairs, weights bf16 257.3 MiB", 0), ("pairs, weights bf16 54.0 MiB, int8 137.0 MiB", embedding),
                                ("pairs, weights Q4_1 63.4 MiB, Q8_0 28.7 MiB", 0), ("int8 of old", 0)):
            self.assertEqual(floor.read_weights({"kernels": kernels, "weight_bytes": 200_000_000}), 200_000_000 - unread)

    def test_two_pools_have_the_larger_sum_on_their_own_cores(self):
        # The compute node's core reads 269 MB for each lane in use: 13.45 ms; the other one K and V.
        for rows, tokens, lanes, ms in ((1, 1000, 2, 13.45), (16, 16000, 2, 26.9), (16, 16000, 1, 21.517), (16, 65536, 1, 75.497)):
            two = floor.Arrangement(269e6, lanes, "attend_remote")
            self.assertAlmostEqual(floor.floor_ms(self.LIMITS, rows, tokens, two), ms, places=2)

    def test_lanes_are_those_in_use(self):
        for choice, lanes in (("1 of 2 lanes: 1 row, times not measured yet", 1), ("2, as configured", 2), ("", 1)):
            self.assertEqual(floor.lanes_of(choice), lanes)
        status = {"policy": "attend_remote", "nodes": [{"role": "memory"}, {"role": "compute", "kernels": "pairs", "weight_bytes": 5}],
                  "lanes": [{}, {}]}
        running = types.SimpleNamespace(status=lambda: status, lane_choice="1 of 2 lanes: 1 row")
        self.assertEqual(floor.arrangement_of(running), floor.Arrangement(5, 1, "attend_remote"))
        self.assertTrue(floor.arrangement_of(running).pools)
        status["policy"] = "local"
        self.assertFalse(floor.arrangement_of(running).pools)

    def test_the_better_reads_next_to_a_point_count(self):
        slow = {"read_bytes_per_second": 35e9, "cores": [{"read_bytes_per_second": 23e9}, {"read_bytes_per_second": 19e9}]}
        with mock.patch.object(floor, "measured", lambda *_: slow):
            before = floor.reads_now(self.LIMITS)
        self.assertEqual(before["cores"][0], {"core": 0, "read_bytes_per_second": 23e9, "gemm_flops_per_second": 0.2e12})
        self.assertEqual(before["gemm_flops_per_second"], 0.2e12)
        best = floor.better_reads(before, self.LIMITS)
        self.assertEqual(best["read_bytes_per_second"], 60e9)
        self.assertEqual([core["read_bytes_per_second"] for core in best["cores"]], [23e9, 20e9])

    def test_reads_that_fail_cost_a_point_and_bounds_that_fail_the_suite(self):
        for fails, error in ((lambda: floor.reads_now(self.LIMITS), RuntimeError), (floor.bounds, SystemExit)):
            with mock.patch.object(floor, "program", lambda _: "false"), self.assertRaisesRegex(error, "lamina-bench-bounds ended with exit status 1"):
                fails()
        running = contextlib.nullcontext(mock.Mock())
        with mock.patch.object(floor, "program", lambda _: "false"), mock.patch.object(cluster, "Cluster", lambda **_: running), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            self.assertEqual(peer_systems.lamina("local", [(1, 1024)], mock.Mock(), self.LIMITS), {})
        self.assertIn("local gave up: lamina-bench-bounds ended with exit status 1", out.getvalue())

    def test_a_point_is_judged_and_written(self):
        stretch = types.SimpleNamespace(tokens_per_second=100, context_tokens=1000, shares={})
        status = {"policy": "local", "nodes": [{"role": "compute", "kernels": "", "weight_bytes": 269e6}]}
        running = types.SimpleNamespace(decode_rate=lambda *_: stretch, status=lambda: status, lane_choice="1, for none is away")
        with mock.patch.object(decode, "reads_now", lambda limits: limits):
            row = decode.measure(running, "local", (1, 1024), self.LIMITS)
        self.assertAlmostEqual(row["ratio"], 0.487, places=3)
        self.assertIn(" 0.49  0.55  missed   60.0 ", decode.words(row))
        table = tables.decode({"rows": [row]})
        self.assertIn("| one node (`local`) | 1 x 1024 | 1 | 257 | 60.0 | 10.0 | 4.9 | 0.49 | 100 |", table)


class ClusterTest(unittest.TestCase):
    def test_a_start_that_is_interrupted_leaves_no_daemon(self):
        for end in (KeyboardInterrupt, SystemExit):
            running = cluster.Cluster(1)
            daemons = []

            def started(*_, **__):
                daemons.append(mock.Mock())
                return daemons[-1]

            with mock.patch.multiple(cluster, need=mock.DEFAULT, need_model=mock.DEFAULT), \
                    mock.patch.object(cluster.subprocess, "Popen", started), mock.patch.object(running, "status", side_effect=end), \
                    self.assertRaises(end):
                with running:
                    self.fail("it has not started")
            self.assertEqual(len(daemons), 4)
            for daemon in daemons:
                daemon.terminate.assert_called_once()
                daemon.wait.assert_called()
            self.assertFalse(pathlib.Path(running.folder.name).exists())


class PrefillTest(unittest.TestCase):
    def test_the_row_has_the_prompt_that_was_asked(self):
        readers = mock.Mock(gaps=lambda *_: [10.0, 20.0])
        running = mock.Mock(address="here:7400")
        with mock.patch.object(prefill, "Readers", lambda *_: readers), mock.patch.object(prefill.subprocess, "Popen") as asked, \
                mock.patch.multiple(prefill.cluster, Cluster=lambda *_, **__: contextlib.nullcontext(running)), \
                mock.patch.object(prefill, "program", lambda name: name), contextlib.redirect_stdout(io.StringIO()):
            asked.return_value.communicate.return_value = ('{"prompt_tokens": 4001, "ttft_ms": 5}', None)
            row = prefill.measure(argparse.Namespace(server=None, lanes="auto", rows=2, tokens=9, prompt_tokens=4096), "inline", 512, None)
        self.assertEqual((row["prompt_tokens"], row["during"]["tokens"]), (4001, 2))


class TraceTest(unittest.TestCase):
    ARGUMENTS = types.SimpleNamespace(rows=16, context=4096, server=None)

    def test_nothing_is_measured_while_prompts_are_computed(self):
        begun = iter([False, False, True])
        running = mock.Mock(all_decode=lambda: next(begun))
        with mock.patch.object(trace.time, "sleep"):
            trace.begin(running, self.ARGUMENTS)
        self.assertEqual(next(begun, "none left"), "none left")
        # Prompt and answer are no more than the cluster takes.
        running.begin_load.assert_called_once_with(16, 4096, answer_tokens=4096)

    def test_a_load_that_is_refused_ends_the_suite(self):
        running = cluster.Running("here")
        running.first_tokens = lambda: 0.0
        with mock.patch.object(cluster.subprocess, "Popen") as started, mock.patch.object(trace.time, "sleep"), \
                self.assertRaisesRegex(RuntimeError, "the load of 16 requests ended before it was measured"):
            started.return_value.poll.return_value = 1
            trace.begin(running, self.ARGUMENTS)
        self.assertEqual(started.call_args[0][0][-2:], ["--output-tokens", "4096"])

    def test_a_stretch_has_whole_steps_of_all_lanes(self):
        """Two lanes of four rows end steps of 1 s within 10 ms: from the end of the second lane to that of the first there are 12 tokens in 2 s."""
        running = cluster.Running("here")
        ends = iter([(10.01, 108), (12.0, 120), (12.01, 124)])
        running.step_end = lambda: next(ends)
        running.part_seconds, running.in_lanes = dict, lambda: (8, 4096)
        with mock.patch.object(cluster.time, "sleep"):
            self.assertAlmostEqual(running.stretch(2).tokens_per_second, 8)
        self.assertEqual(next(ends, "none left"), "none left")

    def test_rows_that_take_turns_end_at_the_first_step(self):
        running = cluster.Running("here")
        ends = iter([(11.0, 3)] + [(12.0 + step, 5 + 8 * step) for step in range(cluster.LANES_MOST)])
        running.step_end = lambda: next(ends)
        self.assertEqual(running.whole_steps_end(0, 8), (11.0, 3))

    def test_a_rate_is_that_between_ends_of_steps(self):
        ends = iter([(10.0, 160), (12.5, 660)])
        with mock.patch.object(trace.time, "sleep"):
            self.assertEqual(trace.tokens_per_second(mock.Mock(step_end=lambda: next(ends)), 2), 200)


class SidesTest(unittest.TestCase):
    """What two sides of a comparison are, and how it is judged."""

    def side(self, **keys):
        side = turns.Side("one", lanes="auto", local=True, **keys)
        self.addCleanup(side.running.folder.cleanup)
        return side

    def test_a_load_draws_as_its_side_says(self):
        side = self.side(draws=("--temperature", "1"))
        side.running.all_decode = lambda: True
        metrics = mock.patch.object(cluster.Cluster, "metrics", lambda *_: {})
        with metrics, mock.patch.object(cluster.subprocess, "Popen") as started, mock.patch.object(turns, "SILENCE_SECONDS", 0.2):
            started.return_value.poll.return_value = None
            turns.begin([side], 16, 1024)
        self.assertEqual(started.call_args[0][0][-2:], ["--temperature", "1"])

    def test_a_side_has_its_threads(self):
        self.assertIn(", threads: 16}", self.side(threads=16).running.config.read_text())
        self.assertNotIn("threads:", self.side().running.config.read_text())

    def compare(self, forms, **keys):
        """(What is found, printed, seconds of each turn by side) of a side whose steps take 20 ms and one of 10 ms, in four turns."""
        sides, spans = [], {}

        for name, step, form in (("slow", 0.02, forms[0]), ("fast", 0.01, forms[1])):
            side = turns.Side(name, lanes="auto", local=True, **keys)
            self.addCleanup(side.running.folder.cleanup)
            side.running.load_rows = 16

            def turn(seconds, side=side, step=step, form=form):
                spans.setdefault(side.name, []).append(seconds)
                side.weights = form
                return cluster.Stretch(16 / step, {}, 16000.0, 16)

            side.turn = turn
            sides.append(side)
        with mock.patch.multiple(turns, begin=mock.DEFAULT, end=mock.DEFAULT), contextlib.redirect_stdout(io.StringIO()) as out:
            found = turns.compare(sides, 16, 1000, 4, 2.0)
        return found, out.getvalue(), spans

    def test_rows_of_the_faster_side_get_no_more_tokens(self):
        found, _, spans = self.compare(("bf16 257.3 MiB", "bf16 257.3 MiB"))
        self.assertEqual(spans["slow"], [2.0] * 4)
        self.assertEqual(spans["fast"][0], 2.0)
        for seconds in spans["fast"][1:]:
            self.assertAlmostEqual(seconds, 1.0)
        self.assertAlmostEqual(found["slow"]["ratio"], 2)

    def test_sides_that_chose_other_forms_of_weights_are_named(self):
        odd = ("Q4_1 63.9 MiB, bf16 54.2 MiB", "bf16 257.3 MiB")
        found, text, _ = self.compare(odd)
        self.assertEqual((found["slow"]["weights"], found["fast"]["weights"]), odd)
        self.assertIn("weights differ, and ratios are of that too: slow Q4_1 63.9 MiB, bf16 54.2 MiB; fast bf16 257.3 MiB\n", text)
        for forms, keys in (((odd[0], odd[0]), {}), (odd, {"weights": "packed"})):
            self.assertEqual(self.compare(forms, **keys)[1], "")

    def test_pools_and_one_node_have_one_form_of_weights(self):
        for words, form in ((("--weights", "auto"), None), ((), "bf16")):
            parser = argparse.ArgumentParser()
            turns.add_weights(parser)
            keys = local.keys_of(argparse.Namespace(capacity="3GiB", **vars(parser.parse_args(words))))
            self.assertEqual(keys, {"capacity": "3GiB", "weights": form})

    def test_draws_are_judged_by_turns(self):
        found = {"rows": 16, "context": 1024, "drawn": {"tokens_per_second": 490, "ratio": 1.02, "ratios": [1.01, 1.02, 1.04]},
                 "greedy": {"tokens_per_second": 500}}
        slower, words = sampling.verdict(found)
        self.assertAlmostEqual(slower, 0.02)
        self.assertIn("slower by 2.0% (1.0 to 4.0), within 3%", words)
        found["drawn"]["ratio"] = 1.04
        self.assertIn("slower by 4.0% (1.0 to 4.0), more than 3%", sampling.verdict(found)[1])

    def test_many_threads_are_judged_by_their_rows(self):
        for rows, words in ((1, "within 40%"), (64, "more than 10%")):
            found = {"rows": rows, "context": 1024, "many": {"tokens_per_second": 80, "ratio": 1.25, "ratios": [1.25]},
                     "few": {"tokens_per_second": 100}}
            self.assertAlmostEqual(threads.verdict(found)[0], 0.2)
            self.assertIn(f"lost 20.0% (20.0 to 20.0), {words}", threads.verdict(found)[1])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh paper computes around its measurements: formulas against brute force, sizes of models against their files, counters,
tables and verdicts of figures that are given. No cluster runs."""

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import paper_alisa  # noqa: E402
import paper_alisa_figures as alisa  # noqa: E402
import paper_hybridserve  # noqa: E402
import paper_hybridserve_figures as hybridserve  # noqa: E402
import paper_kvpr  # noqa: E402
import paper_kvpr_figures as kvpr  # noqa: E402
import paper_shared as shared  # noqa: E402
import random_llama  # noqa: E402
import random_opt  # noqa: E402

RATIOS = (0.125, 0.25, 0.5, 1, 2, 4)


def printed(run, *arguments, **keys):
    """(What it returns, what it prints.)"""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        found = run(*arguments, **keys)
    return found, out.getvalue()


def tensors_of(folder):
    """{name: (shape, bytes)} of a file of safetensors, whose length is checked."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    ends = [one["data_offsets"][1] for one in header.values()]
    assert len(data) == 8 + length + max(ends)
    return {name: (one["shape"], one["data_offsets"][1] - one["data_offsets"][0]) for name, one in header.items()}


class FormulaTest(unittest.TestCase):
    TOKENS = 4000

    def times(self, c):
        """Equation (10) for every split, in units of what K and V of all tokens take on the link."""
        return [(0.5 * split + max(c * split, self.TOKENS - split)) / self.TOKENS for split in range(self.TOKENS + 1)]

    def test_the_best_split_is_that_of_brute_force(self):
        for c in RATIOS:
            times = self.times(c)
            self.assertAlmostEqual(shared.split_time(c), min(times), places=3)
            self.assertAlmostEqual(shared.split_share(c), times.index(min(times)) / self.TOKENS, places=3)

    def test_the_best_split_of_several_lanes_is_that_of_brute_force(self):
        for c in RATIOS:
            times = [max(0.5 * split + self.TOKENS - split, c * split) / self.TOKENS for split in range(self.TOKENS + 1)]
            self.assertAlmostEqual(shared.streamed_time_of_lanes(0, c), min(times), places=3)
            self.assertAlmostEqual(shared.ahead_share(c), times.index(min(times)) / self.TOKENS, places=3)

    def test_a_lane_that_is_a_layer_ahead_is_off_no_formula(self):
        point = {"formula": 0.6, "ahead": 0.5}
        for ratio, off in ((0.66, 0.1), (0.6, 0), (0.55, -1 / 12), (0.5, 0), (0.4, 0.25)):
            self.assertAlmostEqual(paper_kvpr.off_formulas({**point, "ratio": ratio}), off)

    def test_the_chosen_split_is_judged_by_the_sweep_at_its_c(self):
        bench = mock.Mock(run=lambda percent, transport: (abs(percent - 60) / 100 + 0.1, 0, transport))
        swept, text = printed(paper_kvpr.sweep, bench, 1e-6, 1, [0, 60, 100])
        self.assertEqual([percent for percent, _ in swept], [0, 60, 100])
        self.assertIn("| recomputed at c = 1 | ms a step |", text)
        self.assertIn("| 60% | 100 |", text)
        points = [{"c": 0.25, "step_s": 9.0}, {"c": 1, "step_s": 0.104}]
        for step, word in ((0.104, "1.040 of the best of the sweep (asked: at most 1.05): reproduced"), (0.106, "1.060 of the best of the sweep (asked: at most 1.05): not reproduced")):
            points[1]["step_s"] = step
            _, text = printed(paper_kvpr.judge_sweeps, points, [{"c": 1, "steps": swept}, {"c": 4, "steps": [(0, 1.0)]}])
            self.assertEqual(text, f"At c = 1 the chosen split takes {word}.\n")

    def test_the_gain_with_streamed_weights_is_that_of_brute_force(self):
        splits = range(self.TOKENS + 1)
        for c in RATIOS:
            for kv in (0.25, 1, 8):
                weights = self.TOKENS / kv
                full = weights + self.TOKENS
                one = min(0.5 * split + max(c * split, weights + self.TOKENS - split) for split in splits)
                self.assertAlmostEqual(shared.streamed_gain(kv, c), full / one - 1, places=2)
                lanes = min(max(weights + 0.5 * split + self.TOKENS - split, c * split) for split in splits)
                self.assertAlmostEqual(shared.streamed_gain(kv, c, shared.streamed_time_of_lanes), full / lanes - 1, places=2)
                paper = min(kv * time + 1 for time in self.times(c))
                self.assertAlmostEqual(shared.streamed_gain(kv, c, shared.streamed_time_of_the_paper), (kv + 1) / paper - 1, places=3)
        self.assertAlmostEqual(shared.streamed_gain(8, 0.25, shared.streamed_time_of_the_paper), 0.552, places=3)

    def test_the_best_share_of_activations_that_stay_is_that_of_brute_force(self):
        shares = [share / self.TOKENS for share in range(self.TOKENS + 1)]
        for c in RATIOS:
            for weights in (0, 0.125, 0.5, 2):
                for other in (0, 0.3):
                    best = min(max(weights + 1 - share, share * c + other) for share in shares)
                    self.assertAlmostEqual(paper_hybridserve.resident_formula(c, other, weights), best / (weights + 1), places=3)
                self.assertAlmostEqual(paper_hybridserve.resident_bound(c, weights), 1 + 1 / max(c, weights))

    def test_geometric_means(self):
        self.assertAlmostEqual(shared.geometric_mean([1, 4]), 2)
        self.assertAlmostEqual(shared.geometric_mean([0.22] * 3), 0.22)


class ModelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_sizes_of_an_opt_are_those_of_its_file(self):
        shape = random_opt.Shape(layers=3, width=64, heads=4, positions=100)
        random_opt.write(self.folder, shape)
        tensors = tensors_of(self.folder)

        def total(part, dimensions):
            return sum(size for name, (sizes, size) in tensors.items() if part in name and len(sizes) == dimensions)

        self.assertEqual(total(".layers.1.", 2), shape.layer_bytes())
        self.assertEqual(total("layers.2.self_attn.", 2), shape.attention_bytes())
        self.assertEqual(total("embed", 2), shape.table_bytes())
        self.assertEqual(total("", 1) * random_opt.VECTOR // 2, shape.vector_bytes())
        last = total("layers.2.fc", 2) + total("layers.2.self_attn.out_proj", 2)
        self.assertEqual(last, shape.last_slice_bytes())
        self.assertEqual(json.loads((self.folder / "config.json").read_text())["model_type"], "opt")

    def test_heads_may_be_wider_than_their_share_of_the_model(self):
        shape = random_llama.Shape(layers=1, width=64, hidden=32, heads=4, kv_heads=2, head_width=32)
        random_llama.write(self.folder, shape)
        tensors = tensors_of(self.folder)

        self.assertEqual(json.loads((self.folder / "config.json").read_text())["head_dim"], 32)
        self.assertEqual(tensors["model.layers.0.self_attn.q_proj.weight"][0], [128, 64])
        self.assertEqual(tensors["model.layers.0.self_attn.o_proj.weight"][0], [64, 128])
        self.assertEqual(shape.kv_bytes(), 2 * tensors["model.layers.0.self_attn.k_proj.weight"][0][0] * 2)

    def test_layers_of_a_llama_are_those_of_its_file(self):
        for shape in (random_llama.Shape(layers=2, width=64, hidden=32, heads=4, kv_heads=2), random_llama.Shape(layers=1, width=64, hidden=32, heads=4, kv_heads=2, head_width=32)):
            with tempfile.TemporaryDirectory() as folder:
                random_llama.write(pathlib.Path(folder), shape)
                matrices = [size for name, (sizes, size) in tensors_of(pathlib.Path(folder)).items() if ".layers.0." in name and len(sizes) == 2]
            self.assertEqual(sum(matrices), shape.layer_bytes())

    def test_a_budget_has_room_for_the_slots_and_not_for_the_model(self):
        for shape in shared.MODELS.values():
            whole = shape.layers * shape.layer_bytes() + shape.table_bytes()
            for lanes, ahead, slots in ((1, 1, 2), (4, 1, 3), (1, 0, 1), (4, 0, 2)):
                budget = shared.weights_budget(shape, lanes, ahead)
                self.assertLess(budget, whole)
                self.assertGreater(budget, slots * shape.layer_bytes() + shape.last_slice_bytes() + shape.table_bytes())
                # The first slice, which is the smallest, has no room beside.
                rest = budget - slots * shape.layer_bytes() - shape.last_slice_bytes() - shape.table_bytes()
                self.assertLess(rest, shape.layer_bytes() - shape.last_slice_bytes())


class Serving:
    """Four rows whose step takes a tenth of a second, by a clock of its own. A step recomputes 400 tokens, and a kilobyte comes."""

    ROWS = 4

    def __init__(self):
        self.steps = 0

    def step_end(self):
        self.steps += 1
        return 0.1 * self.steps, self.ROWS * self.steps

    def metrics(self, _):
        bus = 'lamina_bus_bytes_total{node="c0",role="compute",direction="to",kind="%s"}'
        return {'lamina_part_seconds_total{node="c0",role="compute",part="dense"}': 0.02 * self.steps,
                'lamina_part_seconds_total{node="c0",role="compute",part="wait_attention"}': 0.08 * self.steps,
                'lamina_recomputed_tokens_total{node="c0",role="compute"}': 400.0 * self.steps,
                bus % "kv": 1000.0 * self.steps, bus % "weights": 500.0 * self.steps,
                bus.replace('"to"', '"from"') % "kv": 10.0 * self.steps, "lamina_units_total": 1.0}

    def end_load(self):
        self.ended = True


class GenerationTest(unittest.TestCase):
    def test_counters_are_told_from_a_page(self):
        serving = Serving()
        serving.steps = 2
        parts, sent, recomputed = shared.counters(serving.metrics("c0"))
        self.assertEqual(parts, {"dense": 0.04, "wait_attention": 0.16})
        self.assertEqual(sent, {("to", "kv"): 2000, ("to", "weights"): 1000, ("from", "kv"): 20})
        self.assertEqual(recomputed, 800)

    def test_seconds_are_those_of_so_many_tokens_of_each_row(self):
        with mock.patch.object(shared, "all_decoding", lambda *_: 1.5), \
                mock.patch.object(shared.time, "monotonic", side_effect=[0.0, 2.0]):
            found = shared.generate(Serving(), Serving.ROWS, 100, [8, 4])
        self.assertEqual(sorted(found.seconds), [4, 8])
        self.assertAlmostEqual(found.seconds[4], 0.4)
        self.assertAlmostEqual(found.seconds[8], 0.8)
        self.assertAlmostEqual(found.step(), 0.1)
        self.assertEqual((found.prompt_seconds, found.steps, found.recomputed), (1.5, 8, 400))
        self.assertEqual(found.sent["to", "kv"], 1000)
        self.assertAlmostEqual(found.parts["dense"], 0.02 * 8 / 2)
        self.assertAlmostEqual(found.busy(), 0.08)

    def test_steps_that_nobody_saw_are_shared_out_and_bursts_of_lanes_are_not(self):
        for ends, expected in (([(1.0, 10), (2.0, 22)], (1.0, 22)), ([(1.0, 10), (2.0, 13)], (2.0, 13))):
            running = mock.Mock(step_end=iter(ends).__next__)
            self.assertEqual(shared.until_each_has(running, 2, 0.0, 2, 5), expected)


def generation(rows, seconds, marks, **keys):
    """One whose step takes so many seconds."""
    fields = {"prompt_seconds": 1.0, "span_seconds": seconds, "steps": 1.0, "parts": {"dense": 0.25, "wait_plan": 0.75}, "recomputed": 100.0 * rows,
              "sent": {(way, kind): 1e6 for way in ("to", "from") for kind in ("weights", "kv", "activations")}, **keys}
    return shared.Generation({mark: mark * seconds for mark in marks}, **fields)


class Fake(shared.Bench):
    """Clusters are the words that they are made by."""

    def __init__(self, folder):
        super().__init__(folder, folder)
        self.points, self.c = None, 1.0

    def bandwidth(self, c):
        return 1e8 * c

    def model(self, name):
        return name

    def resident(self, *asked, **_):
        return contextlib.nullcontext(asked)

    streamed = streamed_whole = hybrid = resident

    def from_tokens(self, _, *asked):
        return contextlib.nullcontext(("tokens", *asked))


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.bench = Fake(folder.name)
        self.folder = pathlib.Path(folder.name)

    def set(self, module, **values):
        for name, value in values.items():
            patch = mock.patch.object(module, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def with_steps(self, module, seconds):
        """Generations of `module` whose steps take seconds(what the cluster was made by, rows)."""
        self.set(module, generate=lambda asked, rows, _, marks: generation(rows, seconds(asked, rows), marks))
        self.set(shared, learn_times=lambda *_: None)

    def test_a_load_runs_until_the_split_goes_by_measured_times(self):
        running = mock.Mock()
        running.status.side_effect = [{"fetch_choice": "nothing recomputed: links or recomputation are not measured yet"}, {"fetch_choice": "80% of tokens recomputed"}]
        with mock.patch.object(shared, "all_decoding") as decoding, mock.patch.object(shared.time, "sleep"):
            shared.learn_times(running, 8, 128)
        decoding.assert_called_once_with(running, 8, 128)
        self.assertEqual(running.status.call_count, 2)
        running.end_load.assert_called_once_with()

    def test_table_2_is_lost_where_one_batch_is_slower(self):
        for slower, word in ((1.0, "reproduced (worst 1.000"), (1.2, "not reproduced (worst 0.833")):
            # Without W_k and W_v first and without a layer ahead.
            self.with_steps(kvpr, lambda asked, rows, slow=slower: slow if asked[1] == "auto" and asked[4:] == (False, 0) and rows == 8 else 1.0)
            found, text = printed(kvpr.table2, self.bench)
            self.assertIn(f"all matrices first, room for one layer, within 3%: {word}", text)
            for way in ("all matrices first, one layer ahead", "W_k and W_v first, one layer ahead", "W_k and W_v first, room for one layer"):
                self.assertIn(f"{way}, within 3%: reproduced (worst 1.000", text)
            self.assertIn("| paper: full transfer | 1.761 | 3.488 |", text)
            self.assertIn("nothing is left to hide, within 3%: reproduced (1.000", text)
            self.assertEqual(len(found), 36)
        self.assertIn("| room for one layer: all matrices first, over full transfer | 1.000 | 1.000 | 1.000 | 0.833 |", text)
        self.assertIn("W_k and W_v first over all matrices first, room for one layer: 1.031 in the mean (paper: 1.016): reproduced", text)
        self.assertIn("</svg>", (self.folder / "kvpr_table2.svg").read_text())

    def test_figure_7_stands_next_to_tables_3_and_4(self):
        self.with_steps(kvpr, lambda asked, rows: 0.6 if asked[1] == "auto" else 1.0)
        self.set(kvpr, LATENCY_ANSWERS_SHORTER=4)
        found, text = printed(kvpr.figure7, self.bench)
        self.assertEqual(len(found), 12)
        self.assertIn("| OPT-6.7B | 128, 32 | 32.00 | 19.20 | 40.0% | 71.3 | 45.8 | 35.8% |", text)
        self.assertIn("at best at least 35.8% shorter: reproduced", text.lower())

    def test_figure_6_has_bounds_and_the_papers_best(self):
        self.with_steps(kvpr, lambda asked, rows: 0.7 if asked[1] == "auto" else 1.0)
        self.set(kvpr, ANSWERS_SHORTER=8)
        found, text = printed(kvpr.figure6, self.bench)
        self.assertEqual(len(found["lengths"]), 18)
        self.assertIn("OPT-6.7B: at best +42.9% with the longer answers (paper +15.1%): reproduced; above its bound", text)
        self.assertIn("OPT-13B: at best +42.9% with the longer answers (paper +46.2%): not reproduced; above", text)
        # K and V have the bytes of the weights, c = 1/2, and all lanes' are made again: 2 / (1 + 1 / 2) - 1.
        self.assertIn("| OPT-6.7B | 64 + 4 | 1.0 | 16.0 | 22.9 | +42.9% | +33% | +15.1% |", text)

    def test_figure_9_has_no_figure_of_what_recomputes_nothing(self):
        self.with_steps(kvpr, lambda asked, rows: 0.5 if asked[1] == "int8" else 1.0)
        _, text = printed(kvpr.figure9, self.bench)
        self.assertIn("| KVPR, INT8 | as all K and V | as all K and V |", text)
        self.assertIn("| all K and V, INT8 | 32.0 |", text)
        self.assertIn("Compression raises throughput: reproduced", text)

    def test_parts_of_a_step_are_bytes_over_the_bandwidth_and_what_was_computed(self):
        found = generation(4, 2.0, [1], span_seconds=8.0, steps=4.0)
        parts = kvpr.breakdown(found, 1e6)
        self.assertEqual([parts[key] for key in ("load-weight", "load-cache", "load-activation", "store-cache")], [1.0] * 4)
        self.assertAlmostEqual(parts["compute"], 0.5)  # A quarter of two seconds.

    def test_hybrid_figures_come_from_one_set_of_runs(self):
        made = []

        def seconds(asked, rows):
            made.append(asked)
            packed = {50: 0.85, "auto": 0.4}
            return (packed if asked[3] else {0: 1.0, 100: 1.2, 50: 0.9, "auto": 0.5})[asked[1]]

        self.with_steps(hybridserve, seconds)
        settled = []
        moves = iter(range(1000))
        self.set(hybridserve, ANSWER=16, lane_moves=lambda _: next(moves), settle=lambda _, length: settled.append(length) or "62% of tokens held as activations: so many")
        found, text = printed(lambda: [hybridserve.PARTS[name](self.bench) for name in ("figure 12", "figure 13", "figure 14", "figure 15")])
        self.assertEqual(len(made), len(hybridserve.COMPARED) * (6 * len(hybridserve.LENGTHS) + 2 * (len(hybridserve.BATCHES) - 1)))
        self.assertEqual(settled, 2 * len(hybridserve.COMPARED) * list(hybridserve.LENGTHS))
        # Sixteen tokens of sixteen rows in 1 + 16 x 0.5 seconds, over 1 + 16 and over 1 + 16 x 1.2.
        self.assertIn("| OPT-6.7B, 32 | 15.1 | 12.7 | 16.6 | 28.4 | 62% | 1.89 | 2.24 |", text)
        self.assertIn("Over K and V alone 1.89 times in the mean, 1.89 to 1.89 (paper 2.19): not reproduced.", text)
        self.assertIn("| OPT-30B | 1 | 1.31 | 1.33 (mean) | 1.38 | 2.24 | 2.73 | 1.6 |", text)
        self.assertIn("| OPT-30B, 480 | 1, 50% | 1, 50% | 1, 62% | 1, 62% |", text)
        # 1 + 16 x 0.9 over 1 + 16 x 0.85, and 1 + 16 x 0.5 over 1 + 16 x 0.4.
        self.assertIn("Packing is 1.05 to 1.22 times as fast as requests where they join: never slower, within 3%: reproduced; adds to the chosen share: reproduced.", text)
        json.dumps(found)

    def test_a_step_with_tokens_is_measured_and_composed_of_what_was_measured(self):
        # Of a second 0.03 s are the link's, 0.25 s the compute node's, and the rest nobody's; prompts take a second for half of the tokens.
        self.with_steps(hybridserve, lambda asked, rows: ({0: 1.0, 12: 0.95, 25: 0.9, 50: 0.8} if asked[0] != "tokens" else {13: 1.1, 25: 1.4, 50: 1.9})[asked[1]])
        self.set(hybridserve, Cluster=lambda *_, **__: contextlib.nullcontext("local"), prompt_seconds=lambda running, rows, context: context / 128)
        with contextlib.redirect_stderr(io.StringIO()) as progress:
            found, text = printed(hybridserve.figure4, self.bench)
        self.assertIn("| step with tokens, over that without: measured | 1.10 | 1.40 | 1.90 |", text)
        self.assertIn("| step with tokens, over that without: measured prefill + measured fetch (composed) | 1.25 | 1.50 | 2.00 |", text)
        self.assertIn("| step with as many held as activations, over that without: measured | 0.95 | 0.90 | 0.80 |", text)
        self.assertIn("1.90 times at 50% (paper: 1.45 at 50%): reproduced; as much longer as in the paper: reproduced.", text)
        self.assertIn("at every share, 1.16 to 2.37 times: reproduced.", text)
        self.assertIn("[3/3] 50% held as activations", progress.getvalue())
        self.assertAlmostEqual(found["tokens_composed_s"][0.5], 2.0)
        self.assertAlmostEqual(found["tokens_s"][0.5], 1.9)
        self.assertIn("tokens (composed)", (self.folder / "hybridserve_figure4_step.svg").read_text())
        # Where the link is the busier side, K and V of the tokens that are recomputed are saved.
        busy = generation(4, 0.1, [1])
        self.assertAlmostEqual(hybridserve.composed_step(busy, 3e7, 0.5, 0.0), 0.1 - 0.5e6 / 3e7)

    def test_layers_are_all_but_waits_and_the_head(self):
        self.assertAlmostEqual(hybridserve.layer_seconds({"dense": 1, "attend": 2, "head": 4, "lay_out": 8, "wait_plan": 16}), 3)
        self.assertEqual((hybridserve.share_of("62% of tokens"), hybridserve.share_of("no token held")), (62, 0))

    def test_ablation_has_no_figure_of_what_is_not_built(self):
        rates = {alisa.STATIC: 10}
        for ratio, found in ((80, (12, 14, 15, 16)), (50, (20, 24, 19, 25)), (20, (40, 60, 70, 65))):
            for way, rate in zip(("all on the store", "recent ones on the device", "all on the store, INT8", "recent ones on the device, INT8"), found):
                rates[f"{ratio}% of the tokens, {way}"] = rate
        self.bench.rate = lambda way, _, rows: {count: rates[way] for count in rows}
        self.bench.dense = self.bench.local = None
        self.bench.sparse_in = mock.Mock()
        asked = []
        running = mock.Mock(status=lambda: {"fetch_choice": "62% of tokens; of each of 16 rows 80 stay, none is recomputed (p2 = n)"})
        self.bench.sparse = lambda ratio, _, resident: asked.append((ratio, resident)) or contextlib.nullcontext(running)
        with mock.patch.object(alisa, "generate", lambda _, rows, context, answers: mock.Mock(step=lambda: context / 1e3)), \
                contextlib.redirect_stderr(io.StringIO()) as progress:
            found, text = printed(alisa.figure12, self.bench)
        self.assertIn("| 80% | 1 | 4.00 | 6.00 | 7.00 | 6.50 |", text)
        self.assertIn("Gains grow with sparsity: reproduced; scheduling adds at each: reproduced; compression does: not reproduced; "
                      "compression adds to the scheduling: reproduced, and the scheduling to compression: not reproduced.", text)
        self.assertIn("where some tokens are on the device, 5 MiB of them", text)
        self.assertIn("[12/12] ablation, 20% of the tokens, recent ones on the device, INT8\n", progress.getvalue())
        self.assertIn("recent ones on the device, INT8", (self.folder / "alisa_figure12.svg").read_text())
        self.assertEqual(len(found["ablation"]), 12)
        # Sixteen rows have room for 80 tokens each; phases are told apart by it.
        self.assertEqual(asked, [(0.2, 0), (0.2, 1280)])
        self.assertIn("| phase | I | I | II | II | II | II |", text)
        self.assertEqual(found["phases"]["all on the store"][512], 512)
        self.assertIn("recomputation (1.2 to 1.3 times, Figure 12(b)): not reproduced: of each of 16 rows 80 stay, none is recomputed (p2 = n)", text)

    def test_gains_are_over_the_faster_static_split_and_of_whole_requests_too(self):
        rates = {alisa.STORE: 100, alisa.STATIC: 200, alisa.HEADS: 250, alisa.KEPT_STORE: 300, alisa.KEPT_RECENT: 500, alisa.KEPT_INT8: 400, alisa.KEPT_BOTH: 800, alisa.LOCAL: 1000}
        whole = {alisa.STATIC: {4: 100, 16: 50}, alisa.HEADS: {4: 80, 16: 60}, alisa.KEPT_RECENT: {4: 130, 16: 240}, alisa.KEPT_BOTH: {4: 150, 16: 200}}
        measured = []

        def rate(way, make, rows):
            measured.append((way, rows))
            return {count: rates[way] for count in rows}

        def whole_requests(make, rows):
            return {count: whole[make()][count] for count in rows}

        self.bench.rate, self.bench.rooms = rate, {(alisa.KEPT_RECENT, 4): (1280, 0), (alisa.KEPT_BOTH, 4): (1920, 4), (alisa.KEPT_STORE, 4): (0, 0)}
        # Clusters of whole requests are the names of their ways.
        ways = {way: lambda *_, way=way: way for way in rates}
        with mock.patch.multiple(alisa, whole_requests=whole_requests, ways=lambda _: ways), contextlib.redirect_stderr(io.StringIO()) as progress:
            found, text = printed(alisa.figure9, self.bench)
        self.assertIn("| 20% of the tokens, recent ones on the device, over the faster static split | 2.00 |", text)
        self.assertIn("| 20% of the tokens, all on the store, INT8, over the faster static split | 1.60 |", text)
        self.assertIn("| 20% of the tokens, recent ones on the device, INT8, over the faster static split | 3.20 |", text)
        for words in ("recent ones on the device: at least 1.4 times the faster static split at batch 4: reproduced (2.00); 3 times at the best batch: not reproduced (2.00).",
                      "recent ones on the device: at least 1.4 times the faster static split at batch 4: not reproduced (1.30); 3 times at the best batch: reproduced (4.00).",
                      "recent ones on the device, INT8: at least 1.4 times the faster static split at batch 4: reproduced (3.20); 3 times at the best batch: reproduced (3.20).",
                      "INT8, over 20% of the tokens, recent ones on the device: 1.60 to 1.60 times; adds at every batch: reproduced.",
                      "INT8, over 20% of the tokens, all on the store, INT8: 2.00 to 2.00 times; adds at every batch: reproduced.",
                      "INT8, over 20% of the tokens, recent ones on the device: 0.83 to 1.15 times; adds at every batch: not reproduced."):
            self.assertIn(words, text)
        self.assertEqual(found["requests"][alisa.HEADS], {4: 80, 16: 60})
        # A cluster for each number of rows, where these decide on what stays.
        self.assertEqual([rows for way, rows in measured if way == alisa.KEPT_BOTH], [(4,), (8,), (16,), (32,), (64,)])
        self.assertEqual([rows for way, rows in measured if way == alisa.KEPT_INT8], [alisa.BATCHES])
        self.assertIn("has room in 5 MiB", text)
        self.assertIn("| 20% of the tokens, recent ones on the device | 1,280 | 0 |", text)
        self.assertIn("| 20% of the tokens, recent ones on the device, INT8 | 1,920 + 4 open blocks | 0 |", text)
        self.assertEqual(found["room"], [{"way": alisa.KEPT_RECENT, "rows": 4, "tokens": 1280, "open_blocks": 0}, {"way": alisa.KEPT_BOTH, "rows": 4, "tokens": 1920, "open_blocks": 4}])
        self.assertIn(f"[8/8] steps, {alisa.LOCAL}\n", progress.getvalue())
        self.assertIn(f"[4/4] whole requests, {alisa.KEPT_BOTH}\n", progress.getvalue())

    def test_whole_requests_have_the_papers_lengths_and_none_may_fail(self):
        def load(*words, **_):
            asked.append([words[0][i + 1] for i, word in enumerate(words[0]) if word in ("--requests", "--input-tokens", "--output-tokens")])
            return mock.Mock(stdout=json.dumps({"failed": failed, "errors": {"gone": failed}, "output_tokens_per_second": 7.0}))

        asked, failed = [], 0
        running = mock.Mock(address="here")
        with mock.patch.object(shared.subprocess, "run", load):
            self.assertEqual(alisa.whole_requests(lambda: contextlib.nullcontext(running), (4, 16)), {4: 7, 16: 7})
            failed = 2
            with self.assertRaisesRegex(RuntimeError, "2 of 4 requests of 128 tokens failed: {'gone': 2}"):
                shared.requests(running, 4, 128, 512)
        self.assertEqual(asked, [["1", "128", "8"], ["4", "128", "512"], ["16", "128", "512"], ["4", "128", "512"]])

    def test_both_static_splits_keep_as_many_bytes(self):
        bench = alisa.Bench(self.folder, self.folder)
        bench.model = lambda name: name
        with mock.patch.object(alisa, "Cluster") as made:
            found = {}
            for way in (alisa.STATIC, alisa.HEADS):
                alisa.ways(bench)[way]()
                found[way] = made.call_args.kwargs["fetch"]
        self.assertEqual({policy for policy, _ in found.values()}, {"fetch_sparse", "fetch_heads"})
        # Of 1,280 tokens, 4 layers of width 256.
        self.assertEqual({keys["resident"] for _, keys in found.values()}, {f"{1280 * 4 * 2 * 256 * 2}B"})

    def test_tokens_stay_in_the_same_bytes_with_int8_and_of_as_many_rows_as_run(self):
        bench = alisa.Bench(self.folder, self.folder)
        bench.model = lambda name: name
        found = {}
        with mock.patch.object(alisa, "Cluster") as made:
            for place in alisa.PLACES:
                bench.sparse_in(place, 0.5, "shm", 8)
                found[place] = made.call_args.kwargs
            alisa.ways(bench)[alisa.KEPT_BOTH](4)
            self.assertEqual(made.call_args.kwargs, found[alisa.PLACES[3]] | {"running_max": 4, "transport": shared.link(alisa.BANDWIDTH),
                                                                              "fetch": ("fetch_sparse", found[alisa.PLACES[3]]["fetch"][1] | {"caching_ratio": 0.2})})
        self.assertEqual([(keys["kv_form"], keys["fetch"][1].get("resident"), keys.get("running_max")) for keys in found.values()],
                         [("bf16", None, None), ("bf16", "5242880B", None), ("int8", None, None), ("int8", "5242880B", 8)])

    def test_room_is_what_the_compute_node_says_of_its_last_epoch(self):
        log = ("epoch 1 scratch 8.0 MiB sums of weights up to 1.0 GiB resident 5.0 MiB (1280 tokens) windows for K and V 256.0 MiB\n"
               "epoch 2 scratch 8.0 MiB sums of weights up to 1.0 GiB resident 5.0 MiB (1152 tokens of closed blocks, and 10 open blocks) windows for K and V 256.0 MiB\n")
        self.assertEqual(alisa.room_in(log), (1152, 10))
        self.assertEqual(alisa.room_in(log.splitlines()[0]), (1280, 0))
        self.assertEqual(alisa.room_in("epoch 1 scratch 8.0 MiB windows for K and V 256.0 MiB"), (0, 0))
        bench = alisa.Bench(self.folder, self.folder)
        with mock.patch.object(alisa, "generate", lambda *_: mock.Mock(step=lambda: 0.5)):
            self.assertEqual(bench.rate("some", lambda: contextlib.nullcontext(mock.Mock(log=lambda _: log)), (4, 8)), {4: 8, 8: 16})
            self.assertEqual(bench.rate("some", None, (8,)), {8: 16})  # It is not measured again.
        self.assertEqual(bench.rooms, {("some", 4): (1152, 10), ("some", 8): (1152, 10)})

    def test_a_layers_attention_is_that_at_the_context_asked_for(self):
        def serving(seconds):
            """Attention takes half of a step, whose context has become twice what was asked for."""
            one = mock.Mock(tokens_per_second=64 / seconds, context_tokens=2 * 64 * 128, shares={("c0", "attend"): 0.5, ("m0", "reply"): 0.25, ("c0", "head"): 0.2})
            return contextlib.nullcontext(mock.Mock(decode_stretches=lambda *_: [one] * 3))

        self.bench.dense = lambda _: serving(0.08)
        self.bench.sparse = lambda ratio, _: serving(0.16 * ratio)
        found, text = printed(alisa.figure11, self.bench)
        self.assertEqual([round(value, 9) for value in found["dense"]], [5, 0, 2.5, 0])  # Of 4 layers.
        self.assertIn("all tokens kept 2.00 times dense: reproduced; higher sparsity takes less: reproduced.", text)

    def test_the_sparsity_of_weights_is_the_references(self):
        runs = [{"pattern": "dense", "ratio": 1.0, "zeros": 0.7}, {"pattern": "window_sums", "ratio": 0.5, "zeros": 0.75}, {"pattern": "window_sums", "ratio": 0.2, "zeros": 0.72}]
        golden = self.folder / "golden.json"
        golden.write_text(json.dumps({"below": 0.01, "rows": 2, "prompt": 9, "runs": runs}))
        for path, words in ((golden, ("80 to 95% sparse: not reproduced", "sparser weights: not reproduced", "| 70.0% | 75.0% | 72.0% |")), (alisa.SPARSITY, ("80 to 95% sparse: reproduced",))):
            with mock.patch.object(alisa, "SPARSITY", path):
                _, text = printed(alisa.figure10, self.bench)
            for word in words:
                self.assertIn(word, text)

    def test_a_part_that_fails_leaves_the_others_their_turns(self):
        def broken(_):
            raise RuntimeError("the cluster did not start")

        found, text = printed(shared.run_parts, {"figure 1": broken, "figure 2": lambda _: 7}, ["figure 1", "figure 2"], shared.Bench, self.folder)
        self.assertEqual(found, {"figure 1": {"problem": "the cluster did not start"}, "figure 2": 7})
        self.assertIn("figure 1 gave up: the cluster did not start", text)
        self.assertIn("[2/2] figure 2", text)


    def test_all_figures_end_with_how_to_have_the_claims(self):
        arguments = argparse.Namespace(only="alisa", claims=False, figure=None, images=self.folder)
        parts = {f"figure {i}": lambda _, i=i: i for i in (1, 2)}
        for asked, found in ((None, {"figure 1": 1, "figure 2": 2}), (["2"], {"figure 2": 2})):
            arguments.figure = asked
            result, text = printed(shared.run_asked, arguments, parts, shared.Bench, None)
            self.assertEqual(result, {"parts": found})
            self.assertEqual("bench/run.sh paper -- --only alisa --claims" in text, asked is None)
        arguments.claims = True
        self.assertEqual(shared.run_asked(arguments, parts, None, lambda _: "claims"), "claims")

    def test_progress_of_the_claims_is_no_row_of_their_tables(self):
        arguments = argparse.Namespace(forms=["bf16"], ratios=[0.5], rows=4, context=1024, link="shm")
        with mock.patch.object(paper_alisa, "step_seconds", lambda fetch, *_: 0.2 * fetch[1].get("caching_ratio", 1.0)), contextlib.redirect_stderr(io.StringIO()) as progress:
            _, text = printed(paper_alisa.speed, arguments)
        self.assertIn("| bf16 | 100% | 200 | 1.00 |\n| bf16 | 50% | 100 | 0.50 |\n", text)
        self.assertEqual(progress.getvalue(), "[1/2] steps, bf16, 100% of the tokens\n[2/2] steps, bf16, 50% of the tokens\n")


class CommandTest(unittest.TestCase):
    def test_each_paper_names_its_figures(self):
        for name, words in (("kvpr", ("{6,7,9,10,12,14}", "--table {2}", "--claims")), ("hybridserve", ("{4,6,12,13,14,15}",)), ("alisa", ("{9,10,11,12}",)), ("headinfer", ("{3,14}", "--long"))):
            done = subprocess.run([REPO / "bench/run.sh", "paper", "--", "--only", name, "--help"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            for word in (*words, "minutes on two quiet cores for all: "):
                self.assertIn(word, " ".join(done.stdout.split()))


if __name__ == "__main__":
    unittest.main()

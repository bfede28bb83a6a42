#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh paper makes of plans: which ones are simulated, and the page, which says whose each figure is. No planner runs."""

import pathlib
import sys
import tempfile
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import paper  # noqa: E402


class PlansTest(unittest.TestCase):
    def test_two_pools_behind_better_plans_of_one_are_simulated(self):
        def plans(count, simulate):
            """Of two pools are the fourth that runs and the second that does not."""
            def entry(place, kind):
                two = (kind, place) in (("runs", 3), ("does not", 1))
                return {"machines": f"{kind} {place}", "policy": "attend_remote" if two else "local", "price_per_hour": {"value": 1 + place},
                        "goodput_bound": {"value": 1}, "simulated": {"goodput": 1} if place < simulate else None}

            return {"runnable": [entry(i, "runs") for i in range(count)], "not_runnable": [entry(i, "does not") for i in range(min(count, 3))],
                    "one_pool": [entry(0, "runs")]}

        asked = []
        with mock.patch.object(paper, "ask", lambda *words: asked.append(words[-2:]) or plans(*words[-2:])):
            one, two, _ = paper.simulated("m", 8, 4)
        self.assertEqual(asked, [(paper.PLANS, 0), (4, 4)])
        self.assertEqual((one["machines"], two["machines"]), ("runs 0", "does not 1"))
        self.assertEqual(paper.reach({"runnable": [], "not_runnable": []}), 2)


def plan_of(machines, price, goodput, simulated=None, old=True, network=False):
    """As `lamina plan --json` has one."""
    basis = {"dense layers": "assumed", "memory": "datasheet", "price": "assumed", **({"network": "measured"} if network else {})}
    return {"machines": machines, "policy": "attend_remote" if network else "local", "price_per_hour": {"value": price}, "goodput_bound": {"value": goodput},
            "price_per_million_output": {"value": 1}, "basis": basis, "prices": [{"machine": machines, "date": "2026-05-01", "old": old}],
            "simulated": {"goodput": simulated, "price_per_million_output": 2} if simulated is not None else None}


class PageTest(unittest.TestCase):
    ONE, TWO = plan_of("a100-1", 2, 1, 0.5), plan_of("h100-1", 1, 1, 0.25, old=False, network=True)
    LINKS = [{"model": "M", "context": context, "one_pool": [{"price": 1000, "tokens_per_second": 10}, {"price": 2000, "tokens_per_second": 30}],
              "two_pools": [{"link": "100G-rdma", "tokens_per_second": tokens}], "two_pools_price": 2000} for context, tokens in ((512, 40), (1024, 200))]
    MODEL = {"links": LINKS, "figure1": [{"model": "M", "card": "C", "gain": gain, "memory_over_compute_cost": 1} for gain in (1, 1.5)],
             "figure13": [{"gain": 2}, {"gain": 3}]}

    def test_one_pool_at_the_price_of_two(self):
        out = []
        paper.equal_cost(out, {"2 A100": (100, 10), "4 A100": (200, 40), "2 A100 + 2 that attend": (150, 45)})
        text = "\n".join(out)
        self.assertIn("| 2 A100 + 2 that attend | 150 | 45 | 30 | +50% | 25 | +80% |", text)
        self.assertIn("for a dollar (4 A100)", text)
        self.assertIn("By replicas two pools give 50 to 50% more at equal cost.", text)
        self.assertIn("no verdict", text)
        self.assertIsNone(paper.on_the_line([(100, 10), (200, 40)], 201))
        self.assertEqual(paper.on_the_line([(100, 10), (200, 40)], 200), 40)

    def test_hosts_are_on_top_of_cards(self):
        prices = {"host": 1000, "nic": 100, "switch_port": 50}
        # Of one pool the set-up with two cards is the best: 30 / 4000 with hosts at twice the price.
        self.assertAlmostEqual(paper.gain_with_hosts(self.LINKS[0], 40, 2, prices), 40 / (2000 + 2 * 2150) / (30 / 4000))
        self.assertEqual(paper.where_above_one([(512, 0.9), (1024, 1.1)]), "at 1024")
        self.assertEqual((paper.where_above_one([(512, 2)]), paper.where_above_one([(512, 1)])), ("everywhere", "nowhere"))
        with mock.patch.object(paper, "host_prices", lambda: prices):
            out = []
            paper.hosts(out, self.MODEL)
        self.assertIn("| M | 100G-rdma | 1.01 to 5.05: everywhere | 0.93 to 4.65: at 1024 | 0.85 to 4.23: at 1024 |", out)
        self.assertEqual(set(paper.host_prices()), set(prices))
        self.assertGreater(paper.host_prices()["host"], 0)

    def test_each_row_says_whose_its_figures_are(self):
        with mock.patch.object(paper, "plan", lambda *_: (self.TWO, self.ONE, paper.price_by_formula)):
            out = []
            found = paper.today(out)
        self.assertEqual((len(found), found[0][3]), (len(paper.TODAY), 2))
        self.assertIn("| 2.00 | One pool: assumed: dense layers, price; datasheet: memory. Two pools: assumed: dense layers, price; datasheet: memory; measured: network | "
                      "One pool: a100-1 2026-05-01 (old). Two pools: h100-1 2026-05-01 |", out[6])
        self.assertEqual(paper.provenance(self.ONE, None), ("assumed: dense layers, price; datasheet: memory", "a100-1 2026-05-01 (old)"))

    def test_the_first_part_is_computed(self):
        found = [("A", self.ONE, self.TWO, 2.0), ("B", self.ONE, self.TWO, 0.5), ("C", None, self.TWO, None), ("D", None, None, None)]
        with mock.patch.object(paper, "host_prices", lambda: {"host": 1000, "nic": 100, "switch_port": 50}):
            text = "\n".join(paper.in_short(self.MODEL, found, found[:2]))
        self.assertIn("by formula** for A (2.00). **One pool is, or is as good**, for B (0.50).", text)
        self.assertIn("Two pools alone were found for C. Neither was found for D.", text)
        self.assertIn("one pool keeps 50 to 50% of its bound by formula and two pools 25 to 25%", text)
        self.assertIn("Figure 1 with C: does not hold; Figure 13: holds", text)
        self.assertIn("M over 100G-rdma with hosts at 2 times (two pools win at 1024)", text)
        self.assertIn("prices of 9 of the 9 plans in today's tables are assumed; older than 180 days are those of a100-1 (of a100-1, h100-1)", text)

    def test_the_page_is_written_anew_around_what_is_written_by_hand(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "page.md"
            path.write_text("# P\n\n## In short\n\nold\n\n## What was put in\n\nby hand\n\n## Table 1: old\n\n## Where it holds\n\nby hand\n\n## Today's prices\n\nold\n\nA ratio above 1 says so.\n")
            for _ in range(2):
                paper.write_page(path, ["## In short", "", "new", ""], ["## Table 1: new", ""], ["## Today's prices", "", "new", ""])
                self.assertEqual(path.read_text(), "# P\n\n## In short\n\nnew\n\n## What was put in\n\nby hand\n\n## Table 1: new\n\n## Where it holds\n\nby hand\n\n"
                                 "## Today's prices\n\nnew\n\nA ratio above 1 says so.\n")
        text = (REPO / "docs/experiments/economics.md").read_text()
        for heading in ("## In short", "## What was put in", "## Table 1", "## Where it holds", "## Today's prices", paper.END_OF_PRICES):
            self.assertEqual(text.count(heading), 1, heading)


if __name__ == "__main__":
    unittest.main()

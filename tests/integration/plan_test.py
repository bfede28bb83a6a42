#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""lamina plan and lamina simulate: figures with their provenance, equal runs for equal seeds, and what cannot be, by name."""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BIN, MODEL, REPO, cluster_file, require_model, run

sys.path.insert(0, str(REPO / "bench"))
import plan_search  # noqa: E402

CATALOGUE = REPO / "cost/catalogues/default.yaml"
PLAN = ("plan", "--catalogue", CATALOGUE, "--model", "Llama-3-8B", "--machines", 2, "--simulate", 1, "--count", 2)
LOAD = ("--load", "rate=2,input=512,output=64", "--slo", "ttft=2s,tpot=80ms,at=p95")
# Processors of this host, as small as a test wants them.
HERE = """format: 1
currency: USD
economics:
  years: {{value: 1, by: assumed, source: none}}
  load: {{value: 1, by: assumed, source: none}}
  electricity: {{value: 0 USD/kWh, by: assumed, source: none}}
  pue: {{value: 1, by: assumed, source: none}}
  spares: 0
sources:
  none: {{what: "Made up for a test", date: "2026-11-29"}}
devices:
{devices}links:
  - {{name: here, bandwidth: {{value: 10 GB/s, by: assumed, source: none}}, latency: {{value: 20 us, by: assumed, source: none}}}}
machines:
{machines}models: []
"""
DEVICE = """  - name: {name}
    kind: cpu
    runs: {{yes: yes, why: "this host"}}
    capacity: {{value: {capacity}, by: assumed, source: none}}
    bandwidth: {{value: 20 GB/s, by: assumed, source: none}}
    flops: {{bf16: {{value: 1 TFLOPS, by: assumed, source: none}}}}
    mfu: {{value: 0.5, by: assumed, source: none}}
    mbu_dense: {{value: 0.5, by: assumed, source: none}}
    mbu_attention: {{value: 0.5, by: assumed, source: none}}
    idle: {{value: 0 W, by: assumed, source: none}}
    busy: {{value: 0 W, by: assumed, source: none}}
"""
MACHINE = """  - name: {name}
    device: {name}
    devices: 1
    link: here
    price: {{kind: on_demand, hour: {{value: {price} USD/h, by: assumed, source: none}}}}
    idle: {{value: 0 W, by: assumed, source: none}}
    busy: {{value: 0 W, by: assumed, source: none}}
"""


def small_catalogue(**kinds):
    """The text of a catalogue of name=(capacity, price)."""
    return HERE.format(devices="".join(DEVICE.format(name=name, capacity=capacity) for name, (capacity, _) in kinds.items()),
                       machines="".join(MACHINE.format(name=name, price=price) for name, (_, price) in kinds.items()))


PARTS = {"ttft_seconds", "tpot_seconds", "ttft_ms", "tpot_ms", "slo", "cost", "busy"}  # They have the provenance of what they are part of.
PROVENANCES = ("measured", "datasheet", "scaled", "assumed")


def bare_figures(node, path="", said=False):
    """Paths of numbers that no `by` or `basis` next to them is about; those of the load are the user's."""
    if isinstance(node, dict):
        said = "by" in node or "basis" in node or (said and path.rsplit(".", 1)[-1] in PARTS)
        return {bare for key, value in node.items() if key != "load" for bare in bare_figures(value, f"{path}.{key}", said)}
    if isinstance(node, list):
        return {bare for item in node for bare in bare_figures(item, path)}
    return {path} if isinstance(node, (int, float)) and not isinstance(node, bool) and not said else set()


class CommandTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="lamina-plan-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def good(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def refused(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertEqual(done.stdout, "")
        return done.stderr


class PlanTest(CommandTest):
    def test_plans_are_the_same_for_a_seed_and_every_figure_says_where_it_is_from(self):
        text = self.good(*PLAN, *LOAD, "--json")
        self.assertEqual(text, self.good(*PLAN, *LOAD, "--json"))
        plans = json.loads(text)
        best = plans["runnable"][0]
        self.assertTrue(best["simulated"]["carries_rate"])
        self.assertLessEqual(best["simulated"]["tpot_seconds"]["at"], 0.08)
        for plan in plans["runnable"] + plans["not_runnable"] + plans["one_pool"]:
            for key, value in plan.items():
                if isinstance(value, dict) and "value" in value:
                    self.assertIn(value["by"], PROVENANCES, key)
        self.assertEqual({plan["why_not_runnable"] for plan in plans["runnable"]}, {""})
        self.assertNotIn("", {plan["why_not_runnable"] for plan in plans["not_runnable"]})

    def test_no_figure_is_without_provenance(self):
        load = ("--load", "rate=2,input=512,output=64,lengths=sharegpt", "--slo", "ttft=2s,tpot=80ms,at=p95")
        plans = json.loads(self.good(*PLAN, *load, "--sensitivity", "--explain", "--json"))
        self.assertEqual(bare_figures(plans), {".slo_percentile", ".hardware", ".looked_at"})
        basis = plans["runnable"][0]["simulated"]["basis"]
        self.assertEqual((basis["coordinator"], basis["lengths"], basis["memory"]), ("assumed",) * 3)
        for one in plans["sensitivity"]:
            self.assertIn(one["by"], (*PROVENANCES, "load"))
            self.assertIn(one["basis"], PROVENANCES)
        self.assertRegex(plans["explain"], "assumed: .*memory")

    def test_a_catalogue_may_say_only_what_differs_from_the_default(self):
        mine = self.write("mine.yaml", "base: default\nmachines:\n  - {name: epyc-9654, price: {kind: on_demand, hour: "
                          "{value: 0.01 USD/h, by: assumed, source: server_guess}}}\n")
        plan = ("plan", "--catalogue", mine, *PLAN[3:], "--load", "input=512,output=64", "--budget", "0.02/h", "--json")
        self.assertEqual(json.loads(self.good(*plan))["runnable"][0]["machines"].split(" ")[2], "epyc-9654")

    def test_writes_a_cluster_file_with_prices_that_lamina_config_takes(self):
        path = self.folder / "cluster.yaml"
        self.good(*PLAN, *LOAD, "--cluster-file", path)
        self.assertIn("price: ", path.read_text())
        self.good("config", "--cluster", path)

    def test_mixtures_do_not_run_on_gpus(self):
        plans = json.loads(self.good("plan", "--catalogue", CATALOGUE, "--model", "gpt-oss-20b", "--machines", 1, "--simulate", 0, "--load",
                                     "input=512,output=64", "--json"))
        reasons = [plan["why_not_runnable"] for plan in plans["not_runnable"]]
        self.assertTrue(any("experts run on processors" in reason for reason in reasons), reasons)

    def test_what_cannot_be_is_named(self):
        catalogue = CATALOGUE.read_text()
        unit = self.write("unit.yaml", catalogue.replace("1935 GB/s", "1935 GB/fortnight", 1))
        self.assertIn("GB/fortnight", self.refused("plan", "--catalogue", unit, "--model", "Llama-3-8B", "--load", "input=1,output=1"))
        priceless = self.write("priceless.yaml", re.sub("\n    price: .*", "", catalogue, count=1))
        self.assertIn("price", self.refused("plan", "--catalogue", priceless, "--model", "Llama-3-8B", "--load", "input=1,output=1"))
        self.assertRegex(self.refused(*PLAN, "--load", "input=512,output=64", "--slo", "tpot=10us"), "no configuration meets the SLO; the nearest is .*TPOT limits it")
        self.assertIn("too large", self.refused(*PLAN[:4], "LLaMA-65B", *PLAN[5:], "--load", "input=512,output=64", "--budget", "0.5/h"))
        self.assertIn("hit: '2' is not a number in [0, 1]", self.refused(*PLAN, "--load", "input=512,output=64,hit=2"))
        burst = self.write("burst.jsonl", 2 * '{"arrival_s": 5, "input_tokens": 20, "output_tokens": 5}\n')
        self.assertIn("--trace: all requests arrive at 5 s", self.refused(*PLAN, "--load", "input=512,output=64", "--trace", burst))

    def test_a_hit_rate_makes_prompts_cheaper_where_prefixes_are_kept(self):
        plan = ("plan", "--catalogue", CATALOGUE, "--model", "SmolLM2-135M", "--machines", 1, "--simulate", 0, "--count", 50, "--json", "--sensitivity")
        plain = json.loads(self.good(*plan, "--load", "input=2048,output=16"))
        found = json.loads(self.good(*plan, "--load", "input=2048,output=16,hit=0.9"))
        processors = [{p["machines"]: p for p in plans["runnable"]}["1 x epyc-9654"] for plans in (plain, found)]
        self.assertEqual([p["hit"] for p in processors], [0, found["load"]["hit"]])
        self.assertGreater(processors[1]["goodput_bound"]["value"], 2 * processors[0]["goodput_bound"]["value"])
        self.assertGreater(processors[1]["price_per_million_cached"]["value"], 0)
        quantities = [[q["what"] for q in plans["sensitivity"]] for plans in (plain, found)]
        self.assertNotIn("prefix hit rate", quantities[0])
        self.assertIn("prefix hit rate", quantities[1])
        best = plain["runnable"][0]
        self.assertEqual(plain["sensitivity_of"], {"machines": best["machines"], "arrangement": best["arrangement"], "is_first_plan": True,
                                                   "by": "formulas", "span": 0.25})
        text = self.good(*[word for word in plan if word != "--json"], "--load", "input=2048,output=16")
        self.assertIn(f"the price of a request of their best plan, {best['machines']} ({best['arrangement']}), with", text)
        self.assertIn("none within 25%", text)

    def test_what_no_plan_keeps_is_said_with_the_nearest_plan_and_its_limit(self):
        catalogue = self.write("here.yaml", small_catalogue(core=("2 GB", 1)))
        plan = ("plan", "--catalogue", catalogue, "--model", self.shape(), "--machines", 1, "--json")
        path = self.folder / "cluster.yaml"
        for load, simulate, limit in (("rate=5000,input=512,output=64", 0, "by the formulas it answers at most"),
                                      ("input=512,output=64,lengths=sharegpt", 1, "TTFT limits it: p95 is")):
            slo = ("--slo", "ttft=40ms") if simulate else ()
            done = run(*plan, "--load", load, *slo, "--simulate", simulate, "--cluster-file", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            plans = json.loads(done.stdout)
            first = plans["runnable"][0]
            self.assertEqual((plans["shortfall"]["machines"], plans["shortfall"]["arrangement"]), (first["machines"], first["arrangement"]))
            self.assertIn(limit, plans["shortfall"]["why"])
            named = f"no plan does what was asked for; the nearest that runs is {first['machines']} ({first['arrangement']}): "
            self.assertIn(f"warning: {named}", done.stderr)
            self.assertIn(limit, done.stderr)
            self.assertIn(f"# NOT ENOUGH: {named}", path.read_text())
        done = run(*plan, "--load", "rate=0.01,input=64,output=16", "--cluster-file", path)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIsNone(json.loads(done.stdout)["shortfall"])
        self.assertNotIn("NOT ENOUGH", path.read_text())

    def shape(self):
        """A config.json without weights, of a small model."""
        folder = self.folder / "small"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps({
            "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
            "num_key_value_heads": 3, "vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}))
        return folder

    def test_plans_that_are_not_simulated_say_why(self):
        plans = json.loads(self.good(*PLAN, *LOAD, "--json"))
        simulated = [plan for plan in plans["runnable"] + plans["not_runnable"] if plan["simulated"]]
        others = [plan for plan in plans["runnable"] + plans["not_runnable"] if not plan["simulated"]]
        self.assertEqual({plan["why_not_simulated"] for plan in simulated}, {""})
        self.assertTrue(others)
        for plan in others:
            self.assertRegex(plan["why_not_simulated"], "not among the best 1 of its list|sends K and V to compute nodes")
        self.assertIn(f"not simulated, and so behind those that were: {others[0]['why_not_simulated']}", self.good(*PLAN, *LOAD))

    def test_twenty_kinds_of_machines_have_an_answer(self):
        catalogue = self.write("drawn.yaml", plan_search.catalogue(20))
        plans = json.loads(self.good("plan", "--catalogue", catalogue, "--model", "drawn-8B", "--load", plan_search.LOAD, "--slo", plan_search.SLO,
                                     "--machines", 64, "--budget", "8/h", "--simulate", 0, "--json"))
        self.assertGreater(plans["hardware"], 500)
        self.assertLess(plans["looked_at"], plans["hardware"])
        self.assertTrue(plans["runnable"][0]["carries_rate"])
        self.assertLessEqual(plans["runnable"][0]["price_per_hour"]["value"], 8)

    def test_one_host_without_room_for_the_plan_is_warned_of(self):
        catalogue = self.write("vast.yaml", small_catalogue(vast=("900 TB", 1)))
        path = self.folder / "cluster.yaml"
        done = run("plan", "--catalogue", catalogue, "--model", self.shape(), "--load", "input=64,output=16", "--machines", 1, "--simulate", 0,
                   "--one-host", "--cluster-file", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--one-host: K and V of the nodes take ", done.stderr)
        self.assertIn("# Give each node with device cpu `threads` or `cores`", path.read_text())


class StartedPlanTest(CommandTest):
    """deploy/cluster.sh starts what was planned for this host, and it answers."""

    def script(self, action, *more):
        return subprocess.run([str(REPO / "deploy/cluster.sh"), action, "--cluster", "plan.yaml", "--state", str(self.folder / "state"),
                               "--bin", str(BIN), *more], capture_output=True, text=True, cwd=self.folder, timeout=240)

    def answer_of_plan(self, policy, *arguments):
        """Plans for the quick start's model, named by a relative path; starts the file elsewhere, and returns what it generates."""
        model = os.path.relpath(MODEL)
        path = self.folder / "plan.yaml"
        plans = json.loads(self.good("plan", "--model", model, "--simulate", 0, "--one-host", "--cluster-file", path, "--json", *arguments))
        self.assertEqual(plans["runnable"][0]["policy"], policy)
        self.addCleanup(self.script, "down", "--grace", "10")
        up = self.script("up", "--set", "coordinator.listen=127.0.0.1:0")
        self.assertEqual(up.returncode, 0, up.stderr)
        server = re.search(r"serves at (\S+:\d+)", up.stderr)[1]
        done = run("generate", "--prompt", "The sky is", "--max-tokens", 16, "--ignore-eos", "--json", server=server)
        self.assertEqual(done.returncode, 0, done.stderr)
        down = self.script("down")
        self.assertEqual(down.returncode, 0, down.stderr)
        return json.loads(done.stdout)["token_ids"]

    def test_one_pool_and_two_pools_start_and_answer_alike(self):
        require_model(self)
        load = ("--load", "input=64,output=32")
        # Room for a few hundred tokens behind the weights: sequences may be no longer than that.
        tight = self.write("tight.yaml", small_catalogue(core=("315 MB", 1)))
        one = self.answer_of_plan("local", "--catalogue", tight, "--machines", 1, *load)
        store = self.write("pools.yaml", small_catalogue(core=("315 MB", 1), store=("140 MB", 0.01)))
        two = self.answer_of_plan("attend_remote", "--catalogue", store, "--machines", 2, *load)
        self.assertEqual(len(one), 16)
        self.assertEqual(one, two)


class SimulateTest(CommandTest):
    def simulate(self, *arguments):
        cluster = self.write("cluster.json", cluster_file(model="m", capacity="1GiB"))
        return ("simulate", "--cluster", cluster, "--catalogue", CATALOGUE, "--model", "SmolLM2-135M", "--compute", "EPYC-9654", "--link", "200G-rdma",
                *arguments)

    def test_equal_seeds_give_equal_runs(self):
        load = ("--load", "rate=20,input=300,output=40,lengths=sharegpt,prefix=64,prefixes=3", "--requests", 300, "--failures", 500000, "--json")
        text = self.good(*self.simulate(*load, "--seed", 3))
        self.assertEqual(text, self.good(*self.simulate(*load, "--seed", 3)))
        self.assertNotEqual(text, self.good(*self.simulate(*load, "--seed", 4)))
        result = json.loads(text)
        self.assertGreater(result["cached_tokens"], 0)
        self.assertGreater(result["nodes_lost"], 0)
        self.assertIsNone(result["cost"], "the cluster file has no prices")
        self.assertIn(result["basis"]["attention"], ("datasheet", "assumed"))
        self.assertEqual(result["basis"]["lengths"], "assumed")
        self.assertEqual(bare_figures(result), set())

    def test_prices_of_the_cluster_file_become_prices_of_tokens(self):
        priced = self.simulate("--load", "rate=5,input=300,output=40", "--requests", 100, "--set", "compute.0.price=2/h", "--set", "memory.0.price=1/h", "--json")
        result = json.loads(self.good(*priced))
        parts = sum(result["cost"][kind] for kind in ("input", "output", "cached"))
        self.assertAlmostEqual(parts, 3 * result["seconds"] / 3600, delta=1e-3 * parts)

    def test_a_trace_s_bad_lines_are_named_and_left_out_where_asked(self):
        good = '{"arrival_s": 0.1, "input_tokens": 20, "output_tokens": 5}\n'
        trace = self.write("trace.jsonl", good + '{"arrival_s": -1, "input_tokens": 20, "output_tokens": 5}\n' + good)
        self.assertIn("trace line 2: arrival_s must be", self.refused(*self.simulate("--trace", trace)))
        done = run(*self.simulate("--trace", trace, "--skip-bad-lines", "--warm-up", 0, "--json"))
        self.assertEqual(json.loads(done.stdout)["answered"], 2)
        self.assertIn("left out: trace line 2", done.stderr)

    def test_what_is_not_simulated_is_named(self):
        self.assertIn("no device 'H900'", self.refused(*self.simulate("--load", "rate=1,input=9,output=9", "--memory", "H900")))
        self.assertIn("no link 'rope'", self.refused(*["rope" if word == "200G-rdma" else word for word in self.simulate("--load", "rate=1,input=9,output=9")]))
        self.assertIn("differ in capacity", self.refused(*self.simulate("--load", "rate=1,input=9,output=9", "--set", "memory.0.capacity=2GiB")))
        self.assertIn("input 8190 and output 9 are more than the 8192 tokens", self.refused(*self.simulate("--load", "rate=1,input=8190,output=9")))
        self.assertIn("want a rate", self.refused(*self.simulate("--load", "input=9,output=9,lengths=azure")))


if __name__ == "__main__":
    unittest.main()

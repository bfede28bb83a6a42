#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/run.sh does before and around a measurement: programs that are missing, systems that nobody knows, suites that fail
or take too long, the class of the processor; and the exit status of programs' flags. Nothing is measured here."""

import contextlib
import io
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import all as all_suites  # noqa: E402
import choice  # noqa: E402
import cluster  # noqa: E402
import conversations  # noqa: E402
import fetch  # noqa: E402
import gateway  # noqa: E402
import int8  # noqa: E402
import places  # noqa: E402
import predict  # noqa: E402
import processor  # noqa: E402
import remote  # noqa: E402
import spill  # noqa: E402
import tables  # noqa: E402

BUILDS = """#!/usr/bin/env bash
mkdir -p build/release/bin
printf '#!/bin/sh\\necho "measured with $*"\\n' > build/release/bin/lamina-bench-dense
chmod +x build/release/bin/lamina-bench-dense
echo "built $*"
"""
BUILDS_NOTHING = "#!/usr/bin/env bash\necho 'no compiler' >&2\nexit 1\n"

# A suite that fails, one that takes long behind its first figures, one that takes long before, and one that does well.
RUNS = """#!/usr/bin/env bash
case $1 in
  dense) exit 3 ;;
  weights_int8) echo '{"rows": 2}' > "$3"; exec sleep 60 ;;
  attention) exec sleep 60 ;;
  *) echo '{"rows": 1}' > "$3" ;;
esac
"""

# A suite that leaves a folder, and a program that does not end when it is asked to.
LEAVES = """#!/usr/bin/env bash
mktemp -d > "$(dirname "$0")/folder"
bash -c 'trap "" TERM; exec sleep 60' &
echo $! > "$(dirname "$0")/child.new"
sleep 0.1  # Until the signal is ignored.
mv "$(dirname "$0")/child.new" "$(dirname "$0")/child"
wait
"""

# A cluster of which each call of `status` says ten steps more of what the load has. Its memory node attends in three tenths of the time.
SERVING = """#!/usr/bin/env python3
import json, pathlib, sys, time
calls = pathlib.Path(__file__).with_name("calls")
rows = pathlib.Path(__file__).with_name("rows")
if sys.argv[1] == "bench":
    new = rows.with_name("new_rows")  # So that nobody reads an empty file.
    new.write_text(sys.argv[sys.argv.index("--concurrency") + 1])
    new.replace(rows)
    time.sleep(60)
if sys.argv[-1] != "here:7400":
    sys.exit(1)
count = int(calls.read_text()) + 1 if calls.exists() else 1
calls.write_text(str(count))
load = int(rows.read_text()) if rows.exists() else 0
parts = {"attend": 0.3 * time.monotonic(), "wait_query": 0.5 * time.monotonic()}
print(json.dumps({
    "state": "serving", "running": 0, "waiting": WAITING, "model": "m", "policy": "attend_remote", "chunk_choice": "1",
    "lanes": [{"rows": 3, "context_tokens": 40}, {"rows": 1, "context_tokens": 2}], "tokens_generated": 10 * load * count,
    "time_to_first_token": {"count": load},
    "nodes": [{"name": "m0", "role": "memory", "device": "cpu", "part_seconds": parts, "bytes_sent": 7}]}))
"""
SUITES_OF_CLUSTERS = ("fetch", "decode", "overlap", "prefill", "chat", "conversations", "pipeline", "local", "gateway", "int8", "spill", "trace",
                      "predict", "peers")
SUITES_OF_THEIR_OWN = ("loss", "weights_int8", "packed", "policies", "choice", "long_prompt", "sampling", "threads")

CPUINFO = """processor : 0
cpu family : 25
model : 17
model name : AMD EPYC
flags : fpu avx2 fma avx512f avx512bw avx512_bf16
"""


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class SuiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "bench").mkdir()
        for path in [*(REPO / "bench").glob("*.py"), REPO / "bench/run.sh"]:
            shutil.copy(path, self.tree / "bench")

    def run_suite(self, *arguments):
        return subprocess.run([self.tree / "bench/run.sh", *arguments], cwd=self.tree, capture_output=True, text=True,
                              timeout=120, check=False)


class RunScriptTest(SuiteTest):
    def test_builds_what_is_missing_and_says_on_what_it_runs(self):
        write_program(self.tree / "deploy/build.sh", BUILDS)

        done = self.run_suite("dense", "--", "--rounds", "3")

        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("built --target lamina_bench_dense", done.stderr)
        self.assertEqual(done.stdout.splitlines(), [f"machine {processor.machine()}", "measured with --rounds 3"])
        self.assertNotIn("built", self.run_suite("dense").stderr, "it is there now")

    def test_names_the_command_when_it_cannot_be_built(self):
        write_program(self.tree / "deploy/build.sh", BUILDS_NOTHING)
        for suite, target in (("dense", "lamina_bench_dense"), ("plan", "lamina_bench_plan"),
                              ("peers", "lamina_bench_bounds"), ("chat", "lamina-coordinator"), ("prompts", "lamina-coordinator")):
            done = self.run_suite(suite)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"--target {target}", done.stderr)
            self.assertIn("deploy/build.sh", done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_refuses_systems_that_nobody_knows(self):
        for systems in ("vllm", "lamina,gpu", ""):
            done = self.run_suite("peers", "--", "--systems", systems)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("known: lamina, local, local_bf16, auto, llama.cpp, vLLM", done.stderr)

    def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(self):
        (self.tree / "figures").mkdir()
        for file in ("figures", "no/such/folder.json"):
            done = self.run_suite("decode", "--json", str(self.tree / file))
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(f"--json {self.tree / file}: it is a folder, or its folder is not there", done.stderr)

    def test_names_the_command_that_gets_the_model(self):
        for name in ("lamina", "lamina-coordinator", "lamina-compute", "lamina-memory"):
            write_program(self.tree / "build/release/bin" / name, "")
        done = self.run_suite("chat")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("models/smollm2-135m-instruct.gguf is missing: deploy/get_model.sh", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class ProgramsTest(unittest.TestCase):
    def test_wrong_usage_ends_with_2_and_help_and_version_with_0(self):
        names = re.findall(r"OUTPUT (lamina-bench-\w+)", (REPO / "bench/CMakeLists.txt").read_text())
        programs = [places.BIN / name for name in names if (places.BIN / name).exists()]
        if not programs:
            self.skipTest("benchmarks are not built")
        for program in programs:
            for word, status, stdout, stderr in (("--no-such-flag", 2, r"^$", "--help"), ("--help", 0, "--version", r"^$"),
                                                 ("--version", 0, r"^\d+\.\d+\.\d+\n$", r"^$")):
                with self.subTest(program=program.name, word=word):
                    done = subprocess.run([program, word], capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertRegex(done.stdout, stdout)
                    self.assertRegex(done.stderr, stderr)


class AllTest(SuiteTest):
    def test_its_suites_take_half_an_hour_and_have_tables(self):
        self.assertLessEqual(sum(limit for limit, _ in all_suites.SUITES.values()), all_suites.SECONDS_MAX)
        self.assertLessEqual(sum(limit for limit, _ in all_suites.LONG_SUITES.values()), all_suites.LONG_SECONDS_MAX)
        self.assertLessEqual(set(all_suites.SUITES), set(all_suites.LONG_SUITES))
        self.assertEqual(set(all_suites.LONG_SUITES), set(tables.TABLES))
        self.assertEqual(set(all_suites.LONG_SUITES), set(all_suites.PROGRAMS))

    def test_suites_that_nobody_knows_are_named(self):
        for words, known in ((("--only", "decode,sampling"), "peers"), (("--long", "--only", "samples"), "sampling, threads")):
            done = self.run_suite("all", "--", *words)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertRegex(done.stderr, f"--only: unknown suite sampl(ing|es); known: attention, .*{known}")

    def test_goes_on_behind_a_suite_that_fails_or_takes_too_long(self):
        write_program(self.tree / "bench/run.sh", RUNS)
        path = self.tree / "all.json"
        path.write_text(json.dumps({"machine": processor.machine(), "suites": {"peers": {"result": "kept"}}}))
        limits = {"dense": (60, []), "attention": (0.2, []), "weights_int8": (10, []), "decode": (60, ["--rows", "1"]), "peers": (60, [])}
        needed = mock.Mock()
        with mock.patch.multiple(all_suites, ROOT=self.tree, SUITES=limits, need=needed), \
                mock.patch.object(sys, "argv", ["all.py", "--json", str(path), "--only", "dense,attention,weights_int8,decode"]), \
                contextlib.redirect_stdout(io.StringIO()) as out, self.assertRaises(SystemExit) as ended:
            all_suites.main()

        found = json.loads(path.read_text())["suites"]
        self.assertEqual(ended.exception.code, 1)
        self.assertEqual(found["dense"]["problem"], "exit status 3")
        self.assertEqual(found["attention"]["problem"], "not done in 0.2 s")
        self.assertEqual((found["decode"]["result"], found["decode"]["command"]), ({"rows": 1}, "bench/run.sh decode -- --rows 1"))
        self.assertEqual((found["weights_int8"]["problem"], found["weights_int8"]["result"]), ("not done in 10 s", {"rows": 2}))
        self.assertEqual(found["peers"]["result"], "kept")
        self.assertIn("without figures: dense, attention; with a part of their figures: weights_int8\n", out.getvalue())
        # What is missing is built before any limit counts.
        needed.assert_called_once()
        self.assertLessEqual({"lamina-bench-dense", "lamina-bench-attention", "lamina-compute"}, set(needed.call_args[0]))

    def test_the_peers_have_what_the_others_leave(self):
        suites = all_suites.SUITES
        self.assertEqual(all_suites.limits_of(suites, "dense", 500), suites["dense"])
        self.assertEqual(all_suites.limits_of(suites, "peers", 250.4), (1549, ["--points", "1:1024,16:1024", "--seconds", "1519"]))
        # Suites that were ended have taken longer than their limits.
        self.assertEqual(all_suites.limits_of(suites, "peers", 800)[0], 1000)
        self.assertEqual(all_suites.limits_of(suites, "peers", 5000)[1][-1], "1")

    def test_attention_is_measured_by_what_serves_too(self):
        write_program(self.tree / "bench/run.sh", "#!/usr/bin/env bash\necho '{\"decode\": [], \"kernel\": \"'$1 $4 $5'\"}' > \"$3\"\n")
        with mock.patch.object(all_suites, "ROOT", self.tree), contextlib.redirect_stdout(io.StringIO()):
            found = all_suites.run("attention_auto", *all_suites.SUITES["attention_auto"])
        self.assertTrue(found["command"].startswith("bench/run.sh attention -- --kernel auto "))
        self.assertTrue(tables.attention_auto(found["result"]).startswith(
            "What nodes take with `attention: auto`. Kernel attention --kernel auto.\n"))

    def assert_nothing_is_left(self):
        child = int((self.tree / "bench/child").read_text())
        for _ in range(100):
            try:
                state = pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                state = "X"
            if state in "XZ":
                break
            time.sleep(0.1)
        self.assertIn(state, "XZ", "the suite's own program")
        self.assertFalse(pathlib.Path((self.tree / "bench/folder").read_text().strip()).exists())

    def test_a_suite_that_takes_too_long_leaves_nothing(self):
        write_program(self.tree / "bench/run.sh", LEAVES)
        with mock.patch.object(all_suites, "ROOT", self.tree), contextlib.redirect_stdout(io.StringIO()):
            found = all_suites.run("attention", 10, [])
        self.assertEqual(found["problem"], "not done in 10 s")
        self.assert_nothing_is_left()

    def test_it_ends_its_suite_when_it_is_ended(self):
        write_program(self.tree / "bench/run.sh", LEAVES)
        for name in all_suites.PROGRAMS["attention"]:
            write_program(self.tree / "build/release/bin" / name, "")
        running = subprocess.Popen([sys.executable, "-B", self.tree / "bench/all.py", "--only", "attention"], stdout=subprocess.DEVNULL)
        self.addCleanup(running.kill)
        deadline = time.monotonic() + 60
        while not (self.tree / "bench/child").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(60), 128 + signal.SIGTERM)
        self.assert_nothing_is_left()

    def test_a_second_signal_while_it_ends_its_suite_leaves_nothing_either(self):
        process = mock.Mock(pid=7)
        process.poll.return_value = None
        process.wait.side_effect = [KeyboardInterrupt, 0]
        sent = []
        with mock.patch.object(all_suites.os, "killpg", lambda _, number: sent.append(number)), self.assertRaises(KeyboardInterrupt):
            all_suites.end(process)
        self.assertEqual(sent, [signal.SIGTERM, signal.SIGKILL])

    def test_another_machines_file_is_refused(self):
        path = self.tree / "all.json"
        path.write_text(json.dumps({"machine": "another", "suites": {}}))
        with self.assertRaisesRegex(SystemExit, "has figures of another"):
            all_suites.read(path)


class ServerTest(SuiteTest):
    def serve(self, waiting=0):
        write_program(self.tree / "lamina", SERVING.replace("WAITING", str(waiting)))
        for name, value in (("BIN", self.tree), ("need", lambda *_: None), ("STRETCH_SECONDS", 0.02), ("SETTLE_SECONDS", 0.0)):
            patch = mock.patch.object(cluster, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def test_every_suite_of_clusters_measures_one_that_serves(self):
        for suite in SUITES_OF_CLUSTERS:
            self.assertIn("--server HOST:PORT", self.run_suite(suite, "--", "--help").stdout, suite)

    def test_the_help_names_these_suites_and_no_others(self):
        text = " ".join(self.run_suite("--help").stdout.split())
        self.assertEqual(re.search(r"-- --server HOST:PORT: ([\w, ]+)\.", text)[1].split(", "), list(SUITES_OF_CLUSTERS))
        others = text[text.index("The others need clusters of their own"):]
        for suite in SUITES_OF_THEIR_OWN:
            self.assertNotIn("add_server", (REPO / f"bench/{suite}.py").read_text(), suite)
            self.assertIn(suite, others)

    def test_conversations_come_back_to_a_cluster_that_serves(self):
        self.serve()
        asked = []

        def turn(_, prompt, tokens):
            asked.append(prompt)
            return {"text": "so", "prompt_tokens": len(prompt), "cached_tokens": tokens, "ttft_ms": 5}

        arguments = mock.Mock(server="here:7400", people=2, rounds=2, new_tokens=22, answer_tokens=3, json=self.tree / "talks.json")
        with mock.patch.object(conversations, "turn", turn), contextlib.redirect_stdout(io.StringIO()) as out:
            conversations.on_one(arguments)
        self.assertTrue(asked[2].startswith(asked[0] + "so "))
        self.assertIn("| 2 | ", out.getvalue())
        self.assertEqual([(row["round"], row["person"]) for row in json.loads(arguments.json.read_text())["rows"]], [(0, 0), (0, 1), (1, 0), (1, 1)])

    def test_the_load_of_spill_and_the_text_of_int8_go_to_a_cluster_that_serves(self):
        tiers = iter([None, {"sequences_out": 4, "sequences_in": 2, "bytes_out": 8e6, "bytes_in": 4e6, "seconds_in": 0.1}])
        status = {"model": "SmolLM2-135M", "preemptions": 3, "policies": [{"kv": "bf16"}, {"kv": "int8"}]}
        running = mock.Mock(address="here:7400", status=lambda: {**status, "nodes": [{"slots_total": 50, "spill": next(tiers, None)}]})
        remotes = mock.patch.multiple(cluster, Remote=lambda _: contextlib.nullcontext(running), described=lambda _: "a cluster")
        load = {"output_tokens_per_second": 7, "seconds": 1, "failed": 0}
        arguments = mock.Mock(server="here:7400", rows=10, context=6, output=4, json=self.tree / "figures.json")
        with remotes, mock.patch.object(spill, "load_on", lambda *_: load), contextlib.redirect_stdout(io.StringIO()) as out:
            spill.on_one(arguments)
        self.assertIn("2.00 times the 50 slots: 7.0 tokens/s, 0 preempted", out.getvalue())
        self.assertIn("4 sequences out (8 MB), 2 back (4 MB), in 50.0 ms each", out.getvalue())
        with remotes, mock.patch.object(int8, "scored_by", lambda *words: len(words)), contextlib.redirect_stdout(io.StringIO()) as out:
            int8.on_one(arguments, [1, 2])
        self.assertIn("| bf16 | 4.0000 |\n| int8 | 4.0000 |", out.getvalue())
        status["model"] = "Llama"
        with remotes, self.assertRaisesRegex(SystemExit, "serves Llama; the committed text is tokens of SmolLM2"):
            int8.on_one(arguments, [1, 2])

    def test_streams_of_a_cluster_that_serves_have_no_bounds_of_this_machine(self):
        stretch = mock.Mock(tokens_per_second=100, shares={("m0", "reply"): 0.5})
        running = mock.Mock(decode_rate=lambda *_: stretch, rates=[9e9, 8e9], conditions=dict)
        path = self.tree / "fetch.json"
        with mock.patch.object(fetch, "FetchingRemote", lambda _: contextlib.nullcontext(running)), \
                mock.patch.object(fetch, "copy_rate", side_effect=AssertionError("of another machine")), \
                mock.patch.object(sys, "argv", ["fetch.py", "--server", "here:7400", "--points", "4x1024", "--json", str(path)]), \
                contextlib.redirect_stdout(io.StringIO()) as out:
            fetch.main()
        self.assertIn("| as its file says | as its file says | as its file says | 4 | 1024 | 100.0 | 40.0 | 0.50 | 9.0 | 8.0 |\n", out.getvalue())
        self.assertNotIn("copy", out.getvalue())
        self.assertEqual(json.loads(path.read_text())["server"], "here:7400")

    def test_steps_come_from_the_counters_of_status(self):
        self.serve()
        with contextlib.redirect_stdout(io.StringIO()) as out:
            remote.steps("here:7400", [(4, 100)], self.tree / "steps.json")

        self.assertIn("cluster here:7400: m, policy attend_remote, 2 lanes, m0 (memory, cpu)", out.getvalue())
        (row,) = json.loads((self.tree / "steps.json").read_text())["rows"]
        self.assertEqual((row["rows"], row["context"], row["context_tokens"], row["chunks"]), (4, 100, 42, "1"))
        self.assertGreater(row["tokens_per_second"], 0)
        self.assertAlmostEqual(row["step_ms"], 4e3 / row["tokens_per_second"])
        self.assertEqual(set(row["parts_ms"]["m0"]), {"attend", "wait_query"})

    def test_what_cannot_be_measured_is_named(self):
        self.serve(waiting=3)
        for address, why in (("there:7400", "no cluster serves at there:7400"), ("here:7400", "here:7400 has 3 requests of others")):
            with self.assertRaisesRegex(SystemExit, f"--server: {why}"):
                remote.steps(address, [(4, 100)], None)

    def test_what_a_suite_needs_besides_the_server_is_named(self):
        self.assertIn("--gateway HOST:PORT", self.run_suite("gateway", "--", "--server", "here:7400").stderr)
        self.assertIn("--cluster FILE", self.run_suite("predict", "--", "--server", "here:7400").stderr)


class GatewayTest(unittest.TestCase):
    def test_one_request_at_a_time_may_be_all(self):
        running = gateway.GatewayCluster(1, "")
        self.addCleanup(running.folder.cleanup)
        text = running.config.read_text()
        self.assertIn("lanes: 2,", text)
        self.assertIn("running_max: 2}", text)  # Not fewer than lanes, which would be refused.

    def test_a_way_without_times_has_none_rather_than_zeros(self):
        self.assertEqual(gateway.tpot_of([{"p50": 1.0, "p99": 9.0}, {"p50": 2.0, "p99": 5.0}, {"p50": 3.0, "p99": 7.0}]), {"p50": 2.0, "p99": 7.0})
        self.assertIsNone(gateway.tpot_of([None, None]))
        self.assertEqual(gateway.in_words(None).split(), ["-"])
        self.assertEqual(len(gateway.in_words(None)), len(gateway.in_words({"p50": 2.0, "p99": 7.0})))


class ChoiceTest(unittest.TestCase):
    def test_plans_are_configurations_of_two_cores(self):
        names = [choice.name_of({"machines": machines, "policy": policy, "arrangement": f"1 replica, {rest}"}) for machines, policy, rest in (
            ("1 x core", "local", "local"), ("1 x both", "local", "local"),
            ("1 x core + 1 x core", "attend_remote", "attend_remote by request, 1 lane"),
            ("1 x core + 1 x core", "attend_remote", "attend_remote by request, 4 lanes"))]
        for machines, policy, arrangement in (("2 x core", "local", "2 replicas, local"), ("2 x core", "local", "1 replica of 2 stages, local"),
                                              ("2 x core", "local", "1 replica of 2 shards, local"),
                                              ("1 x core + 1 x core", "fetch_heads", "1 replica, fetch_heads")):
            names.append(choice.name_of({"machines": machines, "policy": policy, "arrangement": arrangement}))
        self.assertEqual(names, ["one core", "both cores", "two pools, 1 lane", "two pools, 4 lanes", "two nodes of one core each, local",
                                 "two stages of one core each, local", "two shards of one core each, local", "two pools, K and V fetched"])
        self.assertEqual(set(names), set(choice.CONFIGURATIONS) - {"two pools, 2 lanes", "two pools, 3 lanes"})
        for machines, policy, arrangement in (("3 x core", "local", "3 replicas, local"),
                                              ("1 x core + 1 x core", "fetch_recompute", "1 replica, fetch_recompute")):
            self.assertNotIn(choice.name_of({"machines": machines, "policy": policy, "arrangement": arrangement}), choice.CONFIGURATIONS)

    def test_what_was_not_measured_has_no_verdict(self):
        here = {"one core": 100.0, "both cores": 80.0}

        def plan(machines, arrangement="1 replica, local"):
            return {"machines": machines, "policy": "local", "arrangement": arrangement}

        self.assertEqual(choice.verdict([plan("1 x core"), plan("1 x both")], here)["share"], 1)
        bad = choice.verdict([plan("1 x both")], here)
        self.assertEqual((bad["share"], bad["best"]), (0.8, "one core"))
        self.assertIn("NOT within 5%", bad["words"])
        for plans, words in (([plan("3 x core", "3 replicas, local")], "3 x core, 3 replicas, local, was not measured: no verdict"),
                             ([], "found nothing that runs here: no verdict")):
            found = choice.verdict(plans, here)
            self.assertIsNone(found["share"])
            self.assertIn(words, found["words"])

    def test_a_cluster_may_have_a_compute_node_on_each_core(self):
        _, _, options = choice.CONFIGURATIONS["two nodes of one core each, local"]
        running = cluster.Cluster(**options)
        self.addCleanup(running.folder.cleanup)
        text = running.config.read_text()
        self.assertEqual(re.findall(r'name: (c\d), cores: "(\d)"', text), [("c0", "0"), ("c1", "1")])
        self.assertEqual([name for _, name in running.names], ["coordinator", "c0", "c1"])

    def test_the_catalogue_has_one_core_and_both(self):
        text = choice.catalogue([{"bytes_per_second": 2e9, "latency_seconds": 3e-6}])
        devices, machines = text[text.index("devices:"):text.index("links:")], text[text.index("machines:"):]
        for part in (devices, machines):
            self.assertEqual(re.findall(r"- name: (\w+)", part), ["core", "both"])
        self.assertIn("2.000 GB/s", text)


class PredictTest(unittest.TestCase):
    PLAN = {"slo": "ttft=3s", "modes": {"one": {}, "two": {}}, "open": {"mode": "two", "input": 8, "output": 4, "share": 0.5, "requests": 3},
            "highest_rate": {"mode": "two", "input": 8, "output": 4, "requests": 3, "halvings": 5}}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.mode = predict.Mode("two", {}, self.folder, self.PLAN["slo"])

    def test_the_highest_rate_is_judged_against_the_middle_of_what_was_measured(self):
        figures = {"tokens": 1, "ttft": 1, "tpot": 1, "ttft_p99": 1, "tpot_p99": 1}
        turn = {"calibrations": [1, 2], "reads": [1, 1], "runs": [{**figures, "within": 1}]}
        record = {"capacity": 4.0, "turns": [turn], "highest_rate": 2.25, "highest_rate_calibrations": [2, 3]}
        highest = {1: 1.0, 2: 2.4, 3: 2.6}
        self.mode.predict = lambda number, point, trace: {**figures, "within": 1.0 if point["rate"] <= highest[number] else 0.9}
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()):
            found = predict.judge_open(self.mode, record, self.PLAN)["highest_rate"]

        self.assertEqual((found["held"], found["failed"]), (2.25, 2.4375))
        self.assertAlmostEqual(found["said"], 2.5, delta=0.006)  # Not a step of 0.19.
        self.assertAlmostEqual(found["error"], 2.5 / 2.34375 - 1, delta=0.003)
        self.assertIn("2.25/s held and 2.44/s did not", out.getvalue())
        self.assertIn("half of what lies between them is 4.0%", out.getvalue())

    def test_a_turn_lies_between_two_calibrations(self):
        calibrations = iter([{"number": 2, "read": 12.0}, {"number": 3, "read": 14.0}])
        self.mode.calibrate = lambda running: next(calibrations)
        self.mode.measure = lambda running, trace: {"tpot": 20.0}
        self.mode.predict = lambda number, point, trace: {"tpot": 10.0 * number}
        point = {"mode": "two", "rows": 1, "input": 8, "output": 4}
        with contextlib.redirect_stderr(io.StringIO()):
            turns = predict.measure_turns(self.mode, None, [point], {"number": 1, "read": 11.0}, 2)

        self.assertEqual([one["calibrations"] for one in turns], [[1, 2], [2, 3]])
        self.assertEqual([one["reads"] for one in turns], [[11.0, 12.0], [12.0, 14.0]])
        self.assertEqual(predict.said_of(self.mode, [point], turns), [[{"tpot": 15.0}], [{"tpot": 25.0}]])

    def test_each_load_has_prompts_of_its_own(self):
        seeds = []

        def bench(*arguments):
            seeds.append(arguments[arguments.index("--prompt-seed") + 1])
            times = {"p50": 1, "p99": 1}
            return json.dumps({"output_tokens_per_second": 1, "ttft_ms": times, "tpot_ms": times})

        with mock.patch.object(predict, "lamina", bench):
            for _ in range(3):
                self.mode.measure(mock.Mock(address="here:7400"), "{}")
            predict.Mode("two", {}, self.folder, "").measure(mock.Mock(address="here:7400"), "{}")
        self.assertEqual(len(set(seeds)), 4)

    def test_figures_that_were_kept_are_of_their_machine(self):
        self.assertEqual(predict.machine_of(self.PLAN, None), processor.machine())
        self.mode.record.write_text(json.dumps({"machine": "another", "turns": []}))
        self.assertEqual(predict.machine_of(self.PLAN, self.folder), "another")

    def test_modes_that_nobody_knows_are_named(self):
        with mock.patch.object(sys, "argv", ["predict.py", "--modes", "local,lokal"]), contextlib.redirect_stderr(io.StringIO()) as errors, \
                self.assertRaises(SystemExit):
            predict.main()
        self.assertIn("--modes: unknown lokal; known: pools-1, pools-2, pools-auto, local", errors.getvalue())


class ProcessorTest(unittest.TestCase):
    def test_knows_the_classes(self):
        for flags, name in (("avx2 fma", "AVX2"), ("avx2 fma avx512f avx512bw", "AVX-512"),
                            ("avx2 fma avx512f avx512bw avx512_bf16", "AVX-512 BF16"),
                            ("avx512f avx512_bf16 amx_bf16 amx_tile", "AMX"), ("sse2", "x86-64 without AVX2")):
            self.assertEqual(processor.class_of(flags.split()), name)

    def test_describes_a_processor(self):
        self.assertEqual(processor.describe(CPUINFO, 2), "class AVX-512 BF16: AMD EPYC (family 25, model 17), 2 cores")
        self.assertTrue(json.dumps(processor.machine()).startswith('"class '))


if __name__ == "__main__":
    unittest.main()

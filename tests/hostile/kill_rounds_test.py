#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random kill rounds: no request is wrong, hangs or is lost while one node of each role is left.

Each round sends requests, ends random memory and compute nodes at random moments (at once, or stopped first and killed
later), never the last one of a role, and starts them again. Every answer must be that of an undisturbed run.

By hand: kill_rounds_test.py --rounds 1000 --seed 7
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import time
import unittest

import harness

ROUNDS = 10
SEED = 1
ROLES = {"memory": ["m0", "m1"], "compute": ["c0", "c1"]}
REQUESTS = 4  # Of a round.
PROGRESS_ROUNDS = 50  # A line is printed after as many.
# Greedy ones and seeded samples; long enough that a round's kills meet them.
PROMPTS = ["Once upon a time", "The capital of France is", "List the planets:", "A recipe for bread. " * 12]
SAMPLING = [["--temperature", "0"], ["--temperature", "0.8", "--seed", "11"]]
MAX_TOKENS = 200
# At most, before a kill, between stop and kill, and before the start; and no more than this share of what undisturbed answers took, so
# that a fast machine still answers when a kill comes.
PAUSE_SECONDS = 0.7
PAUSE_SHARE = 0.25
# For a request in a round on a busy machine, everything recomputed several times.
ANSWER_SECONDS = 120


class KillRounds:

    def __init__(self, test, cluster, seed):
        self.test = test
        self.cluster = cluster
        self.random = random.Random(seed)
        self.specs = [["--prompt", prompt, *sampling] for prompt in PROMPTS for sampling in SAMPLING]
        began = time.monotonic()
        undisturbed = [self.start(spec) for spec in self.specs]
        self.wanted = [self.finish(process, "undisturbed") for process in undisturbed]
        self.pause_seconds = min(PAUSE_SECONDS, PAUSE_SHARE * (time.monotonic() - began))
        self.kills = 0
        self.kills_that_met_requests = 0

    def start(self, spec):
        return self.cluster.popen("generate", *spec, "--max-tokens", str(MAX_TOKENS), "--ignore-eos", "--json",
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finish(self, process, where):
        try:
            out, error = process.communicate(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self.test.fail(f"{where}: a request hangs\n{self.cluster.status()['state']}\n{self.cluster.logs()}")
        self.test.assertEqual(process.returncode, 0, f"{where}: a request is lost: {error}\n{self.cluster.logs()}")
        return json.loads(out)["token_ids"]

    def victims(self):
        """One or two nodes, of different roles if two: one of each role is left."""
        roles = self.random.sample(sorted(ROLES), self.random.choice([1, 1, 2]))
        return [self.random.choice(ROLES[role]) for role in roles]

    def pause(self):
        time.sleep(self.pause_seconds * self.random.random())

    def end(self, name, running):
        """Ends a node, and counts whether a request of `running` was there before and after."""
        process = self.cluster.processes[name]
        status = self.cluster.status()
        if self.random.random() < 0.3:
            process.send_signal(signal.SIGSTOP)
        else:
            self.cluster.kill(name)
        begun = status.get("running", 0) + status.get("waiting", 0) > 0
        self.kills_that_met_requests += begun and any(request.poll() is None for request in running)
        self.kills += 1
        if process.poll() is None:
            self.pause()
            self.cluster.kill(name)

    def round(self, number):
        chosen = [self.random.randrange(len(self.specs)) for _ in range(REQUESTS)]
        running = [self.start(self.specs[i]) for i in chosen]
        victims = self.victims()
        where = f"round {number}, killed {', '.join(victims)}"
        try:
            for name in victims:
                self.pause()
                self.end(name, running)
            self.pause()
            for name in victims:
                self.cluster.start(name)
            for i, process in zip(chosen, running):
                harness.require_same_answer(self.test, self.finish(process, where), self.wanted[i], where)
        finally:
            for process in running:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
        self.cluster.await_state("serving")


class KillRoundsTest(unittest.TestCase):
    rounds = ROUNDS
    seed = SEED

    def test_no_answer_is_wrong_hangs_or_is_lost(self):
        harness.require_model(self)
        with harness.Cluster(compute=[{"name": name} for name in ROLES["compute"]]) as cluster:
            rounds = KillRounds(self, cluster, self.seed)
            for number in range(1, self.rounds + 1):
                rounds.round(number)
                if number % PROGRESS_ROUNDS == 0:
                    print(f"round {number}: {rounds.kills} nodes killed so far", flush=True)
            print(f"{self.rounds} rounds with seed {self.seed}: {rounds.kills} nodes killed, {rounds.kills_that_met_requests} of them "
                  f"while requests ran, {self.rounds * REQUESTS} requests answered as undisturbed", flush=True)
            self.assertGreater(rounds.kills_that_met_requests, rounds.kills / 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seed", type=int, default=SEED)
    own, rest = parser.parse_known_args()
    KillRoundsTest.rounds, KillRoundsTest.seed = own.rounds, own.seed
    unittest.main(argv=[sys.argv[0], *rest])

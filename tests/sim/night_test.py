#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""night.py over the simulation itself, and over a program of which a seed fails."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
REPLAY = pathlib.Path(sys.argv.pop()) if len(sys.argv) > 1 else None

FAILS = """#!/bin/sh
case " $* " in
  *" kept windows "*)
    echo "an event"
    echo "seed 7 trace hash 1 events 2: slot 3 has two owners"
    exit 1 ;;
esac
echo "passed"
"""


def night(*arguments):
    return subprocess.run([sys.executable, "-B", str(HERE / "night.py"), *arguments], capture_output=True, text=True,
                          check=False)


class NightTest(unittest.TestCase):
    def test_every_world_runs_its_seeds(self):
        result = night("--program", str(REPLAY), "--seeds", "2", "--first", "5")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("128 of 128 seeds passed, 0 worlds failed; the rest takes 0.0 min", result.stdout)
        self.assertIn("kept windows beams int8: 2 seeds, passed", result.stdout)

    def test_a_seed_that_fails_is_named_with_the_command_that_repeats_it(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "replay"
            program.write_text(FAILS)
            program.chmod(0o755)
            result = night("--program", str(program), "--seeds", "600")
            self.assertEqual(result.returncode, 1)
            self.assertIn("slot 3 has two owners", result.stdout)
            self.assertIn(f"repeat it: {program} 7 1 kept windows\n", result.stdout)
            self.assertIn("  kept windows: 0 seeds, failed", result.stdout)
            self.assertIn("  kept: 600 seeds, passed", result.stdout)  # The others go on.

    def test_after_its_minutes_nothing_new_begins(self):
        result = night("--program", str(REPLAY), "--seeds", "1000", "--minutes", "0")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("0 of 64,000 seeds passed", result.stdout)

    def test_a_night_that_was_broken_off_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "replay"
            calls = pathlib.Path(folder) / "replay.calls"
            state = pathlib.Path(folder) / "state"
            program.write_text(FAILS.replace("case", 'echo " $* " >> "$0.calls"\ncase', 1))
            program.chmod(0o755)
            arguments = ("--program", str(program), "--seeds", "300", "--state", str(state))
            self.assertEqual(night(*arguments).returncode, 1)
            self.assertIn(" 251 50 forms kept \n", calls.read_text())
            calls.unlink()
            state.write_text(state.read_text() + "251 5")  # It ended while it wrote.
            result = night(*arguments)
            self.assertEqual(result.returncode, 1)
            self.assertIn("  forms kept: 300 seeds, passed", result.stdout)
            self.assertIn("  kept windows: 0 seeds, failed", result.stdout)
            for call in calls.read_text().splitlines():  # What has passed is not run again.
                self.assertIn(" kept windows ", call)
            program.write_text(program.read_text() + "# Another build.\n")
            result = night(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn("is not of this", result.stderr)

    def test_a_program_that_is_missing_is_said(self):
        result = night("--program", "/nowhere")
        self.assertEqual(result.returncode, 2)
        self.assertIn("ninja -C build/release scheduler_sim_replay", result.stderr)


if __name__ == "__main__":
    unittest.main()

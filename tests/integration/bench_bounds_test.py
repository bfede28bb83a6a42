#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What suites compare their figures with: bounds of the same run, and predictions. Nothing is measured here."""

import contextlib
import io
import json
import pathlib
import sys
import types
import unittest
from unittest import mock

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "bench"))
import fetch  # noqa: E402
import fetch_attention  # noqa: E402
import spill  # noqa: E402


class FetchTest(unittest.TestCase):
    def test_a_stream_over_a_network_is_compared_with_puts(self):
        def measured(command, **_):
            rows = [{"bytes": 8, "bare_ns": 1}, {"stream_bytes": 4096, "stream_bytes_per_second": 2e9},
                    {"stream_bytes": 65536, "stream_bytes_per_second": 10e9}]
            self.assertEqual(command[1:3], ["--transport", "ucx://"])
            self.assertIn("--messages 7 ", " ".join(map(str, command)))
            pathlib.Path(command[-1]).write_text(json.dumps(rows))

        with mock.patch.object(fetch.subprocess, "run", measured), mock.patch.object(fetch, "program", lambda name: name):
            self.assertEqual(fetch.put_rate("ucx", 7), 10e9)
            self.assertIsNone(fetch.put_rate("shm", 7))
        point = {"kv": "bf16", "resident": "0", "rows": 4, "context": 1024, "tokens_per_second": 100, "step_s": 0.04, "streaming": 0.5,
                 "bytes_per_second": 9e9}
        with contextlib.redirect_stdout(io.StringIO()) as out:
            fetch.report([point], copy=12e9, puts=10e9)
        self.assertIn("| 9.0 | 0.75 | 0.90 |", out.getvalue())
        self.assertIn("Asked: 0.85 of puts.", out.getvalue())

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


class SpillTest(unittest.TestCase):
    def find(self, computed_again, loads):
        """With ten seconds of recomputation for each load, and a tier that takes 46 us for a token."""
        rates = {"write_bytes_per_second": 1e9, "read_bytes_per_second": 1e9}
        again = iter(computed_again)

        def turn(arguments, spills):
            self.assertFalse(spills)
            return {"seconds": 10, "computed_again": next(again), "prompt_tokens_per_second": 1000, "tokens_per_second": 5, "slots": 7000}

        arguments = types.SimpleNamespace(times=2.0, loads=loads, kv="bf16", rows=1, context=1, output=1, capacity="1MiB")
        with mock.patch.multiple(spill, turn=turn, tier_rates=lambda _: rates), contextlib.redirect_stdout(io.StringIO()) as out:
            chosen, first = spill.find(arguments)
        return chosen, first["computed_again"], out.getvalue()

    def test_the_first_load_is_taken_for_which_enough_is_predicted(self):
        chosen, again, out = self.find([3000, 4000, 5000], "14x600x400,28x60x460,64x40x300")
        self.assertEqual((chosen.rows, chosen.context, chosen.output, again), (28, 60, 460, 4000))
        self.assertEqual(chosen.capacity, f"{28 * 520 // 2 * 23040}B")
        self.assertIn("| 14x600x400 | 2.00 | 1000 | 5.0 | 3000 | 1.40 |", out)
        self.assertIn("| 28x60x460 | 2.08 | 1000 | 5.0 | 4000 | 1.62 |", out)
        self.assertNotIn("64x40x300", out)

    def test_the_load_with_most_is_taken_where_enough_is_predicted_for_none(self):
        chosen, again, _ = self.find([1000, 2500, 2000], "14x600x400,28x60x460,64x40x300")
        self.assertEqual((chosen.rows, again), (28, 2500))


if __name__ == "__main__":
    unittest.main()

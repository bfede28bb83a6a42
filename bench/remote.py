# SPDX-License-Identifier: Apache-2.0
"""What suites that compare clusters do with --server: there is one cluster, which is as it is, so its own figures are printed, without
those of another setting and without the bounds of this machine."""

import json

import cluster
from floor import parts_of, parts_text


def step_of(running, rows, context):
    """A decode step with so many rows, as suites write it."""
    stretch = running.decode_rate(rows, context)
    step = 1e3 * rows / stretch.tokens_per_second
    return {"rows": rows, "context": context, "context_tokens": stretch.context_tokens, "step_ms": step,
            "tokens_per_second": stretch.tokens_per_second, "parts_ms": parts_of(stretch, step), "chunks": running.chunk_choice}


def steps(address, points, path):
    """Prints a step at each (rows, context); writes them to `path`, if there is one."""
    with cluster.Remote(address) as running:
        what = cluster.described(running)
        print(what)
        print(f"{'rows':>5} {'context':>8} {'step ms':>8} {'tok/s':>8}  parts of a step, ms")
        found = []
        for rows, context in points:
            row = step_of(running, rows, context)
            found.append(row)
            print(f"{rows:5} {context:8} {row['step_ms']:8.2f} {row['tokens_per_second']:8.0f}  {parts_text(row['parts_ms'])}", flush=True)
    write(path, what, found)


def write(path, what, rows):
    if path:
        with open(path, "w", encoding="utf-8") as out:
            json.dump({"cluster": what, "rows": rows}, out, indent=1)

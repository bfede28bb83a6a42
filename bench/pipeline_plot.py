# SPDX-License-Identifier: Apache-2.0
"""Draws what `bench/run.sh pipeline --json FILE` wrote: python3 bench/pipeline_plot.py FILE OUT.svg. Needs matplotlib."""

import json
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend has to be chosen first)

COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


def main():
    source, target = sys.argv[1:3]
    with open(source, encoding="utf-8") as file:
        measured = json.load(file)
    row_counts = sorted({point["rows"] for point in measured["points"]}, reverse=True)
    figure, (rate, latency, gain) = plt.subplots(1, 3, figsize=(12, 3.6))
    for rows, color in zip(row_counts, COLORS):
        points = sorted((p for p in measured["points"] if p["rows"] == rows), key=lambda p: p["context"])
        contexts = [p["context"] for p in points]
        for lanes, style in (("one_lane", "--"), ("two_lanes", "-")):
            name = f"{rows} rows, {lanes.replace('_', ' ')}"
            rate.plot(contexts, [p[f"{lanes}_tokens_per_second"] for p in points], style, color=color, marker="o", label=name)
            latency.plot(contexts, [p[f"{lanes}_ms"] for p in points], style, color=color, marker="o", label=name)
        gain.plot(contexts, [p["gain"] for p in points], "-", color=color, marker="o", label=f"{rows} rows, measured")
        gain.plot(contexts, [p["bound"] for p in points], ":", color=color, marker="x", label=f"{rows} rows, simulated")
    for axes, title in ((rate, "tokens a second"), (latency, "step, ms"), (gain, "two lanes over one")):
        axes.set_title(title)
        axes.set_xlabel("context, tokens")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    figure.suptitle(measured["machine"], fontsize=8)
    figure.tight_layout()
    matplotlib.rcParams["svg.hashsalt"] = "lamina"
    figure.savefig(target, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a calibration file for planning of what deploy/gpu_check.sh measured; docs/formats/calibration.md says what is in it.

usage: gpu_calibration.py DIR
  DIR   of gpu_check.sh's results; facts.json must be there, and of slice.json, attention.json and
        linear.json those that were measured
Writes DIR/calibration.json. Exit status: 0 it is there, 1 there is nothing to make it of, or a step's
results could not be used and are left out.
"""

import datetime
import json
import pathlib
import sys

FORMAT = 1
# As in bench/cuda: gpu_bench_slice.cc and gpu_bench_linear.cc.
SLICES = {
    "LLaMA-3-8B": {"width": 4096, "q_heads": 32, "kv_heads": 8, "head_dim": 128, "hidden": 14336},
    "SmolLM2-135M": {"width": 576, "q_heads": 9, "kv_heads": 3, "head_dim": 64, "hidden": 1536},
}
LAYERS = {
    "qkv": {"in": 4096, "out": 6144},
    "attention out": {"in": 4096, "out": 4096},
    "gate up": {"in": 4096, "out": 28672},
    "down": {"in": 14336, "out": 4096},
}


def from_micros(value):
    return round(value * 1e-6, 10)


def from_millis(value):
    return round(value * 1e-3, 10)


def curves(points):
    """[(curve, point)] to a list of curves, each a dict with its points, in the order in which they came."""
    found = {}
    for curve, point in points:
        key = json.dumps(curve, sort_keys=True)
        found.setdefault(key, curve | {"points": []})["points"].append(point)
    return list(found.values())


def slices(measured):
    """t_slice(B). Errors: KeyError, a model whose shape is not known here."""
    return curves(
        ({"model": model["model"], "dtype": "bf16"} | SLICES[model["model"]],
         {"rows": at["rows"], "seconds": from_micros(at["graph_us"]),
          "launches_seconds": from_micros(at["launches_us"])})
        for model in measured["models"] for at in model["rows"])


def attentions(measured):
    """t_attn(B*l), of one layer."""
    return curves(
        ({"kernel": at["kernel"], "kv_heads": at["kv_heads"], "group": at["group"], "head_dim": at["head_dim"],
          "dtype": "bf16"},
         {"rows": at["rows"], "context": at["context"], "tokens": at["rows"] * at["context"],
          "seconds": from_millis(at["ms"])})
        for at in measured["shapes"])


def linears(measured):
    """Products of B rows with one layer's weights. Errors: KeyError, a layer whose shape is not known here."""
    return curves(
        ({"layer": at["layer"], "dtype": "bf16"} | LAYERS[at["layer"]],
         {"rows": at["rows"], "seconds": from_millis(at["ms"])})
        for at in measured["shapes"])


def read(path, convert=lambda measured: measured):
    """What a step wrote, converted; None, and a line on stderr, where it is damaged or of another version."""
    try:
        return convert(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        print(f"gpu_calibration.py: {path} is not what this version's step {path.stem} writes "
              f"({type(error).__name__}: {error}); run that step again", file=sys.stderr)
        return None


def calibration(folder):
    """The file's contents, or None where nothing was measured. What cannot be used is None in it."""
    steps = {"t_slice": ("slice", slices), "t_attn": ("attention", attentions), "t_linear": ("linear", linears)}
    paths = {key: folder / f"{step}.json" for key, (step, _) in steps.items()}
    there = {key: path for key, path in paths.items() if path.exists()}
    if not there or not (folder / "facts.json").exists():
        return None
    facts = read(folder / "facts.json")
    if facts is None:
        return None
    measured_at = max(path.stat().st_mtime for path in there.values())
    date = datetime.datetime.fromtimestamp(measured_at, datetime.timezone.utc)
    return {
        "format": FORMAT,
        "device": facts["name"],
        "compute_capability": facts["compute_capability"],
        "copy_bytes_per_second": facts["copy_gb_per_s"] * 1e9,
        "date": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{key: read(path, steps[key][1]) for key, path in there.items()},
    }


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return 0 if len(sys.argv) == 2 else 2
    folder = pathlib.Path(sys.argv[1])
    made = calibration(folder)
    if made is None:
        (folder / "calibration.json").unlink(missing_ok=True)
        print(f"gpu_calibration.py: {folder} has no facts, or none of slice, attention and linear", file=sys.stderr)
        return 1
    usable = {key: value for key, value in made.items() if value is not None}
    (folder / "calibration.json").write_text(json.dumps(usable, indent=1) + "\n")
    return 0 if usable == made else 1


if __name__ == "__main__":
    sys.exit(main())

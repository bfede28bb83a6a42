# SPDX-License-Identifier: Apache-2.0
"""The floor of a decode step on the quick start's model, and where a step's time goes.

The floor is the larger of
  bytes: (weights, read once by each lane + K and V of all rows) / read bandwidth of all cores
  flops: 2 * parameters * rows / GEMM peak of the compute cores
both measured next to it.
"""

import json
import subprocess
import tempfile

from programs import program

WEIGHT_BYTES = 269e6  # SmolLM2-135M in bf16.
PARAMETERS = 134.5e6
KV_BYTES = 23040  # A token, in all layers.


def bounds():
    """Read bandwidth of all cores (bytes/s) and the GEMM peak of one core (flop/s)."""
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([program("lamina-bench-bounds"), "--json", out.name], check=True,
                       stdout=subprocess.DEVNULL)
        return json.load(open(out.name))


def bounds_text(limits):
    return (f"bandwidth {limits['read_bytes_per_second'] / 1e9:.1f} GB/s on all cores, "
            f"GEMM {limits['gemm_flops_per_second'] / 1e12:.2f} TFLOP/s on one core")


def floor_ms(limits, rows, context_tokens, lanes, compute_cores=1):
    moved = WEIGHT_BYTES * min(lanes, rows) + context_tokens * KV_BYTES
    return 1e3 * max(moved / limits["read_bytes_per_second"],
                     2 * PARAMETERS * rows / (compute_cores * limits["gemm_flops_per_second"]))


def parts_of(stretch, step_ms):
    """{node: {part: ms of a step}}, without what is below a hundredth of the step."""
    parts = {}
    for (node, part), share in sorted(stretch.shares.items(),
                                      key=lambda item: (item[0][1].startswith("wait"), -item[1])):
        if share >= 0.01:
            parts.setdefault(node, {})[part] = share * step_ms
    return parts


def parts_text(parts):
    return "; ".join(f"{node}: " + ", ".join(f"{part} {ms:.1f}" for part, ms in of_node.items())
                     for node, of_node in parts.items())

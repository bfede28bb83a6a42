# SPDX-License-Identifier: Apache-2.0
"""The floor of a decode step on the quick start's model, and where a step's time goes.

The floor is a sum over the ops of a step, of the larger of what an op reads over the read bandwidth and what it computes over the GEMM
peak, both measured next to it. Layers and the LM head read weights in the bytes in which they lie, and attention K and V of all rows.

  one node    the sum over all ops, on both cores
  two pools   the larger of two sums: layers and LM head, once for each lane, on the compute node's core; attention on the memory nodes' core
"""

import dataclasses
import json
import re
import subprocess
import sys
import tempfile

from programs import program

LAYERS = 30  # SmolLM2-135M.
# Matrices of a step: how many there are, inputs, features. The LM head is the embedding.
MATRICES = ((LAYERS, 576, 960), (LAYERS, 576, 576), (LAYERS, 576, 3072), (LAYERS, 1536, 576), (1, 576, 49152))
PARAMETERS = sum(count * inputs * features for count, inputs, features in MATRICES)
EMBEDDING_BYTES = 2 * 576 * 49152  # In bf16.
KV_BYTES = 23040  # A token, in all layers.
ATTENTION_FLOPS = 4 * 9 * 64 * LAYERS  # A token of context: 9 query heads of 64.
COMPUTE_CORE, MEMORY_CORE = 0, 1  # Where the two pools run, and the one node on both.
REPEATS = 2  # Measurements of reads next to a point.
ROWS_OF_MANY = 16
# The floor / step that is asked for from ROWS_OF_MANY rows on, and below.
BAR_OF_MANY, BAR_OF_FEW = 0.75, 0.55


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """What a floor has to know of the cluster whose step it is."""
    weight_bytes: float  # Read by a pass over all layers.
    lanes: int = 1  # In use.
    policy: str = "local"  # Else attention is on memory nodes.

    @property
    def pools(self):
        return self.policy != "local"


def measured(*arguments):
    """What lamina-bench-bounds finds. Errors: RuntimeError, where it ends badly; it has said why."""
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run([program("lamina-bench-bounds"), "--cores", f"{COMPUTE_CORE},{MEMORY_CORE}", "--json", out.name, *arguments],
                              check=False, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"lamina-bench-bounds ended with exit status {done.returncode}")
        return json.load(open(out.name))


def bounds():
    """Read bandwidth (bytes/s) of both cores and of each, and the GEMM peak (flop/s) of each; the best core's too. Ends the suite where
    there is none to be had."""
    try:
        return measured()
    except RuntimeError as error:
        sys.exit(str(error))


def reads_now(limits):
    """`limits` with the reads of now. Errors: RuntimeError, and a suite goes on with its other points."""
    found = measured("--reads-alone", "--repeats", str(REPEATS))
    cores = [{**of, "read_bytes_per_second": now["read_bytes_per_second"]} for of, now in zip(limits["cores"], found["cores"])]
    return {**limits, "read_bytes_per_second": found["read_bytes_per_second"], "cores": cores}


def better_reads(before, after):
    """The better reads of what was measured before a point and behind it."""
    cores = [max(pair, key=lambda core: core["read_bytes_per_second"]) for pair in zip(before["cores"], after["cores"])]
    return {**after, "read_bytes_per_second": max(before["read_bytes_per_second"], after["read_bytes_per_second"]), "cores": cores}


def bounds_text(limits):
    cores = " and ".join(f"{core['read_bytes_per_second'] / 1e9:.1f}" for core in limits["cores"])
    return (f"bandwidth {limits['read_bytes_per_second'] / 1e9:.1f} GB/s on both cores, {cores} on one, "
            f"GEMM {limits['gemm_flops_per_second'] / 1e12:.2f} TFLOP/s on one core")


def forms_of(node):
    """The forms in which a compute node holds its weights, in its own words."""
    return node.get("kernels", "").partition(", weights ")[2]


def read_weights(node):
    """Bytes of a compute node's weights that a pass over all layers reads. With INT8 the embedding lies there as bf16 too, next to the
    LM head made of it, and no pass reads it."""
    return node["weight_bytes"] - (EMBEDDING_BYTES if re.search(r"\bint8\b", forms_of(node)) else 0)


def lanes_of(choice):
    """Lanes in use: what `lane_choice` of the cluster's status begins with."""
    found = re.match(r"\d+", choice)
    return int(found[0]) if found else 1


def arrangement_of(running):
    """What a cluster is that has been measured; `lane_choice` is of the load."""
    status = running.status()
    node = next(node for node in status["nodes"] if node["role"] == "compute")
    lanes = 1 if status["policy"] == "local" else lanes_of(running.lane_choice)
    return Arrangement(read_weights(node), lanes, status["policy"])


def dense_seconds(rows, weight_bytes, read, peak):
    """A pass over all layers and the LM head. Bytes of a matrix are its share of all."""
    seconds = 0.0
    for count, inputs, features in MATRICES:
        parameters = count * inputs * features
        seconds += max(weight_bytes * parameters / PARAMETERS / read, 2 * rows * parameters / peak)
    return seconds


def attention_seconds(context_tokens, read, peak):
    return context_tokens * max(KV_BYTES / read, ATTENTION_FLOPS / peak)


def floor_ms(limits, rows, context_tokens, arrangement):
    """`context_tokens`: of all rows."""
    peaks = [core["gemm_flops_per_second"] for core in limits["cores"]]
    if not arrangement.pools:
        read, peak = limits["read_bytes_per_second"], sum(peaks)
        return 1e3 * (dense_seconds(rows, arrangement.weight_bytes, read, peak) + attention_seconds(context_tokens, read, peak))
    passes = max(1, min(arrangement.lanes, rows))
    reads = [core["read_bytes_per_second"] for core in limits["cores"]]
    dense = passes * dense_seconds(rows / passes, arrangement.weight_bytes, reads[0], peaks[0])
    return 1e3 * max(dense, attention_seconds(context_tokens, reads[1], peaks[1]))


def bar_of(rows):
    return BAR_OF_MANY if rows >= ROWS_OF_MANY else BAR_OF_FEW


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

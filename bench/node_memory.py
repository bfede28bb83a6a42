# SPDX-License-Identifier: Apache-2.0
"""The memory of a compute node: as it accounts for it, and as its process has it."""

import dataclasses
import pathlib
import time

KIB = 2**10
REPORT_SECONDS = 0.2  # Nodes report at times of their own.


@dataclasses.dataclass
class NodeMemory:
    parts: dict  # "weights", "windows", "kv", "activations" -> bytes
    resident: int

    @property
    def accounted(self):
        return sum(self.parts.values())


def of(running, name):
    """`running`: a cluster.Cluster. Without pages of files: the model's file stays in the page cache, whoever reads it."""
    while True:
        node = next(node for node in running.status()["nodes"] if node["name"] == name)
        if all(node["memory_bytes"].get(part) for part in ("weights", "activations")):  # The latter are known when an epoch has been prepared.
            break
        time.sleep(REPORT_SECONDS)
    lines = pathlib.Path(f"/proc/{running.pid(name)}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return NodeMemory(node["memory_bytes"], sum(KIB * int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem")))

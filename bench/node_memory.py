# SPDX-License-Identifier: Apache-2.0
"""The memory of a compute node, whatever the policy: as it accounts for it, and the most that its process has had.

    with cluster.Cluster(...) as running, node_memory.Peak(running, "c0") as peak:
        ...  # The load.
        memory = node_memory.of(running, "c0", peak)
"""

import dataclasses
import pathlib
import threading
import time

KIB = 2**10
REPORT_SECONDS = 0.2  # Nodes report at times of their own.
SAMPLE_SECONDS = 0.02  # What weighs lives for a step or an epoch.


def resident(status):
    """Bytes by a process's status, without pages of files: the program's text and the model's file stay in the page cache, whoever reads them."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return sum(KIB * int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem"))


class Peak:
    """The most that a node's process has had resident since this was entered, by samples: the kernel's own peak (VmHWM) has the pages of files in it, and
    those that were mapped while the model was loaded."""

    def __init__(self, running, name):
        self.path = pathlib.Path(f"/proc/{running.pid(name)}/status")
        self.bytes = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def sample(self):
        self.bytes = max(self.bytes, resident(self.path.read_text()))

    def watch(self):
        while not self.ended.wait(SAMPLE_SECONDS):
            try:
                self.sample()
            except OSError:  # The process has ended.
                return

    def __enter__(self):
        self.sample()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()


@dataclasses.dataclass
class NodeMemory:
    parts: dict  # "weights", "windows", "kv", "activations" -> bytes
    resident: int  # The peak; 0: not watched.

    @property
    def accounted(self):
        return sum(self.parts.values())


def of(running, name, peak=None):
    """`running`: a cluster.Cluster. Parts do not change while an epoch lasts."""
    while True:
        node = next(node for node in running.status()["nodes"] if node["name"] == name)
        if all(node["memory_bytes"].get(part) for part in ("weights", "activations")):  # The latter are known when an epoch has been prepared.
            break
        time.sleep(REPORT_SECONDS)
    return NodeMemory(node["memory_bytes"], peak.bytes if peak else 0)

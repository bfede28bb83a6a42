# SPDX-License-Identifier: Apache-2.0
"""The memory of a compute node on processors, whatever the policy: as it accounts for it, and the most that its process has had.

    with cluster.Cluster(...) as running, node_memory.Peak(running, "c0") as peak:
        ...  # The load.
        memory = node_memory.of(running, "c0", peak)
"""

import dataclasses
import os
import pathlib
import threading
import time

KIB = 2**10
WINDOW = "/memfd:lamina"  # Regions of transport shm.
REPORT_SECONDS = 0.2  # Nodes report at times of their own.
SAMPLE_SECONDS = 0.02  # What weighs lives for a step or an epoch.


def fields_of(status):
    """(Anonymous memory, shared memory) in bytes by a process's status, without pages of files: the program's text and the model's file stay in the page
    cache, whoever reads them."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return tuple(KIB * int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem"))


def others_windows(process):
    """Bytes of other nodes' windows that a process has mapped whole, to put into them over shm. The memory is their owners', who hold its files open, as a
    sender does not."""
    own = set()
    for file in (process / "fd").iterdir():
        try:
            if os.readlink(file).startswith(WINDOW):
                own.add(file.stat().st_ino)
        except OSError:  # It has been closed.
            pass
    windows = 0
    for line in (process / "maps").read_text().splitlines():
        span, mode, _, _, file, *name = line.split(maxsplit=5)
        if mode.endswith("s") and name and name[0].startswith(WINDOW) and int(file) not in own:
            begin, end = (int(address, 16) for address in span.split("-"))
            windows += end - begin
    return windows


class Peak:
    """The most that a node's process has had resident of its own since this was entered, by samples: the kernel's own peak (VmHWM) has the pages of files
    in it, those that were mapped while the model was loaded, and other nodes' windows."""

    def __init__(self, running, name):
        self.process = pathlib.Path(f"/proc/{running.pid(name)}")
        self.bytes = 0
        self.shared = None  # Bytes of shared memory when others' windows were added up.
        self.others = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def fields(self):
        return fields_of((self.process / "status").read_text())

    def sample(self):
        anonymous, shared = self.fields()
        if shared != self.shared:  # Windows have come or gone. A list of mappings takes far longer to read.
            others = others_windows(self.process)
            if self.fields()[1] != shared:
                return  # Or do so now: the next sample tells.
            self.shared, self.others = shared, others
        self.bytes = max(self.bytes, anonymous + shared - self.others)

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

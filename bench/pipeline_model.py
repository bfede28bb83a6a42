# SPDX-License-Identifier: Apache-2.0
"""Event simulation of lanes over one compute and one memory device: the bound that a pipeline's measured step is judged by.

Each lane runs, in turn, a slice on the compute device and an attention on the memory device for every layer, then the LM
head in chunks on the compute device. A device takes the waiting unit whose lane has run fewest of the step (lanes take turns)
and runs it to its end. Both devices read one memory: while both run and want more bytes a second than there are, each is
slowed by the same factor.
"""

import dataclasses
import math


@dataclasses.dataclass
class Times:
    """Of one lane's units, each alone on the machine: seconds, and bytes that it reads from memory."""

    slice_seconds: float
    attention_seconds: float
    head_seconds: float
    slice_bytes: float
    attention_bytes: float
    head_bytes: float


COMPUTE, MEMORY = 0, 1


def units_of_step(times, layers, head_chunks):
    """[(device, seconds, bytes)] of one lane's step."""
    units = []
    for _ in range(layers):
        units.append((COMPUTE, times.slice_seconds, times.slice_bytes))
        units.append((MEMORY, times.attention_seconds, times.attention_bytes))
    units += [(COMPUTE, times.head_seconds / head_chunks, times.head_bytes / head_chunks)] * head_chunks
    return units


def step_seconds(times, lanes, layers, bandwidth, head_chunks=8, steps=6):
    """Mean time of a step in which every lane makes one, from the second step on. `bandwidth`: bytes a second of
    both devices together."""
    units = units_of_step(times, layers, head_chunks)
    done = [0] * lanes          # Units, in all.
    running = [None, None]      # Of each device: [lane, seconds left].
    now, begin = 0.0, None
    while min(done) < steps * len(units):
        for device in (COMPUTE, MEMORY):
            if running[device] is None:
                ready = [lane for lane in range(lanes)
                         if units[done[lane] % len(units)][0] == device
                         and all(other is None or other[0] != lane for other in running)]
                if ready:
                    lane = min(ready, key=lambda one: done[one])
                    running[device] = [lane, units[done[lane] % len(units)][1]]
        active = [one for one in running if one is not None]
        wanted = sum(units[done[lane] % len(units)][2] / max(units[done[lane] % len(units)][1], 1e-12)
                     for lane, _ in active)
        speed = min(1.0, bandwidth / wanted) if len(active) > 1 and wanted > 0 else 1.0
        span = min(left for _, left in active) / speed
        now += span
        for device in (COMPUTE, MEMORY):
            one = running[device]
            if one is None:
                continue
            one[1] -= span * speed
            if one[1] <= 1e-12 or math.isclose(one[1], 0.0, abs_tol=1e-12):
                done[one[0]] += 1
                running[device] = None
        if begin is None and min(done) >= len(units):
            begin = now, sum(done)
    return (now - begin[0]) / (sum(done) - begin[1]) * len(units) * lanes

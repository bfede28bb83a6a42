# SPDX-License-Identifier: Apache-2.0
"""Event simulation of lanes over one compute and one memory device: the bound that a pipeline's measured step is judged by.

Each lane runs, in turn, a slice on the compute device and an attention on the memory device for every layer, then the LM
head in chunks on the compute device. A device takes the waiting unit whose lane has run fewest of the step (lanes take turns)
and runs it to its end. Both devices share a machine, its memory above all: while both run, each is slower by a factor of its
own, which lamina-bench-contention measures on the same kernels without a pipeline.
"""

import dataclasses


@dataclasses.dataclass
class Times:
    """Of one lane's units, each alone on the machine, in seconds; and by how much slower they are with the other device's."""

    slice_seconds: float
    attention_seconds: float
    head_seconds: float
    compute_slower: float = 1.0
    memory_slower: float = 1.0


COMPUTE, MEMORY = 0, 1


def units_of_step(times, layers, head_chunks):
    """[(device, seconds)] of one lane's step."""
    units = []
    for _ in range(layers):
        units.append((COMPUTE, times.slice_seconds))
        units.append((MEMORY, times.attention_seconds))
    units += [(COMPUTE, times.head_seconds / head_chunks)] * head_chunks
    return units


def step_seconds(times, lanes, layers, head_chunks=8, steps=6):
    """Mean time of a step in which every lane makes one, from the second step on."""
    units = units_of_step(times, layers, head_chunks)
    slower = {COMPUTE: max(1.0, times.compute_slower), MEMORY: max(1.0, times.memory_slower)}
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
        active = [device for device in (COMPUTE, MEMORY) if running[device] is not None]
        speed = {device: 1 / slower[device] if len(active) > 1 else 1.0 for device in active}
        span = min(running[device][1] / speed[device] for device in active)
        now += span
        for device in active:
            one = running[device]
            one[1] -= span * speed[device]
            if one[1] <= 1e-12:
                done[one[0]] += 1
                running[device] = None
        if begin is None and min(done) >= len(units):
            begin = now, sum(done)
    return (now - begin[0]) / (sum(done) - begin[1]) * len(units) * lanes

# SPDX-License-Identifier: Apache-2.0
"""What becomes of a load that needs more slots than a memory node has, step by step as the scheduler makes them, without a cluster.

All requests come at once. A step has a row for each sequence that decodes, which takes a slot, and prompts in what is left of its tokens. Where
no slot is left the last sequence in order gives its own up, and is computed again when it joins: when there are slots for all its tokens, and
some for each sequence that runs.
"""

import dataclasses

STEP_TOKENS = 512  # Rows and tokens of prompts; twice the rows where that is more.
HEADROOM = 16  # Slots that whoever joins leaves for each that runs.


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of a step with rows: for itself, for each row, and for each token that rows attend to; and of each token of a prompt."""

    step: float
    row: float
    context: float
    prompt: float

    def of(self, rows, context, prompt):
        return (self.step + self.row * rows + self.context * context if rows else 0.0) + self.prompt * prompt


@dataclasses.dataclass(frozen=True)
class Outcome:
    seconds: float
    computed_again: int
    preemptions: int


@dataclasses.dataclass
class Sequence:
    tokens: int
    slots: int = 0
    left: int = 0  # Tokens that are to be computed before it decodes.

    def compute(self, most):
        """So many of its tokens, at most; the last one brings the next. Returns how many."""
        count = min(most, self.left)
        self.left -= count
        if count and not self.left:
            self.tokens += 1
        return count


def determinant(matrix):
    (a, b, c), (d, e, f), (g, h, i) = matrix
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def times_through(points, prompt_rate):
    """Through three points of (rows, tokens that they attend to, seconds). What comes out negative is nothing."""
    matrix = [[1.0, rows, context] for rows, context, _ in points]
    whole = determinant(matrix)
    found = []
    for column in range(3):
        replaced = [[points[row][2] if at == column else matrix[row][at] for at in range(3)] for row in range(3)]
        found.append(max(determinant(replaced) / whole, 0.0))
    return Times(*found, 1 / prompt_rate)


def outcome_of(rows, context, output, slots, times):
    """Of so many requests with prompts and answers of these lengths."""
    if slots < context + output:
        raise ValueError(f"{slots} slots have no room for a sequence of {context + output} tokens")
    sequences = [Sequence(context) for _ in range(rows)]  # In order; the first `joined` run.
    joined, free, seconds, computed, preemptions = 0, slots, 0.0, 0, 0
    while sequences:
        decoding = attended = 0
        for index, one in enumerate(sequences):
            if index >= joined or one.left:
                continue
            while not free and joined > index:
                joined -= 1
                free += sequences[joined].slots
                sequences[joined].slots = sequences[joined].left = 0
                preemptions += 1
            if index < joined:
                free -= 1
                one.slots += 1
                one.tokens += 1
                decoding += 1
                attended += one.tokens
        left = max(STEP_TOKENS, 2 * rows) - decoding
        prompt = 0
        for one in sequences[:joined]:
            prompt += one.compute(left - prompt)
        while joined < len(sequences) and prompt < left and free >= min(sequences[joined].tokens + 1 + HEADROOM * joined, slots):
            one = sequences[joined]
            one.slots = one.left = one.tokens
            free -= one.slots
            joined += 1
            prompt += one.compute(left - prompt)
        computed += prompt
        seconds += times.of(decoding, attended, prompt)
        ended = [one for one in sequences[:joined] if one.tokens >= context + output and not one.left]
        free += sum(one.slots for one in ended)
        joined -= len(ended)
        sequences = [one for one in sequences if one.tokens < context + output or one.left]
    return Outcome(seconds, computed - rows * context, preemptions)

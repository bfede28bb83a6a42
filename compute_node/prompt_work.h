// SPDX-License-Identifier: Apache-2.0
//
// PromptWork: the prompt tokens of a step as work, and how long peers are waited for that may be
// busy with it.
//
// Prompt tokens come as chunks, which attend on a compute node, and as rows, which attend as decode
// rows do, at memory nodes if these attend (docs/adr/0106-prompts-longer-than-the-scratch.md).
// Whoever waits does not ask where: both count alike.

#pragma once

#include <cstdint>

#include "common/clock.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

struct PromptWork {
  int64_t tokens = 0;
  // Pairs of a token and one that it attends to, in a layer without a window. Every token counts as
  // if it attended up to the end of its chunk.
  int64_t pairs = 0;

  PromptWork& operator+=(const PromptWork& other) {
    tokens += other.tokens;
    pairs += other.pairs;
    return *this;
  }
  friend bool operator==(const PromptWork&, const PromptWork&) = default;
};

// Chunks, and adjacent rows that are consecutive tokens of one sequence. A row without such a
// neighbour counts as a decode row, whatever it is.
PromptWork PromptWorkOf(const plan::StepPlan& plan);

// How long a lane waits for outputs of attention, for one layer, while steps with this work run.
// `timeout` is what it waits without prompts.
Nanos OutputsTimeout(const PromptWork& running, Nanos timeout);

// How long a lane waits for another compute node, whose visit may be all of the model's `layers`
// and come behind the other lanes' visits. In each layer it computes the tokens, and attends or
// waits for outputs itself: so this is longer than OutputsTimeout(), and memory nodes are given up
// on first. Requires: layers >= 1.
Nanos ReplicaTimeout(const PromptWork& running, int64_t layers, Nanos timeout);

}  // namespace lamina::compute_node

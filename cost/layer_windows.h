// SPDX-License-Identifier: Apache-2.0
//
// LayerWindows: how much of a context the layers of a model see. A layer with a sliding window sees
// the last tokens alone, so that a step's attention costs the mean over the layers of
// min(context, window), and not the context.
//
// Determinism: whole numbers; same arguments, same answers.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"

namespace lamina::cost {

class LayerWindows {
 public:
  // Every layer sees everything.
  LayerWindows() = default;
  explicit LayerWindows(absl::Span<const AttentionDescriptor> layers);

  // No layer has a window.
  bool empty() const { return windows_.empty(); }
  // The longest window where every layer has one, else 0: tokens behind it are seen by none.
  uint32_t longest() const;

  // How many of tokens [first, end) of a context of `context` tokens its last token sees: the mean
  // over the layers, rounded down.
  uint64_t SeenIn(uint64_t first, uint64_t end, uint64_t context) const;
  uint64_t SeenOf(uint64_t context) const { return SeenIn(0, context, context); }

 private:
  struct Layers {
    uint32_t window = 0;
    uint32_t count = 0;
  };
  std::vector<Layers> windows_;  // By window, ascending.
  uint32_t without_ = 0;         // Layers that see everything.
  uint32_t layers_ = 0;
};

}  // namespace lamina::cost

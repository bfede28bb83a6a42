// SPDX-License-Identifier: Apache-2.0
#include "cost/layer_windows.h"

#include <algorithm>
#include <map>

namespace lamina::cost {

LayerWindows::LayerWindows(absl::Span<const AttentionDescriptor> layers)
    : layers_(static_cast<uint32_t>(layers.size())) {
  std::map<uint32_t, uint32_t> counts;
  for (const AttentionDescriptor& layer : layers) {
    ++(layer.window == 0 ? without_ : counts[layer.window]);
  }
  for (const auto& [window, count] : counts) {
    windows_.push_back({.window = window, .count = count});
  }
}

uint32_t LayerWindows::longest() const {
  return empty() || without_ > 0 ? 0 : windows_.back().window;
}

uint64_t LayerWindows::SeenIn(uint64_t first, uint64_t end, uint64_t context) const {
  if (empty()) {
    return end - first;
  }
  uint64_t seen = without_ * (end - first);
  for (const Layers& layers : windows_) {
    const uint64_t begin = std::max(first, context - std::min<uint64_t>(context, layers.window));
    seen += layers.count * (end - std::min(begin, end));
  }
  return seen / layers_;
}

}  // namespace lamina::cost

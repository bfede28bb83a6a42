// SPDX-License-Identifier: Apache-2.0
#include "coordinator/recompute_bytes.h"

#include "cost/recompute_layer.h"

namespace lamina::coordinator {

core::RecomputeBytes RecomputeBytesOf(const FetchOptions& fetch, const EngineOptions& options) {
  const auto nodes = std::count_if(options.nodes.begin(), options.nodes.end(),
                                   [](const auto& node) { return node.is_memory; });
  return {.kv = static_cast<double>(KvBytesPerToken(options.layers)) /
                static_cast<double>(options.layers.size()),
          .activation = static_cast<double>(fetch.activation_width * sizeof(BFloat16)),
          .room = cost::RoomForNextLayer({.bytes = static_cast<double>(fetch.bytes),
                                          .lanes = static_cast<double>(options.scheduler.lanes),
                                          .memory_nodes = static_cast<double>(nodes)})};
}

}  // namespace lamina::coordinator

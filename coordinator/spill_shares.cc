// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spill_shares.h"

#include <algorithm>

#include "plan/spill_blocks.h"

namespace lamina::coordinator {

core::SpillShare SpillShareOf(const std::vector<NodeTier>& nodes) {
  core::SpillShare share{.blocks = UINT32_MAX, .nodes = static_cast<uint32_t>(nodes.size())};
  double write_seconds = 0;  // The slowest node's for a token.
  double read_seconds = 0;
  for (const NodeTier& node : nodes) {
    const control::SpillTier& tier = node.tier;
    if (tier.capacity_bytes == 0 || !(tier.write_bytes_per_second > 0) ||
        !(tier.read_bytes_per_second > 0)) {
      return {};
    }
    const uint64_t blocks = tier.capacity_bytes / plan::SpillBlockBytes(node.bytes_per_token);
    share.blocks = static_cast<uint32_t>(std::min<uint64_t>(share.blocks, blocks));
    const auto bytes = static_cast<double>(node.bytes_per_token);
    share.rates.bytes_per_token += bytes;
    write_seconds = std::max(write_seconds, bytes / tier.write_bytes_per_second);
    read_seconds = std::max(read_seconds, bytes / tier.read_bytes_per_second);
  }
  share.rates.write_bytes_per_second = share.rates.bytes_per_token / write_seconds;
  share.rates.read_bytes_per_second = share.rates.bytes_per_token / read_seconds;
  return share;
}

}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/head_shares.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::core {
namespace {

constexpr uint64_t kSlotsMax = uint64_t{1} << 31;

// One KV head of each layer.
std::vector<AttentionDescriptor> OneHead(absl::Span<const AttentionDescriptor> layers) {
  std::vector<AttentionDescriptor> heads;
  for (const AttentionDescriptor& layer : layers) {
    heads.push_back(PartOf(layer, {.count = 1}));
  }
  return heads;
}

double Speed(const HeadNode& node) { return node.bandwidth > 0 ? node.bandwidth : 1.0; }

absl::Status CheckCounts(absl::Span<const AttentionDescriptor> layers, size_t nodes) {
  for (const AttentionDescriptor& layer : layers) {
    if (layer.kv_heads != layers[0].kv_heads) {
      return absl::InvalidArgumentError(absl::StrCat("partition head: the model's layers have ",
                                                     layers[0].kv_heads, " and ", layer.kv_heads,
                                                     " KV heads; choose partition request"));
    }
  }
  if (nodes > layers[0].kv_heads) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition head: ", nodes, " memory nodes, but the model has ",
                     layers[0].kv_heads, " KV heads; take away nodes or choose partition request"));
  }
  return absl::OkStatus();
}

// How many heads each node has room for. Errors: kFailedPrecondition  see ShareHeads().
absl::StatusOr<std::vector<uint64_t>> RoomOf(absl::Span<const HeadNode> nodes, uint64_t least,
                                             uint32_t heads, uint32_t tokens_least) {
  std::vector<uint64_t> room;
  uint64_t sum = 0;
  for (const HeadNode& node : nodes) {
    room.push_back(node.capacity_bytes / least);
    sum += room.back();
    if (room.back() == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "partition head: memory node ", node.name, " has ", FormatBytes(node.capacity_bytes),
          ", too little for its share: one KV head of one request of ", tokens_least,
          " tokens (limits.sequence_tokens_max) takes ", FormatBytes(least),
          "; raise its capacity or lower the limit"));
    }
  }
  if (sum < heads) {
    return absl::FailedPreconditionError(absl::StrCat(
        "partition head: the memory nodes ",
        absl::StrJoin(nodes, ", ", [](std::string* out, const HeadNode& n) { *out += n.name; }),
        " have room for ", sum, " of ", heads, " KV heads of one request of ", tokens_least,
        " tokens (limits.sequence_tokens_max); raise their capacities or lower the limit"));
  }
  return room;
}

}  // namespace

absl::StatusOr<HeadSplit> ShareHeads(absl::Span<const AttentionDescriptor> layers,
                                     absl::Span<const HeadNode> nodes, uint32_t tokens_least,
                                     const KvLayout& layout, uint64_t more_bytes) {
  LAMINA_RETURN_IF_ERROR(CheckCounts(layers, nodes.size()));
  const uint32_t heads = layers[0].kv_heads;
  const std::vector<AttentionDescriptor> head = OneHead(layers);
  LAMINA_ASSIGN_OR_RETURN(
      const std::vector<uint64_t> room,
      RoomOf(nodes, layout.CapacityFor(tokens_least, head) + tokens_least * more_bytes, heads,
             tokens_least));
  std::vector<uint32_t> counts(nodes.size(), 1);
  const auto time_with = [&](size_t node, uint32_t count) { return count / Speed(nodes[node]); };
  for (size_t given = nodes.size(); given < heads; ++given) {
    std::optional<size_t> best;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (counts[i] < room[i] &&
          (!best || time_with(i, counts[i] + 1) < time_with(*best, counts[*best] + 1))) {
        best = i;
      }
    }
    ++counts[*best];
  }
  HeadSplit split{.heads = ConsecutiveRanges(counts)};
  uint64_t slots = UINT64_MAX;
  double longest = 0;
  double speed = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const uint64_t capacity = nodes[i].capacity_bytes / counts[i];
    if (const uint64_t own = more_bytes == 0 ? layout.SlotsIn(capacity, head)
                                             : capacity / (layout.SlotBytes(head) + more_bytes);
        own < slots) {
      slots = own;
      split.tightest = static_cast<uint32_t>(i);
    }
    longest = std::max(longest, time_with(i, counts[i]));
    speed += Speed(nodes[i]);
  }
  split.slots = static_cast<uint32_t>(std::min(slots, kSlotsMax));
  split.imbalance = longest / (heads / speed);
  return split;
}

std::string DescribeSplit(const HeadSplit& split, absl::Span<const HeadNode> nodes) {
  std::vector<std::string> parts;
  uint32_t heads = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    parts.push_back(absl::StrCat(nodes[i].name, " ", split.heads[i].count));
    heads += split.heads[i].count;
  }
  return absl::StrFormat(
      "%s of %d KV heads; the slowest takes %.2f times an even split's time; %s has the least room",
      absl::StrJoin(parts, ", "), heads, split.imbalance, nodes[split.tightest].name);
}

}  // namespace lamina::core

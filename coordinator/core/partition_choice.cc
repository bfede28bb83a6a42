// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/partition_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "coordinator/core/scheduler_options.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {
namespace {

// Heads may keep the slowest node busy for so much longer than an even split would.
constexpr double kImbalanceMax = 1.25;

// What the longest request needs at once, cut into spans of so many tokens or, with 0, not.
uint32_t SlotsOfLongest(const PartitionNeeds& needs, uint32_t span_tokens) {
  return SchedulerOptions{.span_tokens = span_tokens, .windows = cost::LayerWindows(needs.layers)}
      .SlotsAtOnce(needs.sequence_tokens_max);
}

absl::Status CheckWholeSequences(const PartitionNeeds& needs) {
  const uint32_t slots = SlotsOfLongest(needs, 0);
  for (const HeadNode& node : needs.nodes) {
    const uint64_t room = needs.layout.SlotsIn(node.capacity_bytes, needs.layers);
    if (room < slots) {
      return absl::FailedPreconditionError(absl::StrCat(
          "partition request: memory node ", node.name, " has ", FormatBytes(node.capacity_bytes),
          ": room for ", room, " tokens, but one request may have ", slots,
          " (limits.sequence_tokens_max); raise its capacity to ",
          FormatBytes(needs.layout.CapacityFor(slots, needs.layers)), " or lower the limit"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokenRanges(const PartitionNeeds& needs) {
  std::vector<MemoryNodeShare> shares;
  for (const HeadNode& node : needs.nodes) {
    const uint64_t slots = needs.slot_bytes > 0
                               ? node.capacity_bytes / needs.slot_bytes
                               : needs.layout.SlotsIn(node.capacity_bytes, needs.layers);
    shares.push_back(
        {.name = node.name,
         .slots = static_cast<uint32_t>(std::min<uint64_t>(slots, uint64_t{1} << 31))});
  }
  const uint32_t span_tokens = SpanTokensFor(needs.sequence_tokens_max);
  return CheckSpans(shares, span_tokens, SlotsOfLongest(needs, span_tokens));
}

absl::StatusOr<HeadSplit> SplitHeads(const PartitionNeeds& needs) {
  const uint32_t slots = SlotsOfLongest(needs, 0) + needs.slot_block - 1;
  return ShareHeads(needs.layers, needs.nodes, slots / needs.slot_block * needs.slot_block,
                    needs.layout, needs.more_bytes);
}

}  // namespace

absl::Status CheckPartition(Partition partition, const PartitionNeeds& needs) {
  switch (partition) {
    case Partition::kRequest:
      return CheckWholeSequences(needs);
    case Partition::kHead:
      return SplitHeads(needs).status();
    case Partition::kTokenRange:
      return CheckTokenRanges(needs);
    case Partition::kAuto:
      return ChoosePartition(needs).status();
  }
  return absl::InternalError("no such partition");
}

absl::StatusOr<PartitionChoice> ChoosePartition(const PartitionNeeds& needs) {
  const size_t nodes = needs.nodes.size();
  const absl::Status whole = CheckWholeSequences(needs);
  if (whole.ok() && nodes == 1) {
    return PartitionChoice{Partition::kRequest, "there is one memory node"};
  }
  const bool few = needs.running_max < 2 * nodes;
  if (whole.ok() && !few) {
    return PartitionChoice{
        Partition::kRequest,
        absl::StrCat("every memory node has room for a request of ", needs.sequence_tokens_max,
                     " tokens, and up to ", needs.running_max, " requests keep ", nodes,
                     " nodes busy")};
  }
  const std::string reason =
      whole.ok() ? absl::StrCat("at most ", needs.running_max, " requests for ", nodes, " nodes")
                 : absl::StrCat("a request of ", needs.sequence_tokens_max,
                                " tokens does not fit into every memory node");
  const absl::StatusOr<HeadSplit> split = SplitHeads(needs);
  const absl::Status ranges = CheckTokenRanges(needs);
  if (split.ok() && (split->imbalance <= kImbalanceMax || !ranges.ok())) {
    return PartitionChoice{
        Partition::kHead,
        absl::StrFormat("%s, and the heads divide: the slowest node takes %.2f times an even "
                        "split's time",
                        reason, split->imbalance)};
  }
  if (ranges.ok()) {
    return PartitionChoice{Partition::kTokenRange,
                           absl::StrCat(reason, ", and the KV heads do not divide over the nodes")};
  }
  if (whole.ok()) {
    return PartitionChoice{Partition::kRequest,
                           absl::StrCat("neither heads nor token ranges can be spread: ",
                                        split.status().message(), "; ", ranges.message())};
  }
  return absl::FailedPreconditionError(absl::StrCat("no partition can be served: ", whole.message(),
                                                    "; ", split.status().message(), "; ",
                                                    ranges.message()));
}

}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/partition_options.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/partition.h"
#include "common/status_macros.h"
#include "coordinator/core/partition_choice.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/fetch_options.h"
#include "coordinator/hybrid_room.h"
#include "plan/fetch_pieces.h"

namespace lamina::coordinator {
namespace {

// Whether the form of K and V is served with the partition that `auto` chose. One by name has been
// refused with the file.
absl::Status CheckKvOfAuto(const ClusterConfig& config, const EngineOptions& options) {
  const bool served = !config.KeepsInt8() || (!config.HasBothForms() && !config.Fetches());
  if (options.partition != Partition::kTokenRange || served) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "partition: auto chose token_range (", options.partition_why,
      "), which this version does not serve with ",
      config.HasBothForms() ? "several forms of kv" : "kv int8 and policies that fetch",
      "; set it to request or head, or give memory nodes more capacity"));
}

// Whether spill tiers are served with the partition that `auto` chose. One by name has been refused
// with the file.
absl::Status CheckSpillOfAuto(const ClusterConfig& config, const EngineOptions& options) {
  if (config.partition != Partition::kAuto || !config.Spills()) {
    return absl::OkStatus();
  }
  if (options.partition == Partition::kTokenRange && config.KeepsInt8()) {
    return absl::UnimplementedError(
        absl::StrCat("partition: auto chose token_range (", options.partition_why,
                     "), which this version does not serve with memory.N.spill and kv int8; set kv "
                     "to bf16, give memory nodes more capacity, or leave spill out"));
  }
  const bool all =
      std::all_of(config.memory.begin(), config.memory.end(),
                  [](const MemoryNodeConfig& node) { return !node.spill.path.empty(); });
  if (options.partition == Partition::kHead && !all) {
    return absl::InvalidArgumentError(
        absl::StrCat("partition: auto chose head (", options.partition_why,
                     "), which spreads each token over all memory nodes, so all of them have a "
                     "spill or none has; give each a memory.N.spill, leave it out of all, or set "
                     "partition to request"));
  }
  return absl::OkStatus();
}

}  // namespace

bool KeepsKvOnCompute(const ClusterConfig& config) {
  return config.policy == kPolicyLocal ||
         (config.policy == kPolicyAuto && config.compute[0].capacity_bytes > 0);
}

absl::Status SettlePartition(const ClusterConfig& config, EngineOptions& options) {
  const uint32_t tokens_max = options.scheduler.sequence_tokens_max;
  core::PartitionNeeds needs{.layers = options.layers,
                             .sequence_tokens_max = tokens_max,
                             .running_max = options.scheduler.running_max,
                             .layout = options.kv};
  if (KeepsKvOnCompute(config) ||
      config.policy == kPolicyAuto) {  // Each node has room for a request, or is refused.
    options.partition = Partition::kRequest;
    return absl::OkStatus();
  }
  for (const MemoryNodeConfig& node : config.memory) {
    needs.nodes.push_back({.name = node.name, .capacity_bytes = node.capacity_bytes});
  }
  options.partition = config.partition;
  // Activations, and tokens that are named, are spread where the file says so alone: what is made
  // again needs all nodes, and all of them are told of a token.
  const bool activations = options.fetch.activation_width > 0;
  if (activations) {
    needs.slot_block = WholeSlots(options.fetch, 1);
    const uint64_t kv = KvBytesPerToken(options.layers);
    needs.more_bytes =
        HeadBytesBesidesKv(options.fetch, options.layers.size(), kv, options.layers[0].kv_heads,
                           WholeSlots(options.fetch, options.scheduler.SlotsAtOnce(tokens_max)));
    needs.slot_bytes = SlotBytes(options.fetch, options.layers.size(), kv);
  }
  if ((activations || options.fetch.sparse_ratio > 0) && config.partition == Partition::kAuto) {
    options.partition = Partition::kRequest;
  } else if (config.partition == Partition::kAuto) {
    LAMINA_ASSIGN_OR_RETURN(const core::PartitionChoice choice, core::ChoosePartition(needs));
    options.partition = choice.partition;
    options.partition_why = absl::StrCat("chosen because ", choice.why);
  } else if (config.partition != Partition::kRequest) {  // There a small node is refused alone.
    LAMINA_RETURN_IF_ERROR(core::CheckPartition(config.partition, needs));
  }
  if (options.partition == Partition::kTokenRange && options.fetch.bytes > 0 &&
      !plan::ServesSpans(PathsOnMemoryNodes(options, options.fetch))) {
    return absl::UnimplementedError(
        absl::StrCat("partition: auto chose token_range (", options.partition_why,
                     "), which this version does not serve with policy ",
                     absl::StrJoin(config.Prepared(), " or "),
                     "; set it to request "
                     "or head, or give memory nodes more capacity"));
  }
  LAMINA_RETURN_IF_ERROR(CheckKvOfAuto(config, options));
  LAMINA_RETURN_IF_ERROR(CheckSpillOfAuto(config, options));
  if (options.partition == Partition::kTokenRange) {
    options.scheduler.span_tokens = core::SpanTokensFor(tokens_max);
    options.scheduler.prompt_rows_max = 0;  // A row there takes a partial for each span.
  }
  return absl::OkStatus();
}

}  // namespace lamina::coordinator

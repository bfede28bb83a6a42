// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "common/config/policy_internal.h"

namespace lamina::internal {
namespace {

absl::Status CheckLocal(const ClusterConfig& config) {
  if (!config.memory.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory: policy local keeps KV on the compute node, and ", config.memory.size(),
        " memory nodes (", config.memory[0].name, config.memory.size() > 1 ? ", ..." : "",
        ") would have nothing to do; remove them, or set policy to attend_remote"));
  }
  if (config.compute.size() > 1) {
    return absl::UnimplementedError(
        absl::StrCat("compute: ", config.compute.size(),
                     " nodes are not served by this version with policy local; it serves one, "
                     "which may have any number of cores"));
  }
  if (config.compute[0].capacity_bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute.0.capacity: missing or zero; with policy local say how many bytes "
                     "node '",
                     config.compute[0].name, "' may use for KV, like 2GiB"));
  }
  if (config.partition == Partition::kHead || config.partition == Partition::kTokenRange) {
    return absl::InvalidArgumentError(
        "partition: head and token_range spread KV over memory nodes, of which policy local has "
        "none; set it to request");
  }
  if (config.pipeline.lanes > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline.lanes: ", config.pipeline.lanes,
        " contradicts policy local: attention is never away, so a second lane would hide nothing "
        "and read the weights once more; set it to 1 or auto"));
  }
  const bool first = config.pipeline.query_first == QueryFirst::kAlways;
  if (first || (!config.pipeline.chunks_auto && config.pipeline.chunks > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pipeline.",
        first ? "query_first: always" : absl::StrCat("chunks: ", config.pipeline.chunks),
        " contradicts policy local: rows leave for no memory node; set it to auto"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPolicy(const ClusterConfig& config) {
  if (config.policy == kPolicyLocal) {
    return CheckLocal(config);
  }
  for (size_t i = 0; i < config.compute.size(); ++i) {
    if (config.compute[i].capacity_bytes > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("compute.", i, ".capacity: KV is on memory nodes with policy ",
                       config.policy, "; give it to one of them, or set policy to local"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::internal

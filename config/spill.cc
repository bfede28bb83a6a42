// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/combinations_internal.h"
#include "config/spill_internal.h"

namespace lamina {
namespace internal {
namespace {

constexpr Feature kSpill{.subject = "memory.N.spill is", .without = "leave spill out"};

absl::Status CheckKeys(const ClusterConfig& config) {
  for (size_t i = 0; i < config.memory.size(); ++i) {
    const SpillConfig& spill = config.memory[i].spill;
    if (spill.path.empty() != (spill.capacity_bytes == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "memory.", i, ".spill: ", spill.path.empty() ? "path" : "capacity",
          " is missing or zero; name the folder and how many bytes of it may be used, like "
          "{path: /var/tmp, capacity: 8GiB}, or leave spill out"));
    }
    if (config.partition == Partition::kHead &&
        spill.path.empty() != config.memory[0].spill.path.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("memory.", i,
                       ".spill: partition head spreads each token over all memory nodes, so all "
                       "of them have a spill or none has"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSpill(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckKeys(config));
  if (!config.Spills()) {
    return absl::OkStatus();
  }
  for (const std::string& policy : config.Prepared()) {
    // Activations would not come back from there, nor sums of the rows of prompts.
    if (policy != kPolicyAttendRemote && policy != kPolicyFetchHeads) {
      return NotServedTogether(kSpill, absl::StrCat("policy ", policy),
                               "use attend_remote or fetch_heads");
    }
  }
  if (config.partition == Partition::kTokenRange && config.KeepsInt8()) {
    return NotServedTogether(kSpill, "partition token_range and kv int8",
                             "set partition to request or head, or kv to bf16");
  }
  if (config.HasBothForms()) {
    return NotServedTogether(kSpill, "several forms of kv", "name one in kv");
  }
  if (config.prefill.mode == PrefillMode::kDedicated) {
    return NotServedTogether(kSpill, "prefill.mode dedicated", "set prefill.mode to inline");
  }
  return CheckNodesOnCpu(kSpill, config);
}

}  // namespace internal

bool ClusterConfig::Spills() const {
  return std::any_of(memory.begin(), memory.end(),
                     [](const MemoryNodeConfig& node) { return !node.spill.path.empty(); });
}

}  // namespace lamina

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "config/combinations_internal.h"
#include "config/kv_form_internal.h"
#include "config/replicas.h"

namespace lamina::internal {
namespace {

constexpr Feature kInt8{.subject = "kv: int8 is", .without = "set kv to bf16"};
constexpr Feature kSeveralForms{.subject = "kv: a list of forms is",
                                .without = "name one form in kv"};

// Where a node has slots of both forms, rows of both attend at memory nodes.
absl::Status CheckForms(const ClusterConfig& config) {
  if (config.kv_forms.size() > 2 ||
      (config.kv_forms.size() == 2 && config.kv_forms[0] == config.kv_forms[1])) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv: names ", KvFormName(config.kv_forms.back()), " twice; once is enough"));
  }
  if (!config.HasBothForms()) {
    return config.kv_int8_percent == ClusterConfig().kv_int8_percent
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     "kv_int8_percent: says how slots are shared by two forms of K and V, and kv "
                     "is ",
                     KvFormName(config.kv), " alone; remove it, or set kv to [bf16, int8]"));
  }
  if (config.kv_int8_percent == 0 || config.kv_int8_percent >= 100) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_int8_percent: ", config.kv_int8_percent,
        " leaves one of the forms of kv no room; set it from 1 to 99, or name one form alone"));
  }
  if (config.Prepared() != std::vector<std::string>{std::string(kPolicyAttendRemote)}) {
    return NotServedTogether(kSeveralForms,
                             absl::StrCat("policy ", absl::StrJoin(config.Prepared(), ", ")),
                             "set policy to attend_remote");
  }
  if (config.partition == Partition::kTokenRange) {
    return NotServedTogether(kSeveralForms, "partition token_range",
                             "set partition to request or head");
  }
  if (std::any_of(config.compute.begin(), config.compute.end(),
                  [&](const auto& node) { return IsStage(config, node); })) {
    return NotServedTogether(kSeveralForms, "a replica of several nodes",
                             "give every compute node the whole model");
  }
  return absl::OkStatus();
}

// Policies that fetch activations keep none: each would be as good as K and V of its token.
absl::Status CheckActivations(const ClusterConfig& config) {
  const auto none = [](absl::string_view key, bool automatic, uint32_t percent) {
    return automatic || percent == 0
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat(
                     "fetch.", key, ": ", percent,
                     " asks for activations, which with kv int8 have about as many bytes as K and "
                     "V, so that none are kept; set it to auto or 0, or kv to bf16"));
  };
  if (config.policy == kPolicyFetchRecompute && !config.RecomputesFromTokens()) {
    return none("recompute_percent", config.fetch.recompute_auto, config.fetch.recompute_percent);
  }
  return config.policy == kPolicyFetchHybrid
             ? none("activation_percent", config.fetch.activation_auto,
                    config.fetch.activation_percent)
             : absl::OkStatus();
}

}  // namespace

absl::Status CheckKvForm(const ClusterConfig& config) {
  LAMINA_RETURN_IF_ERROR(CheckForms(config));
  if (!config.KeepsInt8()) {
    return absl::OkStatus();
  }
  if (config.policy == kPolicyAuto) {
    return NotServedTogether(kInt8, "policy auto", "name a policy");
  }
  LAMINA_RETURN_IF_ERROR(CheckActivations(config));
  if (config.partition == Partition::kTokenRange && config.Fetches()) {
    return NotServedTogether(kInt8, "partition token_range and policies that fetch",
                             "set partition to request or head, or policy to attend_remote");
  }
  if (config.prefill.mode == PrefillMode::kDedicated) {
    return NotServedTogether(kInt8, "prefill.mode dedicated", "set prefill.mode to inline");
  }
  const ClusterAttention attention = config.attention.Named();
  if (attention.HasBf16()) {
    return NotServedTogether(kInt8, "attention in pairs or tiles",
                             "set attention.decode and attention.prefill to auto or canonical");
  }
  return CheckNodesOnCpu(kInt8, config);
}

}  // namespace lamina::internal

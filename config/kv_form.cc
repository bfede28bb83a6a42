// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/kv_form_internal.h"

namespace lamina::internal {
namespace {

absl::Status NotServed(absl::string_view with, absl::string_view remedy) {
  return absl::UnimplementedError(absl::StrCat("kv: int8 is not served by this version with ", with,
                                               "; ", remedy, ", or set kv to bf16"));
}

template <typename Node>
absl::Status CheckDevices(absl::string_view list, const std::vector<Node>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].device != "cpu") {
      return NotServed(absl::StrCat(list, ".", i, ".device ", nodes[i].device),
                       "put every node on cpu");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckKvForm(const ClusterConfig& config) {
  if (config.kv == KvForm::kBF16) {
    return absl::OkStatus();
  }
  if (config.policy != kPolicyAttendRemote && config.policy != kPolicyLocal &&
      config.policy != kPolicyFetchHeads && config.policy != kPolicyFetchSparse) {
    return NotServed(absl::StrCat("policy ", config.policy),
                     "set policy to attend_remote, fetch_heads, fetch_sparse or local");
  }
  if (config.partition == Partition::kTokenRange) {
    return NotServed("partition token_range", "set partition to request or head");
  }
  if (config.prefill.mode == PrefillMode::kDedicated) {
    return NotServed("prefill.mode dedicated", "set prefill.mode to inline");
  }
  const ClusterAttention attention = config.attention.Named();
  if (attention.decode == AttentionArithmetic::kPairs ||
      attention.prefill == AttentionArithmetic::kPairs) {
    return NotServed("attention in pairs",
                     "set attention.decode and attention.prefill to auto or canonical");
  }
  LAMINA_RETURN_IF_ERROR(CheckDevices("compute", config.compute));
  return CheckDevices("memory", config.memory);
}

}  // namespace lamina::internal

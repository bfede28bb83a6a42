// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/cluster_attention_internal.h"

namespace lamina::internal {
namespace {

// All nodes of a list must have tensor cores.
template <typename Node>
absl::Status CheckNodes(absl::string_view key, absl::string_view list,
                        const std::vector<Node>& nodes) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].device == "cpu") {
      return absl::InvalidArgumentError(absl::StrCat(
          "attention.", key, ": tensor contradicts ", list, ".", i, ".device cpu; put every ", list,
          " node on CUDA, or set attention.", key, " to canonical"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAttention(const ClusterConfig& config) {
  if (config.attention.prefill == AttentionArithmetic::kTensor) {
    LAMINA_RETURN_IF_ERROR(CheckNodes("prefill", "compute", config.compute));
  }
  if (config.attention.decode == AttentionArithmetic::kTensor) {
    return config.policy == kPolicyLocal ? CheckNodes("decode", "compute", config.compute)
                                         : CheckNodes("decode", "memory", config.memory);
  }
  return absl::OkStatus();
}

}  // namespace lamina::internal

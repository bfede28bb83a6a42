// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "config/cluster_attention_internal.h"
#include "config/enum_names_internal.h"

namespace lamina::internal {
namespace {

// All nodes of a list must be able to attend in that arithmetic.
template <typename Node>
absl::Status CheckNodes(absl::string_view key, AttentionArithmetic arithmetic,
                        absl::string_view list, const std::vector<Node>& nodes) {
  const bool tensor = arithmetic == AttentionArithmetic::kTensor;
  if (!tensor && !IsOfBf16(arithmetic)) {
    return absl::OkStatus();
  }
  for (size_t i = 0; i < nodes.size(); ++i) {
    if ((nodes[i].device == "cpu") == tensor) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attention.", key, ": ", EnumName(kAttentions, arithmetic), " contradicts ", list, ".", i,
          ".device ", nodes[i].device, "; put every ", list, " node on ",
          tensor ? "CUDA" : "processors", ", or set attention.", key, " to canonical"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAttention(const ClusterConfig& config) {
  const ClusterAttention attention = config.attention.Named();
  if (config.Fetches() && attention.HasBf16()) {
    const AttentionArithmetic named =
        IsOfBf16(attention.decode) ? attention.decode : attention.prefill;
    return absl::UnimplementedError(absl::StrCat(
        "attention: ", EnumName(kAttentions, named), " is not served by this version with policy ",
        config.policy, "; set attention.decode and attention.prefill to auto or canonical"));
  }
  LAMINA_RETURN_IF_ERROR(CheckNodes("prefill", attention.prefill, "compute", config.compute));
  return config.policy == kPolicyLocal
             ? CheckNodes("decode", attention.decode, "compute", config.compute)
             : CheckNodes("decode", attention.decode, "memory", config.memory);
}

}  // namespace lamina::internal

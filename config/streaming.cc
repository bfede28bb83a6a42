// SPDX-License-Identifier: Apache-2.0
//
// Heads that stream under policy fetch_heads: what the cluster file may say of them. The file that
// names them is read where the model is known (coordinator/streaming_file.h).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/streaming_heads.h"
#include "config/combinations_internal.h"
#include "config/policy_internal.h"

namespace lamina::internal {
namespace {

constexpr Feature kStreamingHeads{.subject = "fetch.streaming_heads: heads that stream are",
                                  .without = "remove streaming_heads"};

absl::Status CheckTokens(absl::string_view key, uint32_t tokens, uint32_t least) {
  return tokens >= least && tokens <= kStreamingTokensMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(absl::StrCat("fetch.", key, ": ", tokens, " is not in [",
                                                       least, ", ", kStreamingTokensMax,
                                                       "] tokens"));
}

}  // namespace

absl::Status CheckStreamingHeads(const ClusterConfig& config) {
  const FetchConfig& fetch = config.fetch;
  const FetchConfig defaults;
  if (fetch.streaming_heads.empty()) {
    if (fetch.streaming_sink == defaults.streaming_sink &&
        fetch.streaming_window == defaults.streaming_window) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "fetch.",
        fetch.streaming_sink != defaults.streaming_sink ? "streaming_sink" : "streaming_window",
        ": says what heads that stream see, and no file names any; set fetch.streaming_heads, or "
        "remove it"));
  }
  if (config.policy != kPolicyFetchHeads) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch.streaming_heads: names heads that stream, and the policy is ",
                     config.policy, "; remove it, or set policy to fetch_heads"));
  }
  LAMINA_RETURN_IF_ERROR(CheckTokens("streaming_sink", fetch.streaming_sink, 0));
  LAMINA_RETURN_IF_ERROR(CheckTokens("streaming_window", fetch.streaming_window, 1));
  if (config.KeepsInt8()) {
    return NotServedTogether(kStreamingHeads, "kv int8", "set kv to bf16");
  }
  if (config.Spills()) {
    return NotServedTogether(kStreamingHeads, "a spill tier", "leave memory.N.spill out");
  }
  const ClusterAttention attention = config.attention.Named();
  if (config.prefill.mode != PrefillMode::kInline || attention.decode != attention.prefill) {
    return NotServedTogether(kStreamingHeads,
                             "prefill.mode dedicated, or an attention of its own for prompts",
                             "set prefill.mode to inline and attention to auto or canonical");
  }
  return absl::OkStatus();
}

}  // namespace lamina::internal

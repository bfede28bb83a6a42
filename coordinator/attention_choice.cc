// SPDX-License-Identifier: Apache-2.0
#include "coordinator/attention_choice.h"

#include "absl/strings/str_cat.h"

namespace lamina::coordinator {
namespace {

absl::string_view NameOf(AttentionArithmetic arithmetic) {
  switch (arithmetic) {
    case AttentionArithmetic::kCanonical:
      return "canonical";
    case AttentionArithmetic::kTensor:
      return "tensor";
    case AttentionArithmetic::kPairs:
      return "pairs";
    case AttentionArithmetic::kAuto:
      return "auto";
  }
  return "?";
}

// Why pairs are not taken; empty: they are.
std::string WhyNotPairs(const EngineOptions& options, const EpochMembers& members) {
  if (members.fetch.bytes > 0 && !members.local) {
    return "policies that fetch have no other";
  }
  if (options.kv.keeps_int8()) {
    return "INT8 KV has no other";
  }
  for (const auto* nodes : {&members.compute, &members.kv}) {
    for (const EpochMember& node : *nodes) {
      if (!node.fast_pairs) {
        return absl::StrCat(node.name, " is not fast at pairs of bf16");
      }
    }
  }
  return "";
}

}  // namespace

AttentionChoice ChooseAttention(const EngineOptions& options, const EpochMembers& members) {
  const ClusterAttention wanted = options.attention.Named();
  if (wanted.automatic()) {
    const std::string why = WhyNotPairs(options, members);
    const auto chosen = why.empty() ? AttentionArithmetic::kPairs : AttentionArithmetic::kCanonical;
    return {.arithmetic = {.decode = chosen, .prefill = chosen},
            .words = absl::StrCat(NameOf(chosen), ": ",
                                  why.empty() ? "every node is fast at pairs of bf16" : why)};
  }
  const bool same = wanted.decode == wanted.prefill;
  return {.arithmetic = wanted,
          .words = absl::StrCat(NameOf(wanted.decode),
                                same ? "" : absl::StrCat(", prompts ", NameOf(wanted.prefill)),
                                ": as the cluster file says")};
}

}  // namespace lamina::coordinator

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
    case AttentionArithmetic::kTiles:
      return "tiles";
    case AttentionArithmetic::kAuto:
      return "auto";
  }
  return "?";
}

// Why `fast`, pairs or tiles, is not taken; empty: it is.
std::string WhyNot(AttentionArithmetic fast, const EngineOptions& options,
                   const EpochMembers& members) {
  if (members.fetch.bytes > 0 && !members.local) {
    return "policies that fetch have no other";
  }
  if (options.kv.keeps_int8()) {
    return "INT8 KV has no other";
  }
  for (const auto* nodes : {&members.compute, &members.kv}) {
    for (const EpochMember& node : *nodes) {
      if (node.fast_attention != fast) {
        return absl::StrCat(node.name, " is not fast at ", NameOf(fast), " of bf16");
      }
    }
  }
  return "";
}

// What the first node is fast at that is fast at any.
AttentionArithmetic FastOf(const EpochMembers& members) {
  for (const auto* nodes : {&members.compute, &members.kv}) {
    for (const EpochMember& node : *nodes) {
      if (IsOfBf16(node.fast_attention)) {
        return node.fast_attention;
      }
    }
  }
  return AttentionArithmetic::kPairs;
}

}  // namespace

AttentionChoice ChooseAttention(const EngineOptions& options, const EpochMembers& members) {
  const ClusterAttention wanted = options.attention.Named();
  if (wanted.automatic()) {
    const AttentionArithmetic fast = FastOf(members);
    const std::string why = WhyNot(fast, options, members);
    const auto chosen = why.empty() ? fast : AttentionArithmetic::kCanonical;
    return {.arithmetic = {.decode = chosen, .prefill = chosen},
            .words = why.empty() ? absl::StrCat(NameOf(fast), ": every node is fast at ",
                                                NameOf(fast), " of bf16")
                                 : absl::StrCat(NameOf(chosen), ": ", why)};
  }
  const bool same = wanted.decode == wanted.prefill;
  return {.arithmetic = wanted,
          .words = absl::StrCat(NameOf(wanted.decode),
                                same ? "" : absl::StrCat(", prompts ", NameOf(wanted.prefill)),
                                ": as the cluster file says")};
}

}  // namespace lamina::coordinator

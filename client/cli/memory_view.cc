// SPDX-License-Identifier: Apache-2.0
#include "client/cli/memory_view.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/units.h"

namespace lamina::cli {
namespace {

std::string Line(const client::NodeStatus& node) {
  std::vector<std::string> parts;
  uint64_t total = 0;
  for (const auto& [name, bytes] : node.memory) {
    parts.push_back(absl::StrCat(name == "kv" ? "K and V" : name, " ", FormatBytes(bytes)));
    total += bytes;
  }
  return absl::StrCat(
      node.name, " ", absl::StrJoin(parts, ", "), ": ", FormatBytes(total),
      node.memory_budget == 0 ? "" : absl::StrCat(" of ", FormatBytes(node.memory_budget)));
}

std::string FormulaLine(const client::NodeStatus& node) {
  const client::MemoryFormula& formula = node.memory_formula;
  std::vector<std::string> parts;
  if (formula.activations > 0) {
    parts.push_back(absl::StrCat("activations ", FormatBytes(formula.activations)));
  }
  if (formula.resident > 0) {
    parts.push_back(absl::StrCat("activations that stay ", FormatBytes(formula.resident)));
  }
  parts.push_back(absl::StrCat("weights ", FormatBytes(formula.weights)));
  parts.push_back(absl::StrCat("windows ", FormatBytes(formula.windows)));
  if (formula.heads > 0) {
    absl::StrAppend(&parts.back(), " with ", formula.heads,
                    formula.heads == 1 ? " KV head" : " KV heads", " a group");
  }
  return absl::StrCat(
      node.name, " by the paper's formula (", formula.paper, ") ", absl::StrJoin(parts, ", "), ": ",
      FormatBytes(formula.activations + formula.resident + formula.weights + formula.windows));
}

}  // namespace

std::vector<std::string> MemoryLines(const client::ClusterStatus& status) {
  bool fetches = absl::StartsWith(status.policy, "fetch");
  for (const client::ClusterStatus::PolicyStatus& policy : status.policies) {
    fetches |= absl::StartsWith(policy.name, "fetch");
  }
  std::vector<std::string> lines;
  for (const client::NodeStatus& node : status.nodes) {
    if (!node.memory.empty() && (node.memory_budget > 0 || fetches)) {
      lines.push_back(Line(node));
      if (!node.memory_formula.paper.empty()) {
        lines.push_back(FormulaLine(node));
      }
    }
  }
  return lines;
}

}  // namespace lamina::cli

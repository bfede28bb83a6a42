// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_memory.h"

#include "absl/strings/str_cat.h"
#include "common/units.h"

namespace lamina::compute_node {
namespace {

constexpr std::array<const char*, 4> kNames = {"weights", "windows", "kv", "activations"};

}  // namespace

uint64_t NodeMemory::total() const {
  uint64_t total = 0;
  for (const auto& bytes : bytes_) {
    total += bytes.load(std::memory_order_relaxed);
  }
  return total;
}

std::vector<std::pair<std::string, uint64_t>> NodeMemory::Parts() const {
  std::vector<std::pair<std::string, uint64_t>> parts;
  for (size_t i = 0; i < kParts; ++i) {
    parts.emplace_back(kNames[i], bytes_[i].load(std::memory_order_relaxed));
  }
  return parts;
}

void NodeMemory::SetFormula(const telemetry::FormulaMemory& formula) {
  formula_paper_.store(formula.paper, std::memory_order_relaxed);
  formula_weights_.store(formula.weights, std::memory_order_relaxed);
  formula_windows_.store(formula.windows, std::memory_order_relaxed);
  formula_activations_.store(formula.activations, std::memory_order_relaxed);
  formula_resident_.store(formula.resident, std::memory_order_relaxed);
  formula_heads_.store(formula.heads, std::memory_order_relaxed);
}

telemetry::FormulaMemory NodeMemory::formula() const {
  return {.paper = formula_paper_.load(std::memory_order_relaxed),
          .weights = formula_weights_.load(std::memory_order_relaxed),
          .windows = formula_windows_.load(std::memory_order_relaxed),
          .activations = formula_activations_.load(std::memory_order_relaxed),
          .resident = formula_resident_.load(std::memory_order_relaxed),
          .heads = formula_heads_.load(std::memory_order_relaxed)};
}

absl::Status NodeMemory::Check() const {
  if (budget_ == 0 || total() <= budget_) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "memory_budget ", FormatBytes(budget_), " is less than the ", FormatBytes(total()),
      " that are needed: weights ", FormatBytes(bytes(MemoryPart::kWeights)), ", windows ",
      FormatBytes(bytes(MemoryPart::kWindows)), ", K and V ", FormatBytes(bytes(MemoryPart::kKv)),
      ", activations ", FormatBytes(bytes(MemoryPart::kActivations)),
      "; raise it, or lower fetch.window (windows), prefill.scratch_tokens (K and V), "
      "prefill.chunk_tokens or pipeline.lanes (activations)"));
}

}  // namespace lamina::compute_node

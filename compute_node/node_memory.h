// SPDX-License-Identifier: Apache-2.0
//
// NodeMemory: the bytes that a compute node takes on its device, by what they are for, and the
// budget that bounds them (`compute.N.memory_budget`). Counted as they are allocated, by those who
// allocate them; the program itself, its threads and the file of the model are not among them.
//
// Threading: Set() and SetFormula() on one thread, reading on any.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "telemetry/node_counters.h"

namespace lamina::compute_node {

enum class MemoryPart : uint8_t {
  kWeights,
  kWindows,  // Registered: replies, K and V that come, what other compute nodes send.
  kKv,       // The scratch of prompts; with policy local the cache.
  // Values of all lanes' rows, copies of them for dense layers, what sums and rows are put from,
  // and logits.
  kActivations,
};

class NodeMemory {
 public:
  // `budget` 0: unbounded.
  explicit NodeMemory(uint64_t budget) : budget_(budget) {}

  void Set(MemoryPart part, uint64_t bytes) {
    bytes_[static_cast<size_t>(part)].store(bytes, std::memory_order_relaxed);
  }
  uint64_t bytes(MemoryPart part) const {
    return bytes_[static_cast<size_t>(part)].load(std::memory_order_relaxed);
  }
  uint64_t total() const;
  uint64_t budget() const { return budget_; }

  // By name: "weights", "windows", "kv", "activations".
  std::vector<std::pair<std::string, uint64_t>> Parts() const;

  // What a formula says next to it (memory_formula.h). Whoever reads while it is set may see
  // numbers of both.
  void SetFormula(const telemetry::FormulaMemory& formula);
  telemetry::FormulaMemory formula() const;

  // Errors: kFailedPrecondition  the parts exceed the budget; says each, and what makes it smaller.
  absl::Status Check() const;

 private:
  static constexpr size_t kParts = 4;
  const uint64_t budget_;
  std::array<std::atomic<uint64_t>, kParts> bytes_ = {};
  std::atomic<telemetry::MemoryPaper> formula_paper_{telemetry::MemoryPaper::kNone};
  std::atomic<uint64_t> formula_weights_{0};
  std::atomic<uint64_t> formula_windows_{0};
  std::atomic<uint64_t> formula_activations_{0};
  std::atomic<uint64_t> formula_resident_{0};
  std::atomic<uint32_t> formula_heads_{0};
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
#include "compute_node/node_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::compute_node {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

constexpr uint64_t kMiB = uint64_t{1} << 20;

void Fill(NodeMemory& memory) {
  memory.Set(MemoryPart::kWeights, 100 * kMiB);
  memory.Set(MemoryPart::kWindows, 20 * kMiB);
  memory.Set(MemoryPart::kKv, 3 * kMiB);
  memory.Set(MemoryPart::kActivations, kMiB);
}

TEST(NodeMemoryTest, PartsHaveNamesAndASum) {
  NodeMemory memory(0);
  Fill(memory);
  memory.Set(MemoryPart::kKv, 4 * kMiB);
  EXPECT_EQ(memory.total(), 125 * kMiB);
  EXPECT_THAT(memory.Parts(), ElementsAre(Pair("weights", 100 * kMiB), Pair("windows", 20 * kMiB),
                                          Pair("kv", 4 * kMiB), Pair("activations", kMiB)));
}

TEST(NodeMemoryTest, TheFormulaIsThatOfTheLatestEpoch) {
  NodeMemory memory(0);
  EXPECT_EQ(memory.formula(), telemetry::FormulaMemory());
  const telemetry::FormulaMemory formula{.paper = telemetry::MemoryPaper::kHybridServe,
                                         .weights = 1,
                                         .windows = 2,
                                         .activations = 3,
                                         .resident = 4,
                                         .heads = 5};
  memory.SetFormula(formula);
  EXPECT_EQ(memory.formula(), formula);
  memory.SetFormula({});
  EXPECT_EQ(memory.formula(), telemetry::FormulaMemory());
}

TEST(NodeMemoryTest, WithoutABudgetAnythingFits) {
  NodeMemory memory(0);
  memory.Set(MemoryPart::kWindows, uint64_t{1} << 60);
  EXPECT_TRUE(memory.Check().ok());
}

TEST(NodeMemoryTest, TheBudgetBoundsTheSum) {
  NodeMemory exact(124 * kMiB);
  Fill(exact);
  EXPECT_TRUE(exact.Check().ok()) << exact.Check();

  NodeMemory less(124 * kMiB - 1);
  Fill(less);
  const absl::Status status = less.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.ToString(), HasSubstr("memory_budget 124.0 MiB is less than the 124.0 MiB"));
  EXPECT_THAT(status.ToString(), HasSubstr("weights 100.0 MiB, windows 20.0 MiB, K and V 3.0 MiB, "
                                           "activations 1.0 MiB"));
  EXPECT_THAT(status.ToString(), HasSubstr("lower fetch.window"));
}

}  // namespace
}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
#include "client/cli/memory_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint64_t kMiB = uint64_t{1} << 20;

client::ClusterStatus Status(const std::string& policy, uint64_t budget) {
  client::ClusterStatus status;
  status.policy = policy;
  status.nodes.push_back({.name = "c0"});
  status.nodes[0].memory = {{"activations", kMiB}, {"kv", 3 * kMiB}};
  status.nodes[0].memory_budget = budget;
  status.nodes.push_back({.name = "m0"});
  return status;
}

TEST(MemoryViewTest, TellsPartsSumAndBound) {
  EXPECT_THAT(MemoryLines(Status("attend_remote", 8 * kMiB)),
              ElementsAre("c0 activations 1.0 MiB, K and V 3.0 MiB: 4.0 MiB of 8.0 MiB"));
}

TEST(MemoryViewTest, WithoutABoundItIsToldWherePoliciesAreAboutIt) {
  EXPECT_THAT(MemoryLines(Status("fetch_heads", 0)),
              ElementsAre("c0 activations 1.0 MiB, K and V 3.0 MiB: 4.0 MiB"));
  EXPECT_THAT(MemoryLines(Status("attend_remote", 0)), IsEmpty());
  client::ClusterStatus both = Status("attend_remote", 0);
  both.policies = {{.name = "attend_remote"}, {.name = "fetch_heads"}};
  EXPECT_EQ(MemoryLines(both).size(), 1u);
}

TEST(MemoryViewTest, TheFormulaStandsBehindWhatIsAccounted) {
  client::ClusterStatus status = Status("fetch_heads", 8 * kMiB);
  status.nodes[0].memory_formula = {.paper = "HeadInfer",
                                    .weights = 2 * kMiB,
                                    .windows = kMiB,
                                    .activations = kMiB / 2,
                                    .heads = 1};
  EXPECT_THAT(MemoryLines(status),
              ElementsAre("c0 activations 1.0 MiB, K and V 3.0 MiB: 4.0 MiB of 8.0 MiB",
                          "c0 by the paper's formula (HeadInfer) activations 512.0 KiB, weights "
                          "2.0 MiB, windows 1.0 MiB with 1 KV head a group: 3.5 MiB"));
  status.nodes[0].memory_formula.heads = 2;
  EXPECT_THAT(MemoryLines(status)[1], testing::HasSubstr("with 2 KV heads a group"));
}

TEST(MemoryViewTest, AFormulaTellsThePartsThatItsPaperHas) {
  client::ClusterStatus status = Status("fetch_recompute", 0);
  status.nodes[0].memory_formula = {.paper = "KVPR", .weights = 2 * kMiB, .windows = kMiB};
  EXPECT_EQ(MemoryLines(status)[1],
            "c0 by the paper's formula (KVPR) weights 2.0 MiB, windows 1.0 MiB: 3.0 MiB");
  status.nodes[0].memory_formula.paper = "HybridServe";
  status.nodes[0].memory_formula.resident = 4 * kMiB;
  EXPECT_EQ(MemoryLines(status)[1],
            "c0 by the paper's formula (HybridServe) activations that stay 4.0 MiB, weights "
            "2.0 MiB, windows 1.0 MiB: 7.0 MiB");
}

}  // namespace
}  // namespace lamina::cli

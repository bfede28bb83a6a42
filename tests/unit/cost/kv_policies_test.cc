// SPDX-License-Identifier: Apache-2.0
#include "cost/kv_policies.h"

#include "gtest/gtest.h"

namespace lamina::cost {
namespace {

// A link-bound layer of a multi-head model: activations are half of K and V. `c` is the time to
// make K and V over the time to send them.
FetchLayer MultiHead(double c) {
  return {.kv_transfer = {1}, .activation_transfer = {0.5}, .kv_generation = {c}};
}

TEST(KvPoliciesTest, RecomputationIsTheClosedForm) {
  for (const double c : {0.0, 0.25, 1.0, 4.0}) {
    EXPECT_NEAR(FetchRecompute(MultiHead(c), 1, 1).layer.value, (0.5 + c) / (1 + c), 1e-12) << c;
  }
}

// While K and V of one lane are made, those of others come.
TEST(KvPoliciesTest, SeveralLanesTakeTheLongerOfLinkAndDevice) {
  for (const double c : {0.0, 0.25, 0.5}) {
    const FetchTime time = FetchRecompute(MultiHead(c), 1, 2);
    EXPECT_NEAR(time.layer.value, 0.5, 1e-12) << c;
    EXPECT_NEAR(time.share, 1, 1e-12) << c;
  }
  EXPECT_NEAR(FetchRecompute(MultiHead(1), 1, 2).layer.value, 2.0 / 3, 1e-12);
  EXPECT_NEAR(FetchRecompute(MultiHead(0.25), 0.4, 2).layer.value, 0.8, 1e-12);
}

TEST(KvPoliciesTest, RecomputationIsBoundedByThePrompt) {
  const FetchTime time = FetchRecompute(MultiHead(0.25), 0.4, 1);
  EXPECT_DOUBLE_EQ(time.share, 0.4);
  EXPECT_DOUBLE_EQ(time.layer.value, 0.4 * 0.5 + 0.6);
}

TEST(KvPoliciesTest, GroupedModelsRecomputeNothing) {
  const FetchLayer layer = {
      .kv_transfer = {1}, .activation_transfer = {1.5}, .kv_generation = {0.1}};
  EXPECT_EQ(FetchRecompute(layer, 1, 1).share, 0);
  EXPECT_EQ(FetchRecompute(layer, 1, 1).layer.value, 1);
}

TEST(KvPoliciesTest, HybridGainsAreTheClosedForm) {
  for (const double c : {0.6, 1.0, 2.0}) {
    const FetchTime hybrid = FetchHybrid(MultiHead(c));
    const double kv_only = FetchHeads(MultiHead(c)).layer.value;
    const double activations_only = std::max(0.5, c);
    EXPECT_NEAR(kv_only / hybrid.layer.value, 1 + 1 / (2 * c), 1e-12) << c;
    EXPECT_NEAR(activations_only / hybrid.layer.value, c + 0.5, 1e-12) << c;
  }
}

TEST(KvPoliciesTest, HybridHoldsNoActivationsWhereTheDeviceIsTheBottleneck) {
  FetchLayer layer = MultiHead(1);
  layer.dense = {3};
  EXPECT_EQ(FetchHybrid(layer).share, 0);
  EXPECT_EQ(FetchHybrid(layer).layer.value, 3);
}

TEST(KvPoliciesTest, SparseFetchesHalfOfWhatItAttendsTo) {
  FetchLayer layer = MultiHead(1);
  layer.dense = {0.01};
  layer.attention = {0.2};
  EXPECT_DOUBLE_EQ(FetchSparse(layer, 0.2).layer.value, 0.1);
  layer.attention = {1};
  EXPECT_DOUBLE_EQ(FetchSparse(layer, 0.2).layer.value, 0.21);
}

// W + (1 - x) K = x F: more is made again while weights are on the link.
TEST(KvPoliciesTest, StreamedWeightsTakeTheLink) {
  FetchLayer layer = MultiHead(1);
  layer.weights_transfer = {0.5};
  EXPECT_DOUBLE_EQ(FetchHeads(layer).layer.value, 1.5);
  const FetchTime recomputed = FetchRecompute(layer, 1, 1);
  EXPECT_DOUBLE_EQ(recomputed.share, 0.75);
  EXPECT_DOUBLE_EQ(recomputed.layer.value, 0.75 * 0.5 + 0.75);
  const FetchTime hybrid = FetchHybrid(layer);  // 1.5 - x / 2 = x
  EXPECT_DOUBLE_EQ(hybrid.share, 1);
  EXPECT_DOUBLE_EQ(hybrid.layer.value, 1);
  EXPECT_DOUBLE_EQ(FetchRecompute(layer, 1, 2).layer.value, 1);
  EXPECT_DOUBLE_EQ(FetchSparse(layer, 0.5).layer.value, 0.75);
  layer.weights_transfer = {3};
  EXPECT_DOUBLE_EQ(FetchRecompute(layer, 1, 1).share, 1);
  EXPECT_DOUBLE_EQ(FetchRecompute(layer, 1, 1).layer.value, 3.5);
}

TEST(KvPoliciesTest, ProvenanceIsTheWorstOfTheInputs) {
  FetchLayer layer = MultiHead(1);
  layer.kv_generation.provenance = Provenance::kAssumed;
  EXPECT_EQ(FetchHybrid(layer).layer.provenance, Provenance::kAssumed);
  EXPECT_EQ(FetchHeads(layer).layer.provenance, Provenance::kMeasured);
}

}  // namespace
}  // namespace lamina::cost

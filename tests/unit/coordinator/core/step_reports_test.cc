// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/step_reports.h"

#include <gtest/gtest.h>

namespace lamina::core {
namespace {

plan::StepResult Report(uint64_t step, std::vector<plan::SequenceId> sequences = {}) {
  plan::StepResult result{.epoch = 1, .step = step};
  for (const plan::SequenceId id : sequences) {
    result.tokens.push_back({.sequence = id});
  }
  return result;
}

plan::PipelineSchedule Replicas(uint32_t count) { return {PipelineMode::kFixed, count, 1}; }

TEST(StepReportsTest, TokensOutsideTheVocabularyAreRefused) {
  plan::StepResult report{.epoch = 1, .step = 1};
  report.tokens.push_back({.sequence = 1, .token = 95, .top = {{.token = 0}}});
  report.scores.push_back({.sequence = 2, .ranks = {{.rank = 96, .top = {{.token = 95}}}}});
  EXPECT_TRUE(CheckTokens(report, 96).ok());
  EXPECT_TRUE(CheckTokens(report, 0).ok());

  plan::StepResult token = report;
  token.tokens[0].token = 96;
  plan::StepResult negative = report;
  negative.tokens[0].token = -1;
  plan::StepResult top = report;
  top.tokens[0].top[0].token = 1 << 30;
  plan::StepResult rank = report;
  rank.scores[0].ranks[0].rank = 97;
  plan::StepResult none = report;
  none.scores[0].ranks[0].rank = 0;
  plan::StepResult ranked = report;
  ranked.scores[0].ranks[0].top[0].token = 96;
  for (const plan::StepResult& wrong : {token, negative, top, rank, none, ranked}) {
    EXPECT_EQ(CheckTokens(wrong, 96).code(), absl::StatusCode::kInternal);
  }
}

TEST(StepReportsTest, OneNodeIsDoneAtOnce) {
  StepReports reports;
  reports.Reset(1, 1, Replicas(1));
  const auto whole = reports.Add(0, Report(1, {7}));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->tokens.size(), 1u);
}

TEST(StepReportsTest, TheLastReportBringsTheTokensOfWhoeverHadThem) {
  StepReports reports;
  reports.Reset(3, 1, Replicas(3));
  EXPECT_FALSE(reports.Add(1, Report(1, {7, 8}))->has_value());
  EXPECT_FALSE(reports.Add(1, Report(2))->has_value());  // One may be a step ahead.
  EXPECT_FALSE(reports.Add(0, Report(1))->has_value());
  const auto first = reports.Add(2, Report(1));
  ASSERT_TRUE(first.ok() && first->has_value());
  EXPECT_EQ((*first)->step, 1u);
  EXPECT_EQ((*first)->tokens.size(), 2u);
  EXPECT_FALSE(reports.Add(2, Report(2, {9}))->has_value());
  const auto second = reports.Add(0, Report(2));
  ASSERT_TRUE(second.ok() && second->has_value());
  EXPECT_EQ((*second)->tokens.at(0).sequence, 9u);
}

TEST(StepReportsTest, APrefillNodeReportsItsOwnLaneAlone) {
  StepReports reports;
  // Replicas 0 and 1; node 2 has lane 1, node 3 lane 2.
  reports.Reset(4, 3, plan::PipelineSchedule(PipelineMode::kFixed, 2, 1, /*prefill_lane=*/1));
  const auto report = [](uint32_t lane) {
    plan::StepResult result = Report(1);
    result.lane = lane;
    return result;
  };
  EXPECT_FALSE(reports.Add(0, report(0))->has_value());
  EXPECT_EQ(reports.Add(2, report(0)).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(reports.Add(1, report(0))->has_value());

  EXPECT_FALSE(reports.Add(3, report(2))->has_value());
  EXPECT_EQ(reports.Add(2, report(2)).status().code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(reports.Add(1, report(2))->has_value());
  EXPECT_TRUE(reports.Add(0, report(2))->has_value());
}

TEST(StepReportsTest, WhatDoesNotFollowIsRefusedAndChangesNothing) {
  StepReports reports;
  reports.Reset(2, 1, Replicas(2));
  EXPECT_EQ(reports.Add(0, Report(2)).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(reports.Add(2, Report(1)).status().code(), absl::StatusCode::kInternal);
  plan::StepResult other_lane = Report(1);
  other_lane.lane = 1;
  EXPECT_EQ(reports.Add(0, other_lane).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(reports.Add(0, Report(1)).ok());
  EXPECT_EQ(reports.Add(0, Report(1)).status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(reports.Add(1, Report(1))->has_value());
}

TEST(StepReportsTest, ANewEpochStartsAnew) {
  StepReports reports;
  reports.Reset(2, 1, Replicas(2));
  EXPECT_FALSE(reports.Add(0, Report(1, {7}))->has_value());
  reports.Reset(1, 1, Replicas(1));
  const auto whole = reports.Add(0, Report(1));
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_TRUE((*whole)->tokens.empty());
}

}  // namespace
}  // namespace lamina::core

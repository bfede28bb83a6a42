// SPDX-License-Identifier: Apache-2.0
#include "telemetry/request_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/log.h"

namespace lamina::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

plan::StepPlan Joining(plan::SequenceId id, const std::string& request, uint32_t memory_node) {
  plan::StepPlan plan{.lane = 1, .step = 3};
  plan.joins.push_back({.id = id, .tokens = {4711}, .memory_node = memory_node});
  plan.joins[0].request_id = request;
  return plan;
}

std::string Noted(RequestLog& log, const plan::StepPlan& plan, LogLevel level = LogLevel::kDebug) {
  SetUpLogging("m0", level);
  testing::internal::CaptureStderr();
  log.Note(plan);
  return testing::internal::GetCapturedStderr();
}

TEST(RequestLogTest, SaysWhoComesAndWhoLeaves) {
  RequestLog log;
  log.StartEpoch(std::nullopt);
  const std::string joined = Noted(log, Joining(7, "follow-me", 0));
  EXPECT_THAT(joined, HasSubstr("request joins request_id follow-me sequence 7 lane 1 step 3"));
  EXPECT_THAT(joined, Not(HasSubstr("4711")));
  EXPECT_THAT(Noted(log, {.step = 9, .leaves = {{7}}}),
              HasSubstr("request leaves request_id follow-me sequence 7"));
  EXPECT_THAT(Noted(log, {.step = 10, .leaves = {{7}}}), IsEmpty());
}

TEST(RequestLogTest, AMemoryNodeSpeaksOfItsOwnAlone) {
  RequestLog log;
  log.StartEpoch(1);
  EXPECT_THAT(Noted(log, Joining(7, "other", 0)), IsEmpty());
  EXPECT_THAT(Noted(log, Joining(8, "own", 1)), HasSubstr("own"));
  EXPECT_THAT(Noted(log, {.leaves = {{7}}}), IsEmpty());
}

TEST(RequestLogTest, AnEpochBeginsWithNobody) {
  RequestLog log;
  log.StartEpoch(std::nullopt);
  Noted(log, Joining(7, "follow-me", 0));
  log.StartEpoch(std::nullopt);
  EXPECT_THAT(Noted(log, {.leaves = {{7}}}), IsEmpty());
}

TEST(RequestLogTest, IsSilentAboveDebug) {
  RequestLog log;
  log.StartEpoch(std::nullopt);
  EXPECT_THAT(Noted(log, Joining(7, "follow-me", 0), LogLevel::kInfo), IsEmpty());
}

}  // namespace
}  // namespace lamina::telemetry

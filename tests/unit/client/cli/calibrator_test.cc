// SPDX-License-Identifier: Apache-2.0
#include "client/cli/calibrator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/client/fake_server.h"

namespace lamina::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CalibratorTest : public testing::Test {
 protected:
  CalibratorTest() : client_(*client::Client::Connect({.server = server_.address()})) {
    model_.vocabulary = 100;
    model_.sequence_tokens_max = 8192;
  }

  // What it says on stderr.
  std::string Decode(Calibrator& calibrator, uint32_t rows, uint32_t context) {
    testing::internal::CaptureStderr();
    const absl::Status done = calibrator.Decode(rows, context);
    std::string said = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(done.ok()) << done;
    return said;
  }
  int PromptOfLastRequest() { return server_.inference.last_request().tokens().ids_size(); }

  client::FakeServer server_;
  const std::unique_ptr<client::Client> client_;
  client::ModelInfo model_;
  cost::ModelShape shape_;
  const CalibratorOptions options_ = {.measured = absl::Milliseconds(1),
                                      .settle = absl::ZeroDuration(),
                                      .no_more_after = absl::Milliseconds(20)};
};

TEST_F(CalibratorTest, RowsThatTheClusterDoesNotRunAtOnceAreLeftOut) {
  server_.inference.runs_max = 2;
  server_.cluster.running = 2;
  server_.cluster.waiting = 2;
  Calibrator calibrator(*client_, model_, shape_, options_);

  EXPECT_THAT(Decode(calibrator, 4, 64), HasSubstr("left out: the cluster runs only 2 of them"));
  EXPECT_THAT(Decode(calibrator, 8, 65), HasSubstr("left out: the cluster runs only 2 of them"));

  EXPECT_EQ(PromptOfLastRequest(), 64) << "more rows, and longer ones, are not tried";
}

TEST_F(CalibratorTest, RowsThatDoNotBeginAreLeftOut) {
  server_.inference.runs_max = 0;
  CalibratorOptions options = options_;
  options.first_tokens_max = absl::Milliseconds(10);
  Calibrator calibrator(*client_, model_, shape_, options);

  EXPECT_THAT(Decode(calibrator, 2, 64), HasSubstr("left out: 0 of them have begun after 10ms"));
}

TEST_F(CalibratorTest, RowsForWhichThereAreNoSlotsAreNotTried) {
  Calibrator calibrator(*client_, model_, shape_, options_);

  EXPECT_THAT(Decode(calibrator, 16, 64), HasSubstr("left out: the cluster keeps K and V of 1000"));

  EXPECT_EQ(PromptOfLastRequest(), 0);
}

TEST_F(CalibratorTest, RowsThatWerePreemptedAreNoPoint) {
  server_.inference.runs_max = 2;
  Calibrator calibrator(*client_, model_, shape_, options_);
  EXPECT_THAT(Decode(calibrator, 1, 64), Not(HasSubstr("left out")));

  server_.cluster.waiting = 1;
  EXPECT_THAT(Decode(calibrator, 1, 64), HasSubstr("left out: the cluster has no room"));
}

TEST_F(CalibratorTest, FailedRequestsAreErrors) {
  server_.inference.refuses_with = grpc::StatusCode::INVALID_ARGUMENT;
  Calibrator calibrator(*client_, model_, shape_, options_);

  EXPECT_TRUE(absl::IsInvalidArgument(calibrator.Decode(1, 64)));
}

}  // namespace
}  // namespace lamina::cli

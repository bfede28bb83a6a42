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

TEST(CheckServedTest, AnotherModelIsRefused) {
  const auto model = [](uint32_t layers, uint32_t vocabulary, uint32_t kv_heads) {
    cost::ModelShape shape;
    shape.name = "mine";
    shape.layers = layers;
    shape.vocabulary = vocabulary;
    shape.kv_heads = kv_heads;
    shape.head_dim = 128;
    return shape;
  };
  client::ModelInfo served;
  served.id = "theirs";
  served.layers = 28;
  served.vocabulary = 152064;
  served.kv_bytes_per_token = 28 * 2 * 2 * 4 * 128;

  EXPECT_TRUE(CheckServed(model(28, 152064, 4), served).ok());
  EXPECT_TRUE(CheckServed(model(28, 151665, 4), served).ok()) << "padded embeddings";
  const absl::Status layers = CheckServed(model(32, 152064, 4), served);
  EXPECT_EQ(layers.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(layers.message()),
              testing::AllOf(HasSubstr("mine is not the model that is served: it has 32 layers"),
                             HasSubstr("theirs has 28, 152064 and 57344")));
  EXPECT_FALSE(CheckServed(model(28, 151936, 2), served).ok()) << "a smaller model of the family";
  EXPECT_FALSE(CheckServed(model(28, 32000, 4), served).ok()) << "one of another family";
  served.kv_bytes_per_token /= 2;
  EXPECT_TRUE(CheckServed(model(28, 152064, 4), served).ok()) << "K and V in another form";
}

TEST_F(CalibratorTest, FailedRequestsAreErrors) {
  server_.inference.refuses_with = grpc::StatusCode::INVALID_ARGUMENT;
  Calibrator calibrator(*client_, model_, shape_, options_);

  EXPECT_TRUE(absl::IsInvalidArgument(calibrator.Decode(1, 64)));
}

}  // namespace
}  // namespace lamina::cli

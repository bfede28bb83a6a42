// SPDX-License-Identifier: Apache-2.0
//
// Long prompts that streams echo with their log-probabilities: they are as large as answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gateway/completion_handler.h"
#include "nlohmann/json.hpp"
#include "tests/unit/gateway/fake_backend.h"
#include "tests/unit/gateway/occupied_side_work.h"

namespace lamina::gateway {
namespace {

using Json = nlohmann::json;
using ::testing::IsEmpty;

constexpr size_t kTokens = SideWork::kSmallBytesMax / 100 + 1;

class EchoedPromptsTest : public testing::Test {
 protected:
  EchoedPromptsTest() {
    backend_.score = client::ScoreResult{.tokens = std::vector<TokenId>(kTokens, 4),
                                         .logprobs = std::vector<float>(kTokens - 1, -0.25f),
                                         .texts = std::vector<std::string>(kTokens, "x")};
  }

  void Start(uint32_t max_tokens) {
    const auto body = ParseBody(
        absl::StrCat(R"({"model":"m","prompt":"xx","echo":true,"logprobs":0,"stream":true,"n":2,)",
                     R"("max_tokens":)", max_tokens, "}"));
    ASSERT_TRUE(body.ok()) << body.status();
    auto request = ParseCompletion(*body, {});
    ASSERT_TRUE(request.ok()) << request.status();
    handler_ = std::make_shared<CompletionHandler>(
        *std::move(request), CompletionHead{.id = "id-1", .model = "m"}, nullptr,
        CompletionHandler::Services{
            .backend = backend_, .side_work = side_work_, .metrics = metrics_},
        writer_, [](const CompletionHandler::Report&) {});
    handler_->Start();
  }

  // Each choice begins with the prompt, and ends without more.
  void ExpectEchoes() const {
    std::vector<Json> events;
    for (const absl::string_view event : absl::StrSplit(writer_.stream, "\n\n")) {
      if (event.substr(0, 7) == "data: {") {
        events.push_back(Json::parse(event.substr(6)));
      }
    }
    ASSERT_EQ(events.size(), 4u) << writer_.stream;
    for (const uint32_t index : {0u, 1u}) {
      const Json choice = events[size_t{2} * index]["choices"][0];
      EXPECT_EQ(choice["index"], index);
      EXPECT_EQ(choice["text"], "xx");
      EXPECT_EQ(choice["logprobs"]["tokens"].size(), kTokens);
      EXPECT_EQ(events[size_t{2} * index + 1]["choices"][0]["finish_reason"], "length");
    }
  }

  FakeBackend backend_;
  Posted posted_;
  SideWork side_work_{posted_.post()};
  RecordingWriter writer_;
  GatewayMetrics metrics_;
  std::shared_ptr<CompletionHandler> handler_;
};

TEST_F(EchoedPromptsTest, AreWrittenOffTheThreadThatServesOthers) {
  OccupiedSideWork occupied(side_work_, posted_);
  Start(/*max_tokens=*/1);
  EXPECT_THAT(backend_.generations, IsEmpty());
  handler_->OnSilence();

  occupied.Release();
  posted_.RunUntil([this] { return !backend_.generations.empty(); });
  FakeGeneration& answer = *backend_.generations[0];
  for (const uint32_t index : {0u, 1u}) {
    answer.Send({.index = index, .finish_reason = client::FinishReason::kLength});
  }
  answer.Finish(absl::OkStatus());
  ExpectEchoes();
  EXPECT_TRUE(writer_.ended);
}

TEST_F(EchoedPromptsTest, AreAllOfAnAnswerWithoutTokens) {
  OccupiedSideWork occupied(side_work_, posted_);
  Start(/*max_tokens=*/0);
  EXPECT_THAT(writer_.stream, IsEmpty());

  occupied.Release();
  posted_.RunUntil([this] { return writer_.ended; });
  ExpectEchoes();
  EXPECT_THAT(backend_.generations, IsEmpty());
}

TEST_F(EchoedPromptsTest, OfAClientThatIsGoneAreFollowedByNothing) {
  OccupiedSideWork occupied(side_work_, posted_);
  Start(/*max_tokens=*/1);
  handler_->OnGone();

  occupied.Release();
  posted_.RunUntil([this] { return handler_.use_count() == 1; });
  EXPECT_THAT(backend_.generations, IsEmpty());
  EXPECT_THAT(writer_.stream, IsEmpty());
}

}  // namespace
}  // namespace lamina::gateway

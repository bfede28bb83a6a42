// SPDX-License-Identifier: Apache-2.0
#include "client/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "client/member_change.h"
#include "common/fnv1a.h"
#include "tests/unit/client/fake_server.h"

namespace lamina::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClientTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect({.server = server_.address()});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  FakeServer server_;
  std::unique_ptr<Client> client_;
};

TEST(ClientConnectTest, SaysHowToStartAServerThatIsNotRunning) {
  FakeServer server;
  const std::string address = server.address();
  server.Stop();

  const auto client = Client::Connect({.server = address});

  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(client.status().message(),
            "server not running at " + address + "; start it with deploy/cluster.sh up");
}

TEST(ClientConnectTest, SaysWhichNameCannotBeReached) {
  const auto client = Client::Connect({.server = "unix:/nonexistent/lamina.sock"});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("/nonexistent/lamina.sock"));
}

TEST_F(ClientTest, GenerateDeliversChunksInOrderInTheCallersThread) {
  std::vector<TokenId> tokens;
  std::string text;
  FinishReason reason = FinishReason::kNotFinished;
  const std::thread::id here = std::this_thread::get_id();

  const absl::Status status =
      client_->Generate({.prompt = "x", .max_tokens = 50}, [&](const Chunk& chunk) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        tokens.push_back(chunk.tokens.at(0).token);
        text += chunk.text;
        reason = chunk.finish_reason;
      });

  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(tokens.size(), 50u);
  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(tokens[i], static_cast<TokenId>(i));
  }
  EXPECT_EQ(reason, FinishReason::kLength);
  EXPECT_THAT(text, testing::StartsWith("0 1 2 "));
}

TEST_F(ClientTest, GenerateReturnsTheServersErrorAfterWhatItSent) {
  int chunks = 0;
  const absl::Status status =
      client_->Generate({.prompt = "fail 8", .max_tokens = 5}, [&](const Chunk&) { ++chunks; });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "as asked");
  EXPECT_EQ(std::string(*status.GetPayload("x-request-id")), "followed");
  EXPECT_EQ(chunks, 1);
}

// The tokens of a generation's choices, as they come.
struct Received {
  ChunkFunction Add() {
    return [this](const Chunk& chunk) {
      for (const TokenOutput& token : chunk.tokens) {
        tokens[chunk.index].push_back(token.token);
      }
      text += chunk.text;
    };
  }
  std::map<uint32_t, std::vector<TokenId>> tokens;
  std::string text;
};

TEST_F(ClientTest, AGenerationGoesOnWhereItsStreamBrokeOff) {
  std::atomic<int> told = 0;
  const auto client =
      Client::Connect({.server = server_.address(), .on_wait = [&told] { ++told; }});
  ASSERT_TRUE(client.ok()) << client.status();
  server_.inference.journals = true;
  server_.inference.away = 2;
  Received received;

  const absl::Status status =
      (*client)->Generate({.prompt = "break 2", .max_tokens = 5}, received.Add());

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(received.tokens[0], ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(received.text, "0 1 2 3 4 ");
  EXPECT_EQ(server_.inference.attached, 3);
  EXPECT_EQ(told, 1);
  const v1::AttachRequest attach = server_.inference.last_attach();
  EXPECT_EQ(attach.request_id(), "r1");
  EXPECT_EQ(attach.index(), 2u);
  Fnv1a digest;
  digest.AddWord(0);
  digest.AddWord(1);
  EXPECT_EQ(attach.digest(), digest.value());
}

TEST_F(ClientTest, EachChoiceOfAGenerationGoesOn) {
  server_.inference.journals = true;
  Received received;

  const absl::Status status =
      client_->Generate({.prompt = "break 1", .max_tokens = 3, .n = 2}, received.Add());

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(received.tokens[0], ElementsAre(0, 1, 2));
  EXPECT_THAT(received.tokens[1], ElementsAre(0, 1, 2));
}

TEST_F(ClientTest, WithoutAJournalABrokenStreamIsAnErrorAtOnce) {
  Received received;
  const absl::Status status =
      client_->Generate({.prompt = "break 2", .max_tokens = 5}, received.Add());
  EXPECT_EQ(status, absl::UnavailableError("Socket closed"));
  EXPECT_THAT(received.tokens[0], ElementsAre(0, 1));
  EXPECT_EQ(server_.inference.attached, 0);
}

TEST_F(ClientTest, AnAnswerThatIsWholeNeedsNoOtherStream) {
  server_.inference.journals = true;
  const absl::Status status =
      client_->Generate({.prompt = "break 2", .max_tokens = 2}, [](const Chunk&) {});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server_.inference.attached, 0);
}

TEST_F(ClientTest, WhoWaitsForTheServerIsCancelledAtOnce) {
  server_.inference.journals = true;
  server_.inference.away = INT32_MAX;
  const Cancellation cancellation;
  std::thread canceller([&] {
    while (server_.inference.attached < 2) {
      std::this_thread::yield();
    }
    cancellation.Cancel();
  });

  const absl::Status status = client_->Generate(
      {.prompt = "break 1", .max_tokens = 2}, [](const Chunk&) {}, cancellation);

  canceller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, ADeadlineEndsTheWaitForTheServer) {
  server_.inference.journals = true;
  server_.inference.away = INT32_MAX;
  const absl::Status status = client_->Generate(
      {.prompt = "break 1", .max_tokens = 2, .deadline = Millis(300)}, [](const Chunk&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, ATraceParentOfALaterVersionIsPassedOnWithoutItsTail) {
  const std::string parent = "-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

  const absl::Status status = client_->Generate(
      {.prompt = "x", .max_tokens = 1, .trace_parent = absl::StrCat("01", parent, "-\xff\t")},
      [](const Chunk&) {});

  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(server_.inference.last_trace_parent(), absl::StrCat("00", parent));
}

TEST_F(ClientTest, CancellationEndsAGenerationAtTheServerToo) {
  const Cancellation cancellation;
  const absl::Status status = client_->Generate(
      {.prompt = "hang"}, [&](const Chunk&) { cancellation.Cancel(); }, cancellation);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  while (server_.inference.cancelled == 0) {
    std::this_thread::yield();
  }
}

TEST_F(ClientTest, AnEarlierCancellationCancelsToo) {
  const Cancellation cancellation;
  cancellation.Cancel();
  const absl::Status status = client_->Generate(
      {.prompt = "hang"}, [](const Chunk&) {}, cancellation);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, ADeadlineEndsAGeneration) {
  const absl::Status status =
      client_->Generate({.prompt = "hang", .deadline = Millis(50)}, [](const Chunk&) {});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ClientTest, HoldsHundredsOfStreamsAtOnce) {
  constexpr int kStreams = 256;
  const Cancellation cancellation;
  absl::BlockingCounter first_tokens(kStreams);
  absl::BlockingCounter ends(kStreams);
  std::atomic<int> wrong = 0;
  for (int i = 0; i < kStreams; ++i) {
    client_->StartGenerate(
        {.prompt = "hang"}, [&](const Chunk&) { first_tokens.DecrementCount(); },
        [&](const absl::Status& status) {
          wrong += status.code() != absl::StatusCode::kCancelled;
          ends.DecrementCount();
        },
        cancellation);
  }

  first_tokens.Wait();
  cancellation.Cancel();
  ends.Wait();

  EXPECT_EQ(wrong, 0);
}

TEST_F(ClientTest, TheDestructorWaitsForCallsThatHaveNotEnded) {
  std::atomic<bool> done = false;
  client_->StartGenerate(
      {.prompt = "x", .max_tokens = 3}, [](const Chunk&) {},
      [&](const absl::Status&) { done = true; });
  client_.reset();
  EXPECT_TRUE(done);
}

TEST_F(ClientTest, CarriesEveryOptionOfARequest) {
  GenerateOptions options = {.request_id = "mine",
                             .prompt = std::vector<ChatMessage>{{"system", "s"}, {"user", "u"}},
                             .max_tokens = 1,
                             .min_tokens = 1,
                             .n = 2,
                             .stop = {"a", "b"},
                             .stop_tokens = {7},
                             .ignore_eos = true,
                             .priority = -3,
                             .temperature = 0.5f,
                             .top_k = 4,
                             .top_p = 0.9f,
                             .min_p = 0.1f,
                             .repetition_penalty = 1.1f,
                             .presence_penalty = 0.2f,
                             .frequency_penalty = 0.3f,
                             .logit_bias = {{5, -1.0f}},
                             .allowed_tokens = {5, 6},
                             .seed = 9,
                             .logprobs = 0};
  ASSERT_TRUE(client_->Generate(options, [](const Chunk&) {}).ok());

  EXPECT_EQ(server_.inference.last_request().ShortDebugString(),
            "request_id: \"mine\" chat { messages { role: \"system\" content: \"s\" } messages { "
            "role: \"user\" content: \"u\" } } max_tokens: 1 sampling { temperature: 0.5 top_k: 4 "
            "top_p: 0.9 min_p: 0.1 repetition_penalty: 1.1 presence_penalty: 0.2 "
            "frequency_penalty: 0.3 logit_bias { token: 5 bias: -1 } seed: 9 logprobs: 0 "
            "allowed_tokens: 5 allowed_tokens: 6 } stop: \"a\" stop: \"b\" stop_tokens: 7 "
            "ignore_eos: true n: 2 min_tokens: 1 priority: -3");
}

TEST_F(ClientTest, LeavesAbsentOptionsToTheServer) {
  ASSERT_TRUE(client_->Generate({.prompt = std::vector<TokenId>{1, 2}}, [](const Chunk&) {}).ok());
  EXPECT_EQ(server_.inference.last_request().ShortDebugString(),
            "tokens { ids: 1 ids: 2 } sampling { }");
}

TEST_F(ClientTest, AScoreTellsHowFarItIs) {
  std::vector<std::pair<uint32_t, uint32_t>> told;
  const auto tell = [&told](uint32_t done, uint32_t tokens) { told.emplace_back(done, tokens); };
  EXPECT_EQ(client_->Score(std::vector<TokenId>{1, 2, 3, 4, 5}, tell)->logprobs.size(), 4u);
  EXPECT_THAT(told, ElementsAre(std::pair(3u, 5u)));
}

TEST_F(ClientTest, AScoreTakesAsLongAsItsPrompt) {
  const auto client = Client::Connect({.server = server_.address(), .call_deadline = Millis(100)});
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::StatusOr<ScoreResult> score = (*client)->Score(std::string("late"));
  EXPECT_TRUE(score.ok()) << score.status();
}

TEST_F(ClientTest, AScoreWhoseStreamBrokeOffIsWaitedFor) {
  std::atomic<int> told = 0;
  const auto client =
      Client::Connect({.server = server_.address(), .on_wait = [&told] { ++told; }});
  ASSERT_TRUE(client.ok()) << client.status();
  server_.inference.journals = true;
  server_.inference.away = 2;

  const absl::StatusOr<ScoreResult> score = (*client)->Score(std::string("break"));

  ASSERT_TRUE(score.ok()) << score.status();
  EXPECT_EQ(score->perplexity, 2.5);
  EXPECT_EQ(server_.inference.attached, 3);
  EXPECT_EQ(server_.inference.last_attach().request_id(), "s1");
  EXPECT_EQ(told, 1);
}

TEST_F(ClientTest, WithoutAJournalAScoreThatBreaksOffIsAnErrorAtOnce) {
  const absl::StatusOr<ScoreResult> score = client_->Score(std::string("break"));
  EXPECT_EQ(score.status(), absl::UnavailableError("Socket closed"));
  EXPECT_EQ(server_.inference.attached, 0);
}

TEST_F(ClientTest, AnswersTheOtherCalls) {
  EXPECT_EQ(client_->Score(std::vector<TokenId>{1, 2, 3})->logprobs.size(), 2u);
  EXPECT_THAT(client_->Tokenize("ab", true)->tokens, ElementsAre('a', 'b'));
  EXPECT_THAT(client_->Tokenize(std::vector<ChatMessage>{{"user", "c"}}, true)->pieces,
              ElementsAre("c"));
  EXPECT_EQ(client_->Detokenize({'h', 'i'}, false).value(), "hi");
  EXPECT_EQ(client_->Cancel("r9").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->ListModels()->at(0).vocabulary, 100u);
  const auto status = client_->Status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status->epoch, 3u);
  EXPECT_EQ(status->nodes.at(0).slots_total, 1000u);
}

// Hosts of companies have one in their environment, for the web.
TEST_F(ClientTest, AWebProxyOfTheEnvironmentIsNotAskedToChangeMembers) {
  setenv("http_proxy", "http://127.0.0.1:1", /*overwrite=*/1);
  unsetenv("no_proxy");

  const absl::StatusOr<std::string> done =
      ChangeMembers({.server = server_.address(), .kind = MemberChangeKind::kAdd, .node = "m2"});

  unsetenv("http_proxy");
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(*done, "m2");
}

TEST_F(ClientTest, SaysUnavailableWhenTheServerGoes) {
  server_.Stop();
  EXPECT_EQ(client_->ListModels().status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lamina::client

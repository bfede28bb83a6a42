// SPDX-License-Identifier: Apache-2.0
#include "gateway/backend_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/control/relay.h"

namespace lamina::gateway {
namespace {

class BackendTest : public testing::Test {
 protected:
  void Connect(const std::string& address, const control::Keepalive& keepalive = {}) {
    backend_ = MakeGrpcBackend(
        address, [this](std::function<void()> work) { boost::asio::post(io_, std::move(work)); },
        TlsFiles(), keepalive);
  }
  // Runs what is posted until `done`.
  void RunUntil(const std::function<bool()>& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done() && std::chrono::steady_clock::now() < end) {
      io_.restart();
      io_.run_one_for(std::chrono::milliseconds(100));
    }
    ASSERT_TRUE(done());
  }
  void Generate(client::GenerateOptions options) {
    generation_ = backend_->Generate(
        options, [this](const client::Chunk& chunk) { chunks_.push_back(chunk); },
        [this](const absl::Status& status) { status_ = status; });
  }

  boost::asio::io_context io_;
  client::FakeServer server_;
  std::unique_ptr<Backend> backend_;
  std::shared_ptr<Generation> generation_;
  std::vector<client::Chunk> chunks_;
  std::optional<absl::Status> status_;
};

TEST_F(BackendTest, ChunksComeOneByOneWhenAskedFor) {
  Connect(server_.address());
  client::GenerateOptions options = {.prompt = std::string("x")};
  options.max_tokens = 3;
  Generate(options);
  for (size_t i = 1; i <= 3; ++i) {
    generation_->Next();
    RunUntil([&] { return chunks_.size() == i; });
  }
  EXPECT_EQ(chunks_[2].finish_reason, client::FinishReason::kLength);
  EXPECT_FALSE(status_.has_value()) << "the end was not asked for yet";
  generation_->Next();
  RunUntil([&] { return status_.has_value(); });
  EXPECT_TRUE(status_->ok()) << *status_;
}

TEST_F(BackendTest, CancellingReachesTheServerWhetherOrNotAChunkIsAskedFor) {
  Connect(server_.address());
  for (const bool asked : {false, true}) {
    const int before = server_.inference.cancelled;
    const size_t chunks = chunks_.size();
    Generate({.prompt = std::string("hang")});
    generation_->Next();
    RunUntil([&] { return chunks_.size() > chunks; });
    if (asked) {
      generation_->Next();
    }
    generation_->Cancel();
    generation_ = nullptr;
    RunUntil([&] { return server_.inference.cancelled > before; });
  }
  EXPECT_FALSE(status_.has_value()) << "nothing is called after Cancel()";
}

TEST_F(BackendTest, CancellingAScoreReachesTheServer) {
  Connect(server_.address());
  const CancelFunction cancel = backend_->Score(std::string("hang"), {}, [](const auto&) {
    ADD_FAILURE() << "called after it was cancelled";
  });
  RunUntil([&] { return server_.inference.hanging == 1; });
  cancel();
  RunUntil([&] { return server_.inference.cancelled == 1; });
  bool answered = false;
  backend_->ListModels([&](const auto&) { answered = true; });
  RunUntil([&] { return answered; });
}

TEST_F(BackendTest, ErrorsKeepTheirCode) {
  Connect(server_.address());
  Generate({.prompt = std::string("fail 8")});
  generation_->Next();
  RunUntil([&] { return chunks_.size() == 1; });
  generation_->Next();
  RunUntil([&] { return status_.has_value(); });
  EXPECT_TRUE(absl::IsResourceExhausted(*status_)) << *status_;
}

TEST_F(BackendTest, WhatTheCoordinatorSaysOfItsNodesComesThrough) {
  Connect(server_.address());
  const std::string reason =
      "the cluster is not serving: m0 failed: ucx: the peer is gone or not reachable (10.1.0.7 "
      "port 41023: Connection refused); between hosts, let their TCP ports through the firewall";
  Generate({.prompt = "fail 14 " + reason});
  generation_->Next();
  RunUntil([&] { return chunks_.size() == 1; });
  generation_->Next();
  RunUntil([&] { return status_.has_value(); });
  EXPECT_EQ(*status_, absl::UnavailableError(reason));
}

TEST_F(BackendTest, CallsWithOneAnswer) {
  Connect(server_.address());
  int answers = 0;
  backend_->ListModels([&](const auto& models) {
    ASSERT_TRUE(models.ok());
    EXPECT_EQ(models->at(0).id, "fake");
    ++answers;
  });
  backend_->Tokenize(std::string("ab"), {}, true, [&](const auto& result) {
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(result->tokens.size(), 2u);
    ++answers;
  });
  backend_->Detokenize({'h', 'i'}, [&](const auto& text) {
    EXPECT_EQ(text.value(), "hi");
    ++answers;
  });
  backend_->Score(std::vector<TokenId>{1, 2}, {}, [&](const auto& score) {
    ASSERT_TRUE(score.ok());
    EXPECT_EQ(score->logprobs.size(), 1u);
    EXPECT_TRUE(score->ranks.empty());
    ++answers;
  });
  backend_->Score(std::vector<TokenId>{1, 2}, {.logprobs = 3}, [&](const auto& score) {
    ASSERT_TRUE(score.ok());
    ASSERT_EQ(score->ranks.size(), 1u);
    EXPECT_EQ(score->ranks[0].rank, 4u);
    ASSERT_EQ(score->ranks[0].top.size(), 3u);
    EXPECT_EQ(score->ranks[0].top[0].text, "x");
    ++answers;
  });
  backend_->GetStatus([&](const auto& status) {
    ASSERT_TRUE(status.ok());
    EXPECT_EQ(status->state, "serving");
    ++answers;
  });
  RunUntil([&] { return answers == 6; });
}

TEST_F(BackendTest, AScoreWhoseStreamBrokeOffIsWaitedFor) {
  Connect(server_.address());
  server_.inference.journals = true;
  server_.inference.away = 1;
  bool answered = false;
  backend_->Score(std::string("break"), {}, [&](const auto& score) {
    ASSERT_TRUE(score.ok()) << score.status();
    EXPECT_EQ(score->perplexity, 2.5);
    answered = true;
  });
  RunUntil([&] { return answered; });
  EXPECT_EQ(server_.inference.attached, 2);
  EXPECT_EQ(server_.inference.last_attach().request_id(), "s1");
}

TEST_F(BackendTest, CarriesEveryOptionOfAScore) {
  Connect(server_.address());
  bool answered = false;
  backend_->Score(std::vector<TokenId>{1, 2},
                  {.decode_from = 1, .policy = "fetch_heads", .kv = "int8", .logprobs = 0},
                  [&](const auto&) { answered = true; });
  RunUntil([&] { return answered; });
  EXPECT_EQ(server_.inference.last_score().ShortDebugString(),
            "tokens { ids: 1 ids: 2 } logprobs: 0 decode_from: 1 policy: \"fetch_heads\" "
            "kv: \"int8\"");
}

// The context of a call keeps the channel. Were a thread of the library to drop the channel last,
// the library would join that thread with itself, and then abort.
TEST_F(BackendTest, WhatACallHoldsGoesInTheThreadThatTakesItsAnswer) {
  absl::Mutex mu;
  std::function<void()> posted;
  bool taken = false;
  backend_ = MakeGrpcBackend(server_.address(), [&](std::function<void()> work) {
    const absl::MutexLock lock(&mu);
    posted = std::move(work);
    mu.Await(absl::Condition(&taken));
  });
  std::thread::id went;
  {
    const std::shared_ptr<int> held(new int, [&](const int* value) {
      went = std::this_thread::get_id();
      delete value;
    });
    backend_->ListModels([held](const auto& models) { EXPECT_TRUE(models.ok()); });
  }
  {
    const absl::MutexLock lock(&mu);
    const auto has_some = [&] { return posted != nullptr; };
    ASSERT_TRUE(mu.AwaitWithTimeout(absl::Condition(&has_some), absl::Seconds(60)));
    posted();
    posted = nullptr;
    taken = true;
  }
  backend_ = nullptr;
  EXPECT_EQ(went, std::this_thread::get_id());
}

TEST_F(BackendTest, ACoordinatorThatIsNotThereIsUnavailable) {
  server_.Stop();
  Connect(server_.address());
  std::optional<absl::Status> status;
  backend_->ListModels([&](const auto& models) { status = models.status(); });
  RunUntil([&] { return status.has_value(); });
  EXPECT_EQ(*status, absl::UnavailableError("the coordinator cannot be reached; try again later"));
}

TEST_F(BackendTest, AStreamEndsWhenTheCoordinatorsHostVanishesAndLastsWhileItIsSilent) {
  const control::Keepalive keepalive = {.interval = Millis(200), .timeout = Millis(1000)};
  const std::string server_path = absl::StrCat(testing::TempDir(), "/backend_server.sock");
  const std::string relay_path = absl::StrCat(testing::TempDir(), "/backend_relay.sock");
  unlink(relay_path.c_str());
  client::FakeInference inference;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + server_path, grpc::InsecureServerCredentials());
  builder.RegisterService(&inference);
  control::AllowKeepalive(keepalive, builder);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  control::Relay relay(relay_path, server_path);
  Connect("unix:" + relay_path, keepalive);
  Generate({.prompt = std::string("hang")});
  generation_->Next();
  RunUntil([&] { return chunks_.size() == 1; });
  generation_->Next();

  // The library sends a ping each second at most, and of itself only two while nothing is sent.
  const auto later = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  RunUntil([&] { return std::chrono::steady_clock::now() > later; });
  EXPECT_FALSE(status_.has_value()) << *status_;

  relay.Vanish();
  RunUntil([&] { return status_.has_value(); });
  EXPECT_TRUE(absl::IsUnavailable(*status_)) << *status_;
  EXPECT_THAT(std::string(status_->message()), testing::HasSubstr("host no longer answers"));
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace lamina::gateway

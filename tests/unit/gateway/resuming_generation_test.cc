// SPDX-License-Identifier: Apache-2.0
#include "gateway/resuming_generation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace lamina::gateway {
namespace {

using ::testing::ElementsAre;

class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = Seconds(1);
};

// A stream whose chunks and end the test says.
struct FakeStream final : public Generation {
  void Next() override { ++asked; }
  void Cancel() override { cancelled = true; }

  AnswerPlace place;  // Where it was attached.
  client::ChunkFunction on_chunk;
  EndFunction on_end;
  int asked = 0;
  bool cancelled = false;
};

class FakeStreams final : public AnswerStreams {
 public:
  std::shared_ptr<Generation> Begin(const client::GenerateOptions&, client::ChunkFunction on_chunk,
                                    EndFunction on_end) override {
    return Add({}, std::move(on_chunk), std::move(on_end));
  }
  std::shared_ptr<Generation> Attach(const AnswerPlace& place, client::ChunkFunction on_chunk,
                                     EndFunction on_end) override {
    return Add(place, std::move(on_chunk), std::move(on_end));
  }
  void After(Nanos, std::function<void()> work) override { waiting.push_back(std::move(work)); }

  FakeStream& last() { return *streams.back(); }
  void Wait() {
    for (const std::function<void()>& work : std::exchange(waiting, {})) {
      work();
    }
  }

  std::vector<std::shared_ptr<FakeStream>> streams;
  std::vector<std::function<void()>> waiting;

 private:
  std::shared_ptr<Generation> Add(const AnswerPlace& place, client::ChunkFunction on_chunk,
                                  EndFunction on_end) {
    streams.push_back(std::make_shared<FakeStream>());
    streams.back()->place = place;
    streams.back()->on_chunk = std::move(on_chunk);
    streams.back()->on_end = std::move(on_end);
    return streams.back();
  }
};

class ResumingGenerationTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin(1); }
  void Begin(uint32_t choices) {
    generation_ = std::make_shared<ResumingGeneration>(
        streams_, clock_, choices,
        [this](const client::Chunk& chunk) { tokens_.push_back(chunk.tokens.at(0).token); },
        [this](const absl::Status& status) { ends_.push_back(status); });
    generation_->Start({});
  }
  void TearDown() override {
    for (const auto& stream : streams_.streams) {  // They keep who listens.
      stream->on_chunk = nullptr;
      stream->on_end = nullptr;
    }
  }

  void Chunk(TokenId token, client::FinishReason finish = client::FinishReason::kNotFinished) {
    generation_->Next();
    Bring(token, finish);
  }
  void Bring(TokenId token, client::FinishReason finish = client::FinishReason::kNotFinished) {
    client::Chunk chunk;
    chunk.tokens.push_back({.token = token});
    chunk.finish_reason = finish;
    streams_.last().on_chunk(chunk);
  }
  void BreakOff(const char* id = "mine") {
    streams_.last().on_end(
        {.status = absl::UnavailableError("gone"), .broke_off = true, .journaled_id = id});
  }

  FakeStreams streams_;
  ManualClock clock_;
  std::shared_ptr<ResumingGeneration> generation_;
  std::vector<TokenId> tokens_;
  std::vector<absl::Status> ends_;
};

TEST_F(ResumingGenerationTest, GoesOnBehindTheTokensThatItHas) {
  Chunk(7);
  Chunk(8);
  generation_->Next();
  BreakOff();
  streams_.Wait();  // No coordinator yet.
  BreakOff("");
  streams_.Wait();

  ASSERT_EQ(streams_.streams.size(), 3u);
  EXPECT_EQ(streams_.last().place.request_id, "mine");
  ASSERT_EQ(streams_.last().place.choices.size(), 1u);
  EXPECT_EQ(streams_.last().place.choices[0].tokens, 2u);
  Fnv1a digest;
  digest.AddWord(7);
  digest.AddWord(8);
  EXPECT_EQ(streams_.last().place.choices[0].digest.value(), digest.value());
  EXPECT_EQ(streams_.last().asked, 1) << "a chunk was asked for, and has not come";
  Bring(9, client::FinishReason::kLength);
  streams_.last().on_end({.status = absl::OkStatus()});
  EXPECT_THAT(tokens_, ElementsAre(7, 8, 9));
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
}

TEST_F(ResumingGenerationTest, WaitsForTheCoordinatorForSoLong) {
  Chunk(7);
  BreakOff();
  clock_.now += client::Resumption::kWaitMax - 1;
  streams_.Wait();
  BreakOff("");
  EXPECT_TRUE(ends_.empty());
  clock_.now += 1;
  streams_.Wait();
  BreakOff("");

  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
  EXPECT_TRUE(streams_.waiting.empty());
}

TEST_F(ResumingGenerationTest, WithoutAJournalItEndsAsItBrokeOff) {
  Chunk(7);
  BreakOff("");
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
}

// A disk that fails turns the journal off.
TEST_F(ResumingGenerationTest, OneThatIsJournaledNoMoreEndsAsItBreaksOff) {
  Chunk(7);
  BreakOff();
  streams_.Wait();
  Chunk(8);
  BreakOff("");
  EXPECT_THAT(tokens_, ElementsAre(7, 8));
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
  EXPECT_TRUE(streams_.waiting.empty());
}

TEST_F(ResumingGenerationTest, WhatTheCoordinatorSaysIsNoBreak) {
  Chunk(7);
  streams_.last().on_end({.status = absl::UnavailableError("no node"), .journaled_id = "mine"});
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("no node")));
}

TEST_F(ResumingGenerationTest, ARequestThatTheNextCoordinatorDoesNotHaveEndsAsItBrokeOff) {
  Chunk(7);
  BreakOff();
  streams_.Wait();
  streams_.last().on_end({.status = absl::NotFoundError("no request")});
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
}

TEST_F(ResumingGenerationTest, WhyTheNextCoordinatorDoesNotGoOnIsPassedOn) {
  Chunk(7);
  BreakOff();
  streams_.Wait();
  streams_.last().on_end({.status = absl::AbortedError("other tokens"), .journaled_id = "mine"});
  EXPECT_THAT(ends_, ElementsAre(absl::AbortedError("other tokens")));
}

TEST_F(ResumingGenerationTest, AnAnswerThatIsWholeHasEnded) {
  Chunk(7, client::FinishReason::kStop);
  BreakOff();
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
}

// The coordinator tells its end once more.
TEST_F(ResumingGenerationTest, AChoiceThatHasEndedIsNotToldTwice) {
  Begin(2);
  Chunk(7, client::FinishReason::kStop);
  BreakOff();
  EXPECT_TRUE(ends_.empty()) << "the other choice is to come";
  streams_.Wait();
  generation_->Next();
  streams_.last().on_chunk({.index = 0, .finish_reason = client::FinishReason::kStop});
  EXPECT_EQ(streams_.last().asked, 2) << "in place of the one that was passed over";
  client::Chunk other{.index = 1, .finish_reason = client::FinishReason::kStop};
  other.tokens.push_back({.token = 8});
  streams_.last().on_chunk(other);
  BreakOff();

  EXPECT_THAT(tokens_, ElementsAre(7, 8));
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
}

TEST_F(ResumingGenerationTest, OneThatIsCancelledWhileItWaitsDoesNotAttach) {
  Chunk(7);
  BreakOff();
  generation_->Cancel();
  streams_.Wait();
  EXPECT_EQ(streams_.streams.size(), 1u);
  EXPECT_TRUE(ends_.empty());
}

}  // namespace
}  // namespace lamina::gateway

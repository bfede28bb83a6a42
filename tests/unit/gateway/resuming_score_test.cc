// SPDX-License-Identifier: Apache-2.0
#include "gateway/resuming_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
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

// Streams whose ends the test says.
class FakeStreams final : public ScoreStreams {
 public:
  CancelFunction BeginScore(const client::Prompt&, const client::ScoreOptions&, Nanos wait_max,
                            ScoreEndFunction on_end) override {
    return Add("", wait_max, std::move(on_end));
  }
  CancelFunction AttachScore(const client::AnswerPlace& place, Nanos wait_max,
                             ScoreEndFunction on_end) override {
    return Add(place.request_id, wait_max, std::move(on_end));
  }
  void After(Nanos, std::function<void()> work) override { waiting.push_back(std::move(work)); }

  void End(ScoreEnd end) { std::exchange(on_end_, nullptr)(std::move(end)); }
  void BreakOff(const char* id = "mine", bool went_on = false) {
    End({.stream = {.status = absl::UnavailableError("gone"),
                    .broke_off = true,
                    .journaled_id = id},
         .went_on = went_on});
  }
  void Wait() {
    for (const std::function<void()>& work : std::exchange(waiting, {})) {
      work();
    }
  }

  std::vector<std::string> begun;  // The ids of those that were attached to; else empty.
  std::vector<Nanos> waits;
  std::vector<std::function<void()>> waiting;
  int cancelled = 0;

 private:
  CancelFunction Add(const std::string& id, Nanos wait_max, ScoreEndFunction on_end) {
    begun.push_back(id);
    waits.push_back(wait_max);
    on_end_ = std::move(on_end);
    return [this] {
      on_end_ = nullptr;
      ++cancelled;
    };
  }

  ScoreEndFunction on_end_;
};

class ResumingScoreTest : public ::testing::Test {
 protected:
  void SetUp() override { score_->Start(std::string("x"), {}); }

  FakeStreams streams_;
  ManualClock clock_;
  std::vector<absl::Status> ends_;
  std::vector<double> perplexities_;
  const std::shared_ptr<ResumingScore> score_ = std::make_shared<ResumingScore>(
      streams_, clock_, [this](const absl::StatusOr<client::ScoreResult>& result) {
        ends_.push_back(result.status());
        perplexities_.push_back(result.ok() ? result->perplexity : 0);
      });
};

TEST_F(ResumingScoreTest, WaitsForTheCoordinatorThatMakesItAgain) {
  streams_.BreakOff("mine", /*went_on=*/true);
  clock_.now += Seconds(1);
  streams_.Wait();  // No coordinator yet.
  streams_.BreakOff("");
  streams_.Wait();
  streams_.End({.went_on = true, .result = client::ScoreResult{.perplexity = 2.5}});

  EXPECT_THAT(streams_.begun, ElementsAre("", "mine", "mine"));
  EXPECT_EQ(streams_.waits[0] - streams_.waits[1], Seconds(1)) << "the bound is that of all";
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
  EXPECT_THAT(perplexities_, ElementsAre(2.5));
}

TEST_F(ResumingScoreTest, WithoutAJournalItEndsAsItBrokeOff) {
  streams_.BreakOff("");
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
  EXPECT_TRUE(streams_.waiting.empty());
}

TEST_F(ResumingScoreTest, OneThatTheNextCoordinatorDoesNotHaveEndsAsItBrokeOff) {
  streams_.BreakOff();
  streams_.Wait();
  streams_.End({.stream = {.status = absl::NotFoundError("no request")}});
  EXPECT_THAT(ends_, ElementsAre(absl::UnavailableError("gone")));
}

TEST_F(ResumingScoreTest, OneThatIsCancelledIsNotAnsweredAndDoesNotAttach) {
  streams_.BreakOff();
  score_->Cancel();
  streams_.Wait();
  EXPECT_THAT(streams_.begun, ElementsAre(""));
  EXPECT_TRUE(ends_.empty());
  EXPECT_EQ(streams_.cancelled, 0) << "there is no stream while it waits";
}

TEST_F(ResumingScoreTest, CancellingItCancelsItsStream) {
  score_->Cancel();
  EXPECT_EQ(streams_.cancelled, 1);
}

}  // namespace
}  // namespace lamina::gateway

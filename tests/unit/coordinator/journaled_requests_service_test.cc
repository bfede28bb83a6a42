// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journaled_requests_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/trace_context.h"
#include "coordinator/resumed_sink.h"
#include "tests/unit/coordinator/journaling_coordinator.h"
#include "tests/unit/coordinator/left_journals.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;

// The host's, which does something first whenever it is asked.
class BusyClock final : public Clock {
 public:
  Nanos Now() const override {
    if (before_ != nullptr) {
      before_();
    }
    return RealClock().Now();
  }
  void Before(std::function<void()> work) { before_ = std::move(work); }

 private:
  std::function<void()> before_;
};

TEST(JournaledRequestsTest, AFullQueueDoesNotRefuseThem) {
  constexpr uint32_t kRequests = 12;
  static_assert(kRequests > 8, "more than SmallLimits() let run and wait");
  MemoryFile file(JournalOfRequests(kRequests));
  Coordinator coordinator(file, Seconds(60), kRequests);
  coordinator.Serve();

  uint64_t refused = 0;
  coordinator.Await([&coordinator, &refused](const EngineStatus& status) {
    refused = coordinator.engine().metrics().failures(absl::StatusCode::kResourceExhausted);
    return status.scheduler.running + status.scheduler.waiting + refused >= kRequests;
  });

  EXPECT_EQ(refused, 0u);
}

TEST(JournaledRequestsTest, TheyQueueInTheOrderInWhichTheyWereAccepted) {
  constexpr uint32_t kRequests = 9;  // The last one waits until others have ended.
  MemoryFile file(JournalOfRequests(kRequests));
  {
    Coordinator coordinator(file);
    coordinator.Serve();
    coordinator.AwaitRequest();
  }

  std::vector<uint64_t> left;
  for (const UnfinishedRequest& unfinished : UnfinishedIn(file)) {
    left.push_back(unfinished.accepted.number);
  }

  ASSERT_FALSE(left.empty());
  std::vector<uint64_t> last(left.size());
  std::iota(last.begin(), last.end(), kRequests + 1 - left.size());
  EXPECT_EQ(left, last);
}

TEST(JournaledRequestsTest, AClientThatComesBackGetsWhatItDoesNotHave) {
  for (const uint32_t index : {0u, 2u, 3u}) {
    MemoryFile file(JournalOfWholeAnswer());
    const std::vector<TokenId> all = {10, 11, 12};
    const auto behind = all.begin() + index;
    Coordinator coordinator(file);
    EXPECT_EQ(coordinator.journaled().resumed(), 1u);
    std::thread nodes([&coordinator] { coordinator.Serve(); });

    const Answer answer = Attach(coordinator, From(index, {all.begin(), behind}));

    nodes.join();
    EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.tokens, std::vector<TokenId>(behind, all.end()));
    EXPECT_EQ(answer.finish, v1::FINISH_REASON_LENGTH);
    EXPECT_EQ(answer.ttft_ms, 0) << "this coordinator has made none of its tokens";
    EXPECT_EQ(answer.journaled, "mine");
    EXPECT_EQ(answer.text, index == 0 ? " 10 11 12" : index == 2 ? " 12" : "");
    EXPECT_EQ(Attach(coordinator, From(0, {})).status.error_code(), grpc::StatusCode::NOT_FOUND);
  }
}

TEST(JournaledRequestsTest, OtherTokensThanThoseOfTheAnswerAreNotGoneOnWith) {
  for (const v1::AttachRequest& request : {From(2, {10, 99}), From(4, {10, 11, 12, 13})}) {
    MemoryFile file(JournalOfWholeAnswer());
    Coordinator coordinator(file);
    coordinator.Serve();

    const Answer answer = Attach(coordinator, request);

    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::ABORTED);
    EXPECT_TRUE(answer.tokens.empty());
  }
}

TEST(JournaledRequestsTest, EachChoiceGoesOnBehindWhatTheClientHasOfIt) {
  MemoryFile file(JournalOfTwoChoices());
  Coordinator coordinator(file);
  coordinator.Serve();

  const Answer answer = Attach(coordinator, AndFurther(From(2, {10, 11}), {20}));

  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.tokens, ElementsAre());
  EXPECT_THAT(answer.further, ElementsAre(21));
  EXPECT_THAT(answer.ends, ::testing::UnorderedElementsAre(0u, 1u));
}

TEST(JournaledRequestsTest, WhatTheClientHasOfEachChoiceIsCompared) {
  const v1::AttachRequest other = AndFurther(From(2, {10, 11}), {99});
  const v1::AttachRequest one_too_many = AndFurther(AndFurther(From(0, {}), {}), {});
  for (const v1::AttachRequest& request : {other, one_too_many}) {
    MemoryFile file(JournalOfTwoChoices());
    Coordinator coordinator(file);
    coordinator.Serve();

    const grpc::Status told = Attach(coordinator, request).status;

    EXPECT_EQ(told.error_code(), request.further_size() == 1 ? grpc::StatusCode::ABORTED
                                                             : grpc::StatusCode::INVALID_ARGUMENT)
        << told.error_message();
  }
}

TEST(JournaledRequestsTest, TheBestOfSeveralIsChosenAgain) {
  MemoryFile file(JournalOfTwoChoices(/*best_of=*/2));
  Coordinator coordinator(file);
  coordinator.Serve();

  const Answer answer = Attach(coordinator, From(0, {}));

  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.tokens, ElementsAre(10, 11));
  EXPECT_THAT(answer.further, ElementsAre());
}

// Between the look at the cluster's state and the engine's at the request.
TEST(JournaledRequestsTest, OneThatComesWhenNodesAreJustLostWaitsForThem) {
  MemoryFile file(JournalOfWholeAnswer());
  BusyClock clock;
  std::atomic<Coordinator*> at_work = nullptr;
  std::atomic<int> looks = 0;
  // Called when the state has been looked at, and before the request is given: the first look finds
  // no node, the second one a node that serves, which goes then.
  clock.Before([&] {
    if (at_work.load() == nullptr) {
      return;
    }
    if (looks == 0) {
      at_work.load()->Serve();
    } else if (looks == 1) {
      at_work.load()->LoseNode();
    }
    ++looks;
  });
  Coordinator coordinator(file, Seconds(60), SmallLimits().waiting_max, clock);
  at_work = &coordinator;
  while (looks < 4) {
    std::this_thread::yield();
  }
  const uint64_t refused = coordinator.engine().metrics().failures(absl::StatusCode::kUnavailable);

  coordinator.Serve();
  const Answer answer = Attach(coordinator, From(0, {}));

  EXPECT_GE(refused, 1u) << "the test did not come between";
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.tokens, ElementsAre(10, 11, 12));
}

// Nodes that come back, too, may go again while all of them start.
TEST(JournaledRequestsTest, OneThatTheClusterStopsServingWaitsForItAgain) {
  MemoryFile file(JournalOfRequests(1));
  Coordinator coordinator(file);
  for (size_t stops = 1; stops < ResumedSink::kLossesMax; ++stops) {
    coordinator.Serve();
    coordinator.AwaitRequest();
    coordinator.LoseNode();
  }
  coordinator.Serve();
  coordinator.AwaitRequest();
  EXPECT_EQ(UnfinishedIn(file).size(), 1u);

  coordinator.LoseNode();  // Once too often: it may be what brings the node down.
  v1::AttachRequest request;
  request.set_request_id("id99");
  const grpc::Status told = Attach(coordinator, request).status;

  EXPECT_EQ(told.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(told.error_message(), "node c0 is gone and the cluster cannot go on without it");
}

TEST(JournaledRequestsTest, RequestsThatNobodyComesForEnd) {
  MemoryFile file(JournalOfWholeAnswer());
  Coordinator coordinator(file, Millis(1));
  AwaitNoneIn(file);
  EXPECT_EQ(Attach(coordinator, From(0, {})).status.error_code(), grpc::StatusCode::NOT_FOUND);
}

// The end of the server ends the stream, as its client's going does.
TEST(JournaledRequestsTest, OneThatWaitsWithItsClientIsLeftToTheCoordinatorBehind) {
  MemoryFile file(JournalOfWholeAnswer());
  {
    Coordinator coordinator(file);
    grpc::ClientContext context;
    const auto stream = coordinator.stub().Attach(&context, From(0, {}));
    stream->WaitForInitialMetadata();
    coordinator.journaled().LeaveOpen();
    context.TryCancel();
    stream->Finish();
  }

  EXPECT_EQ(UnfinishedIn(file).size(), 1u);
}

// Also where nobody has looked at it since.
TEST(JournaledRequestsTest, OneThatItsClientHasCancelledIsNotLeft) {
  size_t left = 1;
  // The server learns of it a little later; it has longer each time.
  for (int wait_ms = 4; wait_ms < 5000 && left > 0; wait_ms *= 4) {
    MemoryFile file(JournalOfWholeAnswer());
    std::atomic<bool> holds = false;
    std::atomic<bool> held = false;
    BusyClock clock;
    clock.Before([&] {
      while (holds) {
        held = true;
        std::this_thread::yield();
      }
    });
    {
      Coordinator coordinator(file, Seconds(60), SmallLimits().waiting_max, clock);
      grpc::ClientContext context;
      const auto stream = coordinator.stub().Attach(&context, From(0, {}));
      stream->WaitForInitialMetadata();
      holds = true;
      while (!held) {
        std::this_thread::yield();
      }
      context.TryCancel();
      stream->Finish();
      std::this_thread::sleep_for(std::chrono::milliseconds(wait_ms));
      coordinator.journaled().LeaveOpen();
      holds = false;
    }
    left = UnfinishedIn(file).size();
  }

  EXPECT_EQ(left, 0u);
}

grpc::StatusCode CancelById(Coordinator& coordinator, const std::string& id) {
  grpc::ClientContext context;
  v1::CancelRequest request;
  request.set_request_id(id);
  v1::CancelResponse response;
  return coordinator.stub().Cancel(&context, request, &response).error_code();
}

TEST(JournaledRequestsTest, OneThatWaitsForTheClusterIsCancelledByItsId) {
  MemoryFile file(JournalOfWholeAnswer());
  Coordinator coordinator(file);

  EXPECT_EQ(CancelById(coordinator, "mine"), grpc::StatusCode::OK);

  EXPECT_EQ(CancelById(coordinator, "mine"), grpc::StatusCode::NOT_FOUND);
  const grpc::Status told = Attach(coordinator, From(3, {10, 11, 12})).status;
  EXPECT_EQ(told.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(told.error_message(), "cancelled by its id");
  AwaitNoneIn(file);
}

TEST(JournaledRequestsTest, AClientThatWaitsForTheClusterIsToldThatItsRequestIsCancelled) {
  MemoryFile file(JournalOfWholeAnswer());
  Coordinator coordinator(file);
  grpc::ClientContext context;
  const auto stream = coordinator.stub().Attach(&context, From(0, {}));
  stream->WaitForInitialMetadata();

  EXPECT_EQ(CancelById(coordinator, "mine"), grpc::StatusCode::OK);

  v1::GenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(JournaledRequestsTest, ARequestThatRunsIsFoundByTheCoordinatorBehind) {
  MemoryFile file;
  {
    Coordinator coordinator(file);
    coordinator.Serve();
    grpc::ClientContext context;
    v1::GenerateRequest request;
    request.set_text(" 1 2 3");
    request.set_request_id("mine");
    request.mutable_sampling()->set_temperature(1);
    const auto stream = coordinator.stub().Generate(&context, request);
    stream->WaitForInitialMetadata();
    EXPECT_EQ(context.GetServerInitialMetadata().count(kJournaledHeader), 1u);
    while (UnfinishedIn(file).empty()) {
      std::this_thread::yield();
    }
    const UnfinishedRequest found = UnfinishedIn(file).at(0);
    EXPECT_EQ(found.accepted.id, "mine");
    v1::GenerateRequest message;
    ASSERT_TRUE(message.ParseFromString(found.accepted.message));
    EXPECT_THAT(message.tokens().ids(), ElementsAre(1, 2, 3));
    EXPECT_TRUE(message.sampling().has_seed());
    context.TryCancel();
    stream->Finish();
    coordinator.Await([](const EngineStatus& status) { return status.scheduler.running == 0; });
  }
  EXPECT_TRUE(UnfinishedIn(file).empty());
}

TEST(JournaledRequestsTest, AScoreThatRunsIsFoundByTheCoordinatorBehind) {
  MemoryFile file;
  {
    Coordinator coordinator(file);
    coordinator.Serve();
    grpc::ClientContext context;
    v1::ScoreRequest request;
    request.set_text(" 1 2 3");
    request.set_logprobs(2);
    const auto stream = coordinator.stub().ScoreStream(&context, request);
    stream->WaitForInitialMetadata();
    EXPECT_EQ(context.GetServerInitialMetadata().count(kJournaledHeader), 1u);
    while (UnfinishedIn(file).empty()) {
      std::this_thread::yield();
    }
    const UnfinishedRequest found = UnfinishedIn(file).at(0);
    EXPECT_TRUE(found.accepted.score);
    v1::ScoreRequest message;
    ASSERT_TRUE(message.ParseFromString(found.accepted.message));
    EXPECT_THAT(message.tokens().ids(), ElementsAre(1, 2, 3));
    EXPECT_EQ(message.logprobs(), 2u);
    context.TryCancel();
    stream->Finish();
    coordinator.Await([](const EngineStatus& status) { return status.scheduler.running == 0; });
  }
  EXPECT_TRUE(UnfinishedIn(file).empty());
}

TEST(JournaledRequestsTest, AScoreBeginsAnewAndItsClientComesBack) {
  MemoryFile file(JournalOfScore());
  Coordinator coordinator(file);
  coordinator.Serve();
  coordinator.AwaitRequest();
  EXPECT_EQ(Attach(coordinator, From(0, {})).status.error_code(), grpc::StatusCode::NOT_FOUND)
      << "it is no generation";

  grpc::ClientContext context;
  const auto stream = coordinator.stub().AttachScore(&context, From(0, {}));
  stream->WaitForInitialMetadata();
  EXPECT_EQ(context.GetServerInitialMetadata().count(kJournaledHeader), 1u);
  EXPECT_EQ(CancelById(coordinator, "mine"), grpc::StatusCode::OK);

  v1::ScoreUpdate update;
  EXPECT_FALSE(stream->Read(&update));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count(kRequestIdHeader), 1u)
      << "else its client takes the call for one that broke off";
}

TEST(JournaledRequestsTest, AScoreWhoseClientGoesWhileItWaitsForTheClusterEnds) {
  MemoryFile file(JournalOfScore());
  Coordinator coordinator(file);
  grpc::ClientContext context;
  const auto stream = coordinator.stub().AttachScore(&context, From(0, {}));
  stream->WaitForInitialMetadata();
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  AwaitNoneIn(file);
}

TEST(JournaledRequestsTest, ASearchBeginsAnewAndItsClientComesBack) {
  MemoryFile file(JournalOfSearch());
  Coordinator coordinator(file);
  coordinator.Serve();
  coordinator.AwaitRequest();
  grpc::ClientContext scoring;
  const auto scores = coordinator.stub().AttachScore(&scoring, From(0, {}));
  EXPECT_EQ(scores->Finish().error_code(), grpc::StatusCode::NOT_FOUND) << "it is no score";

  grpc::ClientContext context;
  const auto stream = coordinator.stub().Attach(&context, From(0, {}));
  stream->WaitForInitialMetadata();
  EXPECT_EQ(context.GetServerInitialMetadata().count(kJournaledHeader), 1u);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace lamina::coordinator

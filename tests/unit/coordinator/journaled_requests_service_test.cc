// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journaled_requests_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fnv1a.h"
#include "common/trace_context.h"
#include "coordinator/inference_service.h"
#include "coordinator/resumed_sink.h"
#include "tests/support/id_tokenizer.h"
#include "tests/unit/coordinator/idle_node.h"
#include "tests/unit/coordinator/small_limits.h"

namespace lamina::coordinator {
namespace {

using ::testing::ElementsAre;

// The journal's file, in memory.
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(std::string bytes) : bytes_(std::move(bytes)) {}

  std::string Copy() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
  }
  void Write(absl::string_view bytes, bool behind) {
    const std::lock_guard lock(mutex_);
    bytes_ = absl::StrCat(behind ? bytes_ : "", bytes);
  }

 private:
  mutable std::mutex mutex_;
  std::string bytes_;
};

class MemoryJournalDisk final : public JournalDisk {
 public:
  explicit MemoryJournalDisk(MemoryFile& file) : file_(file) {}

  absl::StatusOr<std::string> Read() override { return file_.Copy(); }
  absl::Status Replace(absl::string_view bytes) override {
    file_.Write(bytes, /*behind=*/false);
    return absl::OkStatus();
  }
  absl::Status Append(absl::string_view bytes) override {
    file_.Write(bytes, /*behind=*/true);
    return absl::OkStatus();
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  void Remove() override {}

 private:
  MemoryFile& file_;
};

std::vector<UnfinishedRequest> UnfinishedIn(const MemoryFile& file) {
  return ReadJournal(file.Copy()).unfinished;
}

void AwaitNoneIn(const MemoryFile& file) {
  while (!UnfinishedIn(file).empty()) {
    std::this_thread::yield();
  }
}

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

// A coordinator from its start to its end, whose node never does a step.
class Coordinator {
 public:
  // `given`: so many requests that wait are given to the engine at once. `clock` is that of the
  // journaled requests.
  explicit Coordinator(MemoryFile& file, Nanos keep = Seconds(60),
                       uint32_t given = SmallLimits().waiting_max, const Clock& clock = RealClock())
      : journal_(*Journal::Open(std::make_unique<MemoryJournalDisk>(file),
                                {.identity = "model", .gather = 0})),
        journaled_(*journal_, engine_, tokenizer_, clock, {.keep = keep, .waiting_max = given}) {
    service_.UseJournal(journaled_);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Inference::NewStub(server_->InProcessChannel({}));
  }
  ~Coordinator() { server_->Shutdown(); }
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void Serve() {
    node_ = IdleNode::Join(engine_, options_.nodes[0]);
    Await([](const EngineStatus& status) { return status.state == "serving"; });
  }
  void LoseNode() { engine_.NodeLeft(node_->source()); }
  // Until the engine has a request.
  void AwaitRequest() {
    Await([](const EngineStatus& status) {
      return status.scheduler.running + status.scheduler.waiting > 0;
    });
  }
  template <typename Condition>
  void Await(Condition condition) {
    while (!condition(engine_.GetStatus())) {
      std::this_thread::yield();
    }
  }
  v1::Inference::Stub& stub() { return *stub_; }
  JournaledRequests& journaled() { return journaled_; }
  const Engine& engine() const { return engine_; }

 private:
  const test_support::IdTokenizer tokenizer_{kIdleVocabulary};
  const model::ModelConfig config_{.vocabulary = kIdleVocabulary};
  const std::unique_ptr<Journal> journal_;
  const EngineOptions options_ = OneIdleNode();
  std::shared_ptr<IdleNode> node_;
  Engine engine_{options_, tokenizer_, RealClock()};
  JournaledRequests journaled_;
  InferenceService service_{engine_, tokenizer_, config_, 64};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

struct Answer {
  grpc::Status status;
  std::vector<TokenId> tokens;  // Those of choice 0.
  std::vector<TokenId> further;
  std::string text;
  std::vector<uint32_t> ends;  // Choices, as they end.
  v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED;
  double ttft_ms = 0;
  std::string journaled;
};

Answer Attach(Coordinator& coordinator, const v1::AttachRequest& request) {
  grpc::ClientContext context;
  const auto stream = coordinator.stub().Attach(&context, request);
  Answer answer;
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    for (const v1::TokenOutput& token : response.tokens()) {
      (response.index() == 0 ? answer.tokens : answer.further).push_back(token.token());
    }
    answer.text += response.text();
    if (response.has_usage()) {
      answer.ends.push_back(response.index());
    }
    answer.finish = response.finish_reason();
    answer.ttft_ms = response.usage().ttft_ms();
  }
  answer.status = stream->Finish();
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto id = metadata.find(kJournaledHeader); id != metadata.end()) {
    answer.journaled = std::string(id->second.data(), id->second.size());
  }
  return answer;
}

uint64_t DigestOf(const std::vector<TokenId>& tokens) {
  Fnv1a digest;
  for (const TokenId token : tokens) {
    digest.AddWord(static_cast<uint32_t>(token));
  }
  return digest.value();
}

v1::AttachRequest From(uint32_t index, const std::vector<TokenId>& tokens) {
  v1::AttachRequest request;
  request.set_request_id("mine");
  request.set_index(index);
  request.set_digest(DigestOf(tokens));
  return request;
}

// What the client has of choice 1.
v1::AttachRequest AndFurther(v1::AttachRequest request, const std::vector<TokenId>& tokens) {
  v1::ReceivedChoice& further = *request.add_further();
  further.set_index(static_cast<uint32_t>(tokens.size()));
  further.set_digest(DigestOf(tokens));
  return request;
}

// A journal with a request for three tokens that has them all, and whose client does not.
std::string JournalOfWholeAnswer() {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(3);
  message.mutable_sampling()->set_seed(5);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}),
      Encode(
          CommittedRecord{.number = 1, .tokens = {{.token = 10}, {.token = 11}, {.token = 12}}}));
}

// A journal with a whole answer of two choices, the second of which is less likely.
std::string JournalOfTwoChoices(uint32_t best_of = 0) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(2);
  message.set_n(best_of == 0 ? 2 : 1);
  if (best_of > 0) {
    message.set_best_of(best_of);
  }
  message.mutable_sampling()->set_seed(5);
  const auto token = [](TokenId id, float logprob) {
    return plan::SampledToken{.token = id, .logprob = logprob};
  };
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}),
      Encode(CommittedRecord{.number = 1, .tokens = {token(10, -1.0f), token(11, -1.0f)}}),
      Encode(CommittedRecord{.number = 1, .choice = 1, .tokens = {token(20, -2.0f)}}),
      Encode(CommittedRecord{.number = 1, .choice = 1, .index = 1, .tokens = {token(21, -2.0f)}}));
}

// A journal with requests that have no tokens yet; the first of them has the last id.
std::string JournalOfRequests(uint64_t count) {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(20);
  message.mutable_sampling()->set_seed(5);
  std::string bytes = JournalHead("model");
  for (uint64_t number = 1; number <= count; ++number) {
    bytes += Encode(AcceptedRecord{.number = number,
                                   .id = absl::StrCat("id", 100 - number),
                                   .message = message.SerializeAsString()});
  }
  return bytes;
}

// A journal with a score that was accepted.
std::string JournalOfScore() {
  v1::ScoreRequest message;
  message.mutable_tokens()->add_ids(7);
  message.mutable_tokens()->add_ids(8);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{
          .number = 1, .id = "mine", .message = message.SerializeAsString(), .score = true}));
}

// A journal with a beam search that was accepted.
std::string JournalOfSearch() {
  v1::GenerateRequest message;
  message.mutable_tokens()->add_ids(7);
  message.set_max_tokens(3);
  message.set_n(2);
  message.mutable_beam_search()->set_width(2);
  message.mutable_sampling()->set_seed(5);
  return absl::StrCat(
      JournalHead("model"),
      Encode(AcceptedRecord{.number = 1, .id = "mine", .message = message.SerializeAsString()}));
}

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

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journaled_requests_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/best_choices.h"

namespace lamina::coordinator {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);
// So long they wait for all nodes of the cluster file, and then for as many as serve: a new epoch
// for each node that comes would compute them again.
constexpr Nanos kAllNodesWait = Seconds(5);

// The message as the journal has it: nothing of it depends on when it is read.
std::string MessageOf(const v1::GenerateRequest& message, const GenerateSpec& spec) {
  v1::GenerateRequest resolved = message;
  v1::Tokens& prompt = *resolved.mutable_tokens();
  prompt.clear_ids();
  prompt.mutable_ids()->Add(spec.prompt.begin(), spec.prompt.end());
  resolved.mutable_sampling()->set_seed(spec.sampling.seed);
  resolved.clear_prompt_tokens_max();
  resolved.clear_truncate_end();
  resolved.clear_request_id();  // The record has the one that it was given.
  return resolved.SerializeAsString();
}

std::vector<uint32_t> TokensOf(const std::vector<GeneratedChoice>& choices) {
  std::vector<uint32_t> tokens;
  for (const GeneratedChoice& choice : choices) {
    tokens.push_back(static_cast<uint32_t>(choice.tokens.size()));
  }
  return tokens;
}

// What the client has received of each choice.
std::vector<ReceivedTokens> ReceivedOf(const v1::AttachRequest& request) {
  std::vector<ReceivedTokens> received(1);
  received[0].count = request.index();
  if (request.has_digest()) {
    received[0].digest = request.digest();
  }
  for (const v1::ReceivedChoice& further : request.further()) {
    ReceivedTokens& choice = received.emplace_back();
    choice.count = further.index();
    if (further.has_digest()) {
      choice.digest = further.digest();
    }
  }
  return received;
}

bool HasAny(const std::vector<ReceivedTokens>& received) {
  return std::any_of(received.begin(), received.end(),
                     [](const ReceivedTokens& choice) { return choice.count > 0; });
}

}  // namespace

class JournaledRequests::EnginesWord final : public RequestSink {
 public:
  EnginesWord(std::shared_ptr<RequestSink> sink, std::shared_ptr<std::atomic<Given>> given)
      : sink_(std::move(sink)), given_(std::move(given)) {}

  void OnAccepted(const std::string& request_id) override {
    *given_ = Given::kTaken;
    sink_->OnAccepted(request_id);
  }
  void OnOutput(ChoiceOutput output) override { sink_->OnOutput(std::move(output)); }
  void OnProgress(uint32_t tokens_done) override { sink_->OnProgress(tokens_done); }
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override {
    sink_->OnScores(std::move(logprobs), std::move(ranks));
  }
  void OnDone(const absl::Status& status) override {
    if (*given_ == Given::kAsked && absl::IsUnavailable(status)) {
      *given_ = Given::kRefused;
      return;
    }
    *given_ = Given::kTaken;
    sink_->OnDone(status);
  }

 private:
  const std::shared_ptr<RequestSink> sink_;
  const std::shared_ptr<std::atomic<Given>> given_;
};

JournaledRequests::~JournaledRequests() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
  for (auto& [id, left] : left_) {
    if (left.waits()) {
      left.journaled->LeaveOpen();
    }
  }
}

std::shared_ptr<JournaledRequest> JournaledRequests::Begin(const v1::GenerateRequest& message,
                                                           const GenerateSpec& spec) {
  if (!journal_.on() || spec.beams.width > 0) {
    return nullptr;
  }
  return std::make_shared<JournaledRequest>(journal_,
                                            AcceptedRecord{.number = journal_.NewNumber(),
                                                           .followed_id = spec.followed_id,
                                                           .message = MessageOf(message, spec)});
}

void JournaledRequests::Resume(const SpecFunction& spec_of) {
  began_ = clock_.Now();
  for (UnfinishedRequest& unfinished : journal_.TakeUnfinished()) {
    Take(std::move(unfinished), spec_of);
  }
  if (!left_.empty()) {
    resumed_ = left_.size();
    LogInfo("coordinator.journal: ", left_.size(),
            " requests of the coordinator before go on once the cluster serves, and are kept for ",
            ToSeconds(limits_.keep), " s");
    thread_ = std::thread([this] { Run(); });
  }
}

void JournaledRequests::Take(UnfinishedRequest unfinished, const SpecFunction& spec_of) {
  const AcceptedRecord& accepted = unfinished.accepted;
  auto journaled =
      std::make_shared<JournaledRequest>(journal_, accepted.number, TokensOf(unfinished.choices));
  v1::GenerateRequest message;
  absl::StatusOr<GenerateSpec> spec =
      message.ParseFromString(accepted.message)
          ? spec_of(message)
          : absl::StatusOr<GenerateSpec>(absl::DataLossError("it is no message of lamina.v1"));
  if (spec.ok() && (spec->choices > kChoicesMax || spec->choices < unfinished.choices.size())) {
    spec = absl::DataLossError(absl::StrCat("it asks for ", spec->choices, " choices, and has ",
                                            unfinished.choices.size()));
  }
  if (!spec.ok()) {
    LogWarning("coordinator.journal: request ", accepted.id,
               " cannot be gone on with: ", spec.status().message());
    return;
  }
  Left left{.key = Engine::NewKey(),
            .number = accepted.number,
            .spec = *spec,
            .followed_id = accepted.followed_id.empty() ? accepted.id : accepted.followed_id,
            .prompt = spec->prompt,
            .with_logprobs = message.sampling().has_logprobs(),
            .return_prompt = message.return_prompt(),
            .journaled = std::move(journaled)};
  left.spec.request_id = accepted.id;
  left.spec.followed_id = left.followed_id;
  left.spec.accepted_before = true;
  left.spec.generated = std::move(unfinished.choices);
  left.spec.generated.resize(left.spec.choices);
  left.answer = std::make_shared<KeptAnswer>(
      accepted.id, [&engine = engine_, key = left.key] { engine.Cancel(key); });
  // One of an id that is free again may still be on its way to its client: the later one counts.
  left_.insert_or_assign(accepted.id, std::move(left));
}

size_t JournaledRequests::Room() const {
  const EngineStatus status = engine_.GetStatus();
  const bool serves = status.state == "serving" || (absl::StartsWith(status.state, "serving") &&
                                                    clock_.Now() - began_ >= kAllNodesWait);
  const uint32_t waiting = status.scheduler.waiting;
  const bool admits = status.admits && serves && waiting < limits_.waiting_max;
  return admits ? limits_.waiting_max - waiting : 0;
}

std::vector<JournaledRequests::Left*> JournaledRequests::Waiting() {
  std::vector<Left*> waiting;
  for (auto& [id, left] : left_) {
    if (left.waits()) {
      waiting.push_back(&left);
    }
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Left* a, const Left* b) { return a->number < b->number; });
  return waiting;
}

void JournaledRequests::Run() {
  for (bool some_wait = true;;) {
    const size_t room = some_wait ? Room() : 0;
    const bool too_late = clock_.Now() - began_ >= limits_.keep;
    std::unique_lock lock(mutex_);
    const std::vector<Left*> waiting = Waiting();
    for (size_t i = 0; i < std::min(room, waiting.size()); ++i) {
      Submit(*waiting[i]);
    }
    for (auto it = left_.begin(); it != left_.end();) {
      it = IsOver(it->second, too_late) ? left_.erase(it) : std::next(it);
    }
    if (left_.empty() || changed_.wait_for(lock, kLook, [this] { return stopped_; })) {
      return;
    }
    some_wait = !Waiting().empty();
  }
}

void JournaledRequests::Submit(Left& left) {
  *left.given = Given::kAsked;
  std::shared_ptr<RequestSink> sink = left.answer;
  if (left.spec.best > 0) {
    sink = std::make_shared<BestChoices>(std::move(sink), left.spec.best);
  }
  sink = std::make_shared<JournalingSink>(std::move(sink), left.journaled);
  engine_.Submit(left.spec, left.key, std::make_shared<EnginesWord>(std::move(sink), left.given));
}

bool JournaledRequests::IsOver(Left& left, bool too_late) {
  if (*left.given == Given::kAsked) {
    return false;  // It may have to wait again.
  }
  if (!left.waits()) {
    if (left.answer->connected()) {
      return true;
    }
    if (too_late) {
      engine_.Cancel(left.key);
    }
    return too_late;
  }
  if (left.answer->gone()) {
    left.answer->OnDone(absl::CancelledError("the client has gone"));
    return true;
  }
  if (too_late) {
    left.answer->OnDone(absl::UnavailableError(
        absl::StrCat("the cluster had no room for it within ", ToSeconds(limits_.keep),
                     " s of the coordinator's start (coordinator.journal_keep)")));
  }
  return too_late;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* JournaledRequests::Attach(
    grpc::CallbackServerContext* context, const v1::AttachRequest& request) {
  const std::vector<ReceivedTokens> received = ReceivedOf(request);
  std::unique_lock lock(mutex_);
  const auto found = left_.find(request.request_id());
  absl::Status refused;
  if (found == left_.end() || found->second.answer->connected()) {
    refused = absl::NotFoundError("no request of that id waits for its client");
  } else if (const uint32_t choices = found->second.spec.choices; received.size() > choices) {
    refused = absl::InvalidArgumentError(absl::StrCat("the client has tokens of ", received.size(),
                                                      " choices (further); there are ", choices));
  }
  if (!refused.ok()) {
    lock.unlock();
    const auto call = std::make_shared<GenerateCall>(false, tokenizer_, context);
    auto* const reactor = GenerateCall::Start(call, engine_);
    call->OnDone(refused);
    return reactor;
  }
  const Left& left = found->second;
  const auto call =
      std::make_shared<GenerateCall>(left.with_logprobs, tokenizer_, context, left.key);
  auto* const reactor = GenerateCall::Start(call, engine_);
  call->SetFollowedId(left.followed_id);
  call->SetPromptTokens(left.prompt.size());
  call->SetJournaled(left.journaled);
  if (left.return_prompt && !HasAny(received)) {
    call->ReturnPrompt(left.prompt);
  }
  // Under the lock, nobody else connects.
  left.answer->Connect(
      call, [call] { return call->IsCancelled(); }, received);
  return reactor;
}

bool JournaledRequests::Cancel(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(request_id);
  if (found == left_.end() || !found->second.waits()) {
    return false;
  }
  Left& left = found->second;
  *left.given = Given::kTaken;
  left.journaled.reset();  // No coordinator goes on with it.
  left.answer->OnDone(absl::CancelledError("cancelled by its id"));
  return true;
}

}  // namespace lamina::coordinator

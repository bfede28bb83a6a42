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

void SetTokens(const std::vector<TokenId>& tokens, v1::Tokens& message) {
  message.clear_ids();
  message.mutable_ids()->Add(tokens.begin(), tokens.end());
}

// The message as the journal has it: nothing of it depends on when it is read.
std::string MessageOf(const v1::GenerateRequest& message, const GenerateSpec& spec) {
  v1::GenerateRequest resolved = message;
  SetTokens(spec.prompt, *resolved.mutable_tokens());
  resolved.mutable_sampling()->set_seed(spec.sampling.seed);
  resolved.clear_prompt_tokens_max();
  resolved.clear_truncate_end();
  resolved.clear_request_id();  // The record has the one that it was given.
  return resolved.SerializeAsString();
}

std::string MessageOf(const v1::ScoreRequest& message, const GenerateSpec& spec) {
  v1::ScoreRequest resolved = message;
  SetTokens(spec.prompt, *resolved.mutable_tokens());
  return resolved.SerializeAsString();
}

template <typename Message>
absl::StatusOr<GenerateSpec> SpecIn(const std::string& bytes,
                                    const JournaledRequests::SpecFunction<Message>& spec_of,
                                    Message& message) {
  if (!message.ParseFromString(bytes)) {
    return absl::DataLossError("it is no message of lamina.v1");
  }
  return spec_of(message);
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
    if (left.sink->Settle() == ResumedSink::State::kWaits) {
      left.journaled->LeaveOpen();
    }
  }
}

std::shared_ptr<JournaledRequest> JournaledRequests::Begin(const v1::GenerateRequest& message,
                                                           const GenerateSpec& spec) {
  return journal_.on() ? MakeRequest({.message = MessageOf(message, spec)}, spec) : nullptr;
}

std::shared_ptr<JournaledRequest> JournaledRequests::Begin(const v1::ScoreRequest& message,
                                                           const GenerateSpec& spec) {
  return journal_.on() ? MakeRequest({.message = MessageOf(message, spec), .score = true}, spec)
                       : nullptr;
}

std::shared_ptr<JournaledRequest> JournaledRequests::MakeRequest(AcceptedRecord record,
                                                                 const GenerateSpec& spec) {
  record.number = journal_.NewNumber();
  record.followed_id = spec.followed_id;
  return std::make_shared<JournaledRequest>(journal_, std::move(record));
}

void JournaledRequests::Resume(const SpecFunctions& spec_of) {
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

void JournaledRequests::Take(UnfinishedRequest unfinished, const SpecFunctions& spec_of) {
  const AcceptedRecord& accepted = unfinished.accepted;
  auto journaled =
      std::make_shared<JournaledRequest>(journal_, accepted.number, TokensOf(unfinished.choices));
  v1::GenerateRequest message;
  v1::ScoreRequest score;
  absl::StatusOr<GenerateSpec> spec = accepted.score
                                          ? SpecIn(accepted.message, spec_of.score, score)
                                          : SpecIn(accepted.message, spec_of.generate, message);
  if (spec.ok() && (spec->choices > kChoicesMax || spec->choices < unfinished.choices.size())) {
    spec = absl::DataLossError(absl::StrCat("it asks for ", spec->choices, " choices, and has ",
                                            unfinished.choices.size()));
  }
  if (!spec.ok()) {
    LogWarning("coordinator.journal: request ", accepted.id,
               " cannot be gone on with: ", spec.status().message());
    return;
  }
  spec->request_id = accepted.id;
  spec->followed_id = accepted.followed_id.empty() ? accepted.id : accepted.followed_id;
  spec->accepted_before = true;
  std::vector<GeneratedChoice> generated = std::move(unfinished.choices);
  generated.resize(spec->begins_anew() ? 0 : spec->choices);
  const uint64_t key = Engine::NewKey();
  auto answer =
      std::make_shared<KeptAnswer>(accepted.id, [&engine = engine_, key] { engine.Cancel(key); });
  std::shared_ptr<RequestSink> sink = answer;
  if (spec->best > 0) {
    sink = std::make_shared<BestChoices>(std::move(sink), spec->best);
  }
  sink = RecordedSink(*spec, std::move(sink), journaled);
  Left left{.key = key,
            .number = accepted.number,
            .spec = *std::move(spec),
            .with_logprobs = message.sampling().has_logprobs(),
            .return_prompt = message.return_prompt(),
            .journaled = std::move(journaled),
            .answer = std::move(answer),
            .sink = std::make_shared<ResumedSink>(std::move(sink), std::move(generated))};
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
    ForgetThoseOver(too_late);
    if (left_.empty() || changed_.wait_for(lock, kLook, [this] { return stopped_; })) {
      return;
    }
    some_wait = !Waiting().empty();
  }
}

void JournaledRequests::Submit(Left& left) {
  GenerateSpec spec = left.spec;
  spec.generated = left.sink->Give();
  engine_.Submit(std::move(spec), left.key, left.sink);
}

bool JournaledRequests::IsOver(Left& left, bool too_late) {
  if (left.waits() && left.answer->gone()) {
    if (server_ends_) {
      left.journaled->LeaveOpen();
    }
    left.answer->OnDone(absl::CancelledError("the client has gone"));
    return true;
  }
  if (!too_late) {
    return left.sink->state() == ResumedSink::State::kSettled && left.answer->connected();
  }
  if (left.sink->Settle() == ResumedSink::State::kWaits) {
    left.answer->OnDone(absl::UnavailableError(
        absl::StrCat("the cluster had no room for it within ", ToSeconds(limits_.keep),
                     " s of the coordinator's start (coordinator.journal_keep)")));
  } else if (!left.answer->connected()) {
    engine_.Cancel(left.key);
  }
  return true;
}

void JournaledRequests::ForgetThoseOver(bool too_late) {
  for (auto it = left_.begin(); it != left_.end();) {
    it = IsOver(it->second, too_late) ? left_.erase(it) : std::next(it);
  }
}

absl::StatusOr<const JournaledRequests::Left*> JournaledRequests::Find(
    const std::string& request_id, bool score) const {
  const auto found = left_.find(request_id);
  if (found == left_.end() || found->second.spec.score != score ||
      found->second.answer->connected()) {
    return absl::NotFoundError("no request of that id waits for its client");
  }
  return &found->second;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* JournaledRequests::Attach(
    grpc::CallbackServerContext* context, const v1::AttachRequest& request) {
  const std::vector<ReceivedTokens> received = ReceivedOf(request);
  std::unique_lock lock(mutex_);
  absl::StatusOr<const Left*> found = Find(request.request_id(), /*score=*/false);
  if (found.ok() && received.size() > (*found)->spec.choices) {
    found = absl::InvalidArgumentError(absl::StrCat("the client has tokens of ", received.size(),
                                                    " choices (further); there are ",
                                                    (*found)->spec.choices));
  }
  if (!found.ok()) {
    lock.unlock();
    const auto call = std::make_shared<GenerateCall>(false, tokenizer_, context);
    auto* const reactor = GenerateCall::Start(call, engine_);
    call->OnDone(found.status());
    return reactor;
  }
  const Left& left = **found;
  const auto call =
      std::make_shared<GenerateCall>(left.with_logprobs, tokenizer_, context, left.key);
  auto* const reactor = GenerateCall::Start(call, engine_);
  call->SetFollowedId(left.spec.followed_id);
  call->SetPromptTokens(left.spec.prompt.size());
  call->SetJournaled(left.journaled);
  if (left.return_prompt && !HasAny(received)) {
    call->ReturnPrompt(left.spec.prompt);
  }
  // Under the lock, nobody else connects.
  left.answer->Connect(
      call, [call] { return call->IsCancelled(); }, received);
  return reactor;
}

grpc::ServerWriteReactor<v1::ScoreUpdate>* JournaledRequests::AttachScore(
    grpc::CallbackServerContext* context, const v1::AttachRequest& request) {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<const Left*> found = Find(request.request_id(), /*score=*/true);
  const uint64_t key = found.ok() ? (*found)->key : Engine::NewKey();
  const auto call = std::make_shared<ScoreCall>(tokenizer_, context, key);
  auto* const reactor = ScoreCall::StartStream(call, engine_);
  if (!found.ok()) {
    call->OnDone(found.status());
    return reactor;
  }
  const Left& left = **found;
  call->SetFollowedId(left.spec.followed_id);
  call->SetJournaled(left.journaled);
  call->SetPrompt(left.spec.prompt);
  left.answer->Connect(call, [call] { return call->IsCancelled(); }, {});
  return reactor;
}

void JournaledRequests::LeaveOpen() {
  const std::lock_guard lock(mutex_);
  // Clients that have gone before did so themselves.
  ForgetThoseOver(/*too_late=*/false);
  server_ends_ = true;
}

bool JournaledRequests::Cancel(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  const auto found = left_.find(request_id);
  if (found == left_.end() || !found->second.waits()) {
    return false;
  }
  Left& left = found->second;
  left.sink->Settle();
  left.journaled->End();  // No coordinator goes on with it.
  left.answer->OnDone(absl::CancelledError("cancelled by its id"));
  return true;
}

}  // namespace lamina::coordinator

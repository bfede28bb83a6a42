// SPDX-License-Identifier: Apache-2.0
#include "coordinator/generate_call_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/trace_context.h"
#include "coordinator/best_choices.h"
#include "coordinator/waiting_calls.h"

namespace lamina::coordinator {
namespace {

constexpr char kCancelledById[] = "cancelled by its id";

v1::FinishReason ToProto(plan::FinishReason reason) {
  switch (reason) {
    case plan::FinishReason::kNone:
      return v1::FINISH_REASON_UNSPECIFIED;
    case plan::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case plan::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case plan::FinishReason::kCancelled:
    case plan::FinishReason::kError:
      return v1::FINISH_REASON_CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void ToProto(const ChoiceUsage& usage, v1::Usage* proto) {
  proto->set_prompt_tokens(usage.prompt_tokens);
  proto->set_completion_tokens(usage.completion_tokens);
  proto->set_ttft_ms(usage.ttft_ms);
  proto->set_tpot_ms(usage.tpot_ms);
  proto->set_seed(usage.seed);
  proto->set_preemptions(usage.preemptions);
  proto->set_cached_tokens(usage.cached_tokens);
  proto->set_left_out_tokens(usage.left_out_tokens);
  proto->set_lossy(usage.lossy);
}

v1::GenerateResponse ToProto(const std::string& request_id, const ChoiceOutput& output,
                             bool with_logprobs, const model::Tokenizer& tokenizer) {
  v1::GenerateResponse response;
  response.set_request_id(request_id);
  response.set_index(output.index);
  response.set_text(output.text);
  for (const plan::SampledToken& token : output.tokens) {
    v1::TokenOutput* entry = response.add_tokens();
    entry->set_token(token.token);
    entry->set_ends(token.finish == plan::FinishReason::kStop);
    if (with_logprobs) {
      entry->set_logprob(token.logprob);
      entry->set_text(tokenizer.TokenBytes(token.token, /*skip_special=*/false));
      for (const plan::TokenLogprob& top : token.top) {
        coordinator::ToProto(top, tokenizer, entry->add_top());
      }
    }
  }
  response.set_finish_reason(ToProto(output.finish));
  response.set_stop(output.stop);
  if (output.finish != plan::FinishReason::kNone) {
    ToProto(output.usage, response.mutable_usage());
  }
  return response;
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

void ToProto(const plan::TokenLogprob& token, const model::Tokenizer& tokenizer,
             v1::TokenLogprob* proto) {
  proto->set_token(token.token);
  proto->set_logprob(token.logprob);
  proto->set_text(tokenizer.TokenBytes(token.token, /*skip_special=*/false));
}

class GenerateCall::Reactor final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  Reactor(std::shared_ptr<GenerateCall> call, Engine& engine)
      : call_(std::move(call)), engine_(engine) {}

  void OnWriteDone(bool ok) override {
    if (!ok) {
      engine_.Cancel(call_->key_);
    }
    call_->WriteDone();
  }
  void OnCancel() override {
    call_->SetCancelled();
    engine_.Cancel(call_->key_);
  }
  void OnDone() override {
    call_->Detach();
    delete this;
  }

 private:
  const std::shared_ptr<GenerateCall> call_;
  Engine& engine_;
};

grpc::ServerWriteReactor<v1::GenerateResponse>* GenerateCall::Start(
    const std::shared_ptr<GenerateCall>& call, Engine& engine) {
  auto* reactor = new Reactor(call, engine);
  call->Attach(reactor);
  return reactor;
}

void GenerateCall::Wait(const std::shared_ptr<GenerateCall>& call,
                        std::shared_ptr<WaitingCalls> calls, const std::string& request_id) {
  if (!request_id.empty()) {
    call->waiting_id_ = request_id;
    calls->Enter(request_id, call->key_, [waits = std::weak_ptr<GenerateCall>(call)] {
      if (const std::shared_ptr<GenerateCall> cancelled = waits.lock(); cancelled != nullptr) {
        cancelled->CancelById();
      }
    });
  }
  call->waiting_calls_ = std::move(calls);
}

// By whoever has the request: the engine's thread once it was submitted.
void GenerateCall::StopWaiting() {
  if (!waiting_id_.empty()) {
    waiting_calls_->Leave(std::exchange(waiting_id_, {}), key_);
  }
}

void GenerateCall::Refuse(const std::shared_ptr<GenerateCall>& call, Engine& engine,
                          const absl::Status& status) {
  engine.NoteRefused(call->followed_id_, status);
  call->OnDone(status);
}

void GenerateCall::Submit(const std::shared_ptr<GenerateCall>& call, Engine& engine,
                          model::GrammarCache& grammars, GenerateSpec spec) {
  const OutputForm& form = spec.sampling.form;
  const absl::Status valid = spec.sampling.Validate();  // Before any work on a form.
  if (form.any() || !valid.ok()) {
    call->SubmitUnlessCancelled(engine, std::move(spec), call);
    return;
  }
  if (!call->AwaitForm()) {
    call->EndCancelled();
    return;
  }
  const std::shared_ptr<WaitingCalls> calls = call->waiting_calls_;
  if (const absl::Status room = calls->BeginForm(); !room.ok()) {
    Refuse(call, engine, room);
    return;
  }
  const auto waiting = std::make_shared<GenerateSpec>(std::move(spec));
  grammars.Prepare(
      waiting->sampling.form,
      [call, &engine, calls, waiting](const model::GrammarCache::Result& grammar) {
        calls->EndForm();
        if (grammar.ok() || call->IsCancelled()) {
          call->SubmitUnlessCancelled(engine, std::move(*waiting), call);
        } else {
          Refuse(call, engine,
                 {grammar.status().code(),
                  absl::StrCat("the form of the output: ", grammar.status().message())});
        }
      },
      [call] { return call->IsCancelled(); });
}

// The engine forgets a cancellation that comes before the request.
void GenerateCall::SubmitUnlessCancelled(Engine& engine, GenerateSpec spec,
                                         std::shared_ptr<RequestSink> self) {
  if (spec.best > 0) {
    self = std::make_shared<BestChoices>(std::move(self), spec.best);
  }
  if (journaled_ != nullptr) {
    self = RecordedSink(spec, std::move(self), journaled_);
  }
  std::unique_lock lock(mutex_);
  awaits_form_ = false;
  if (!cancelled_) {
    engine.Submit(std::move(spec), key_, std::move(self));
    return;
  }
  lock.unlock();
  EndCancelled();
}

void GenerateCall::Attach(Reactor* reactor) {
  const std::lock_guard lock(mutex_);
  reactor_ = reactor;
  Pump();
}

void GenerateCall::OnAccepted(const std::string& request_id) {
  StopWaiting();
  request_id_ = request_id;
  if (followed_id_.empty()) {
    followed_id_ = request_id;
  }
  if (journaled_ == nullptr || !journaled_->is_recorded()) {
    return;
  }
  const std::lock_guard lock(mutex_);
  if (reactor_ != nullptr && !writing_ && !finishing_) {
    context_->AddInitialMetadata(kJournaledHeader, request_id);
    reactor_->StartSendInitialMetadata();
  }
}

void GenerateCall::OnOutput(ChoiceOutput output) {
  v1::GenerateResponse response = ToProto(request_id_, output, with_logprobs_, tokenizer_);
  response.set_prompt_tokens(prompt_tokens_);
  const std::vector<TokenId> prompt = std::exchange(returned_, {});
  response.mutable_prompt()->Add(prompt.begin(), prompt.end());
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(response));
  Pump();
}

void GenerateCall::OnProgress(uint32_t tokens_done) {
  const std::lock_guard lock(mutex_);
  v1::GenerateResponse response;
  response.set_request_id(request_id_);
  response.set_prompt_tokens_done(tokens_done);
  response.set_prompt_tokens(prompt_tokens_);
  queue_.push_back(std::move(response));
  Pump();
}

void GenerateCall::OnDone(const absl::Status& status) {
  StopWaiting();
  const std::lock_guard lock(mutex_);
  final_ = status;
  Pump();
}

void GenerateCall::WriteDone() {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  Pump();
}

void GenerateCall::Detach() {
  const std::lock_guard lock(mutex_);
  reactor_ = nullptr;
}

void GenerateCall::SetCancelled() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

// The client is told at once where a form is waited for, which may take minutes; else when its text
// has been read, or by the engine, which may have the request by now.
void GenerateCall::CancelById() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  cancelled_by_id_ = true;
  if (awaits_form_) {
    final_ = absl::CancelledError(kCancelledById);
    Pump();
  }
}

bool GenerateCall::AwaitForm() {
  const std::lock_guard lock(mutex_);
  awaits_form_ = !cancelled_;
  return awaits_form_;
}

void GenerateCall::EndCancelled() {
  std::unique_lock lock(mutex_);
  const bool by_id = cancelled_by_id_;
  lock.unlock();
  OnDone(absl::CancelledError(by_id ? kCancelledById : "the client has gone"));
}

bool GenerateCall::IsCancelled() {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

// Guarded by mutex_: starts the next write, or the end when all is written.
void GenerateCall::Pump() {
  if (reactor_ == nullptr || writing_ || finishing_) {
    return;
  }
  if (!queue_.empty()) {
    current_ = std::move(queue_.front());
    queue_.pop_front();
    writing_ = true;
    reactor_->StartWrite(&current_);
  } else if (final_.has_value()) {
    finishing_ = true;
    if (IsRequestId(followed_id_)) {
      context_->AddTrailingMetadata(kRequestIdHeader, followed_id_);
    }
    reactor_->Finish(ToGrpc(*final_));
  }
}

}  // namespace lamina::coordinator

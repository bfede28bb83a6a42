// SPDX-License-Identifier: Apache-2.0
#include "coordinator/kept_answer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lamina::coordinator {

bool KeptAnswer::Connect(std::shared_ptr<RequestSink> sink, std::function<bool()> gone,
                         const std::vector<ReceivedTokens>& received) {
  const std::lock_guard lock(mutex_);
  if (connected_) {
    return false;
  }
  connected_ = true;
  sink_ = std::move(sink);
  gone_ = std::move(gone);
  for (const ReceivedTokens& of_choice : received) {
    choices_.push_back({.received = of_choice});
  }
  sink_->OnAccepted(id_);
  for (ChoiceOutput& output : std::exchange(outputs_, {})) {
    Pass(std::move(output));
  }
  if (scores_.has_value() && sink_ != nullptr) {
    sink_->OnScores(std::move(scores_->logprobs), std::move(scores_->ranks));
    scores_.reset();
  }
  if (done_.has_value() && sink_ != nullptr) {
    std::exchange(sink_, nullptr)->OnDone(*done_);
  }
  return true;
}

bool KeptAnswer::connected() const {
  const std::lock_guard lock(mutex_);
  return connected_;
}

bool KeptAnswer::gone() const {
  const std::lock_guard lock(mutex_);
  const bool was_refused = connected_ && sink_ == nullptr && !done_.has_value();
  return was_refused || (gone_ != nullptr && gone_());
}

// The engine forgets a cancellation that comes before the request.
void KeptAnswer::OnAccepted(const std::string&) {
  if (gone()) {
    cancel_();
  }
}

void KeptAnswer::OnOutput(ChoiceOutput output) {
  const std::lock_guard lock(mutex_);
  if (connected_) {
    Pass(std::move(output));
  } else {
    outputs_.push_back(std::move(output));
  }
}

void KeptAnswer::OnProgress(uint32_t tokens_done) {
  const std::lock_guard lock(mutex_);
  if (sink_ != nullptr) {
    sink_->OnProgress(tokens_done);
  }
}

void KeptAnswer::OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) {
  const std::lock_guard lock(mutex_);
  if (sink_ != nullptr) {
    sink_->OnScores(std::move(logprobs), std::move(ranks));
  } else if (!connected_) {
    scores_ = Scores{.logprobs = std::move(logprobs), .ranks = std::move(ranks)};
  }
}

void KeptAnswer::OnDone(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  done_ = status;
  if (sink_ != nullptr) {
    std::exchange(sink_, nullptr)->OnDone(status);
  }
}

void KeptAnswer::Pass(ChoiceOutput output) {
  if (sink_ == nullptr) {
    return;
  }
  choices_.resize(std::max(choices_.size(), size_t{output.index} + 1));
  Choice& choice = choices_[output.index];
  const uint32_t wanted = choice.received.count;
  const bool was_short = choice.passed < wanted;
  for (const plan::SampledToken& token : output.tokens) {
    if (++choice.passed <= wanted) {
      choice.digest.AddWord(static_cast<uint32_t>(token.token));
    }
  }
  const bool ends = output.finish != plan::FinishReason::kNone;
  if (!was_short) {
    sink_->OnOutput(std::move(output));
    return;
  }
  const bool has_all = choice.passed == wanted;
  const std::optional<uint64_t>& digest = choice.received.digest;
  const bool is_same = !digest.has_value() || *digest == choice.digest.value();
  if (choice.passed > wanted || (has_all && !is_same) || (ends && !has_all)) {
    Refuse(output.index);
  } else if (ends) {
    output.tokens.clear();
    output.text.clear();
    sink_->OnOutput(std::move(output));
  }
}

void KeptAnswer::Refuse(uint32_t index) {
  std::exchange(sink_, nullptr)
      ->OnDone(absl::AbortedError(
          absl::StrCat("request ", id_, " cannot go on where it broke off: the first ",
                       choices_[index].received.count, " tokens of its choice ", index,
                       " are not those that the client has; ask again")));
  cancel_();
}

}  // namespace lamina::coordinator

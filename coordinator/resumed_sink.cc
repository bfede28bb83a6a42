// SPDX-License-Identifier: Apache-2.0
#include "coordinator/resumed_sink.h"

#include <algorithm>
#include <utility>

#include "coordinator/stopped_serving.h"

namespace lamina::coordinator {

ResumedSink::ResumedSink(std::shared_ptr<RequestSink> sink, std::vector<GeneratedChoice> generated)
    : sink_(std::move(sink)), choices_(generated.size()) {
  for (size_t i = 0; i < generated.size(); ++i) {
    choices_[i].generated = std::move(generated[i]);
  }
}

std::vector<GeneratedChoice> ResumedSink::Give() {
  accepted_ = false;
  std::vector<GeneratedChoice> generated;
  for (Choice& choice : choices_) {
    choice.told = 0;
    generated.push_back(choice.generated);
  }
  state_ = State::kGiven;
  return generated;
}

void ResumedSink::OnAccepted(const std::string& request_id) {
  accepted_ = true;
  sink_->OnAccepted(request_id);
}

// The engine tells the tokens that there were one by one, so that none of its outputs has tokens
// that were passed on and others.
void ResumedSink::OnOutput(ChoiceOutput output) {
  if (choices_.empty()) {
    sink_->OnOutput(std::move(output));
    return;
  }
  Choice& choice = choices_[output.index];
  const size_t first = choice.told;
  choice.told += output.tokens.size();
  GeneratedChoice& generated = choice.generated;
  if (choice.told > generated.tokens.size()) {
    const size_t known = generated.tokens.size() - first;
    generated.tokens.insert(generated.tokens.end(),
                            output.tokens.begin() + static_cast<std::ptrdiff_t>(known),
                            output.tokens.end());
    losses_ = 0;
  }
  const bool ends = output.finish != plan::FinishReason::kNone;
  if (ends) {
    generated.ended = output.finish;
  }
  if (choice.told <= choice.passed && (!ends || choice.end_passed)) {
    return;
  }
  choice.passed = std::max(choice.passed, choice.told);
  choice.end_passed = choice.end_passed || ends;
  sink_->OnOutput(std::move(output));
}

void ResumedSink::OnDone(const absl::Status& status) {
  losses_ += accepted_ ? 1 : 0;
  const bool may_wait = HasStoppedServing(status) && losses_ < kLossesMax;
  State given = State::kGiven;
  if (may_wait && state_.compare_exchange_strong(given, State::kWaits)) {
    return;
  }
  state_ = State::kSettled;
  sink_->OnDone(status);
}

}  // namespace lamina::coordinator

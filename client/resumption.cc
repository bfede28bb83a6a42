// SPDX-License-Identifier: Apache-2.0
#include "client/resumption.h"

#include <algorithm>
#include <utility>

namespace lamina::client {

Resumption::Resumption(const Clock& clock, uint32_t choices)
    : clock_(clock), choices_(std::max(1u, choices)) {}

bool Resumption::Take(const Chunk& chunk) {
  TakeProgress();
  const bool says_how_far = chunk.prompt_tokens_done > 0;
  if (says_how_far || chunk.index >= choices_) {
    return true;
  }
  place_.choices.resize(std::max(place_.choices.size(), size_t{chunk.index} + 1));
  ReceivedChoice& choice = place_.choices[chunk.index];
  if (choice.has_ended) {
    return false;
  }
  for (const TokenOutput& token : chunk.tokens) {
    choice.digest.AddWord(static_cast<uint32_t>(token.token));
    ++choice.tokens;
  }
  choice.has_ended = chunk.finish_reason != FinishReason::kNotFinished;
  return true;
}

std::optional<absl::Status> Resumption::End(const StreamEnd& end) {
  // A stream that told something of the answer had told before whether it is journaled.
  if (!end.journaled_id.empty() || !waits()) {
    place_.request_id = end.journaled_id;
  }
  const bool can_attach = end.broke_off && !place_.request_id.empty();
  if (!can_attach) {
    // The next coordinator does not know it: what broke off the stream before says more.
    return absl::IsNotFound(end.status) && broken_.has_value() ? *broken_ : end.status;
  }
  if (HasAll()) {
    return absl::OkStatus();  // Only the word that nothing follows is missing.
  }
  if (!broken_.has_value()) {
    broken_ = end.status;
    wait_until_ = clock_.Now() + kWaitMax;
    pause_ = kPauseMin;
  }
  if (clock_.Now() >= wait_until_) {
    return *broken_;
  }
  return std::nullopt;
}

Nanos Resumption::Pause() { return std::exchange(pause_, std::min(2 * pause_, kPauseMax)); }

uint64_t Resumption::tokens() const {
  uint64_t tokens = 0;
  for (const ReceivedChoice& choice : place_.choices) {
    tokens += choice.tokens;
  }
  return tokens;
}

bool Resumption::HasAll() const {
  const auto ended = std::count_if(place_.choices.begin(), place_.choices.end(),
                                   [](const ReceivedChoice& choice) { return choice.has_ended; });
  return static_cast<uint64_t>(ended) >= choices_;
}

}  // namespace lamina::client

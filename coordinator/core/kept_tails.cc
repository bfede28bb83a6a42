// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/kept_tails.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/sequence_kv.h"

namespace lamina::core {

void KeptTails::Reset(std::vector<uint32_t> block_tokens, uint32_t steps_ahead) {
  block_tokens_ = std::move(block_tokens);
  steps_ahead_ = steps_ahead;
  relied_on_.clear();
}

// A sequence that decodes has K and V of all tokens but the last, which was never an input. One
// that does not decode may not have joined yet, as far as nodes know: its tail is as it was.
void KeptTails::Save(const Sequence& sequence) {
  const SequenceRequest& request = sequence.request;
  const bool decodes = sequence.state == SequenceState::kDecoding;
  if ((!decodes && !relied_on_.contains(request.id)) || block_tokens_[sequence.node] == 0) {
    return;
  }
  const uint32_t stored = decodes ? sequence.tokens() - 1 : sequence.stored_tokens;
  const uint32_t block = block_tokens_[sequence.node];
  const uint32_t tokens = stored % block;
  const bool kept = !request.score && !request.is_beam && !request.lossy &&
                    sequence.held->released == 0 && tokens + steps_ahead_ <= block;
  tails_[request.id] = {
      .node = sequence.node, .first = stored - tokens, .tokens = kept ? tokens : 0};
}

void KeptTails::Restore(const std::vector<std::optional<uint32_t>>& nodes) {
  std::erase_if(tails_, [&](const auto& kept) {
    const std::optional<uint32_t>& node = nodes[kept.second.node];
    const uint32_t block = node ? block_tokens_[*node] : 0;
    return block == 0 || kept.second.first % block != 0 || kept.second.tokens >= block;
  });
  for (auto& [id, tail] : tails_) {
    tail.node = *nodes[tail.node];
  }
}

void KeptTails::Forget(uint32_t node) {
  std::erase_if(tails_, [node](const auto& kept) { return kept.second.node == node; });
}

// Who had no tail there may have taken that of anybody who has one and has not joined. Who goes on
// elsewhere than right behind its open block writes over that.
void KeptTails::Joined(const Sequence& sequence) {
  const auto own = tails_.find(sequence.request.id);
  const bool had = own != tails_.end() && own->second.node == sequence.node;
  if (own != tails_.end()) {
    const Tail& tail = own->second;
    if (had && tail.tokens > 0 && sequence.chunked_tokens == tail.first + tail.tokens) {
      relied_on_.insert(sequence.request.id);
    }
    tails_.erase(own);
  }
  if (!had && block_tokens_[sequence.node] > 0) {
    Forget(sequence.node);
  }
}

bool KeptTails::MayJoin(const Sequence& sequence, uint32_t node) const {
  const auto own = tails_.find(sequence.request.id);
  return may_take_any() || (own != tails_.end() && own->second.node == node);
}

uint32_t KeptTails::TokensBehind(const Sequence& sequence, uint32_t node, uint32_t tokens) const {
  const auto kept = tails_.find(sequence.request.id);
  return kept != tails_.end() && kept->second.node == node && kept->second.first == tokens
             ? kept->second.tokens
             : 0;
}

absl::Status KeptTails::Audit(absl::FunctionRef<bool(plan::SequenceId)> waits) const {
  for (const plan::SequenceId id : relied_on_) {
    if (waits(id)) {
      return absl::InternalError(absl::StrCat("sequence ", id, " waits, and relies on a tail"));
    }
  }
  for (const auto& [id, tail] : tails_) {
    if (!waits(id)) {
      return absl::InternalError(
          absl::StrCat("a tail is kept of sequence ", id, ", which does not wait"));
    }
    const uint32_t block = block_tokens_[tail.node];
    if (block == 0 || tail.first % block != 0 || tail.tokens >= block) {
      return absl::InternalError(absl::StrCat("of sequence ", id, ", ", tail.tokens,
                                              " tokens from ", tail.first,
                                              " on are kept in a tail of ", block));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::core

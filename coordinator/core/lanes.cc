// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lanes.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::core {

void Lanes::Reset(uint32_t decode, const plan::PrefillLanes& prefill, uint32_t memory_nodes,
                  const cost::LayerWindows& windows, const LaneHomes& homes) {
  windows_ = windows;
  homes_ = homes;
  decode_ = decode;
  running_ = 0;
  moving_ = 0;
  lanes_.assign(decode + prefill.count(), LaneSequences(before_));
  for (LaneSequences& lane : lanes_) {
    lane.context_tokens.assign(memory_nodes, 0);
  }
  loads_.assign(lanes_.size(), {});
  paths_.assign(lanes_.size(), plan::AttentionPath::kRemote);
  context_tokens_.assign(memory_nodes, 0);
}

absl::InlinedVector<SeenTokens, 1> Lanes::SeenBy(const Sequence& sequence,
                                                 const SequenceKv& kv) const {
  const uint32_t context = kv.TokensOf(sequence.request.id);
  absl::InlinedVector<SeenTokens, 1> seen;
  kv.VisitSpans(sequence.request.id, [&](const SequenceKv::Span& span) {
    const uint64_t tokens = windows_.SeenIn(span.first, span.first + span.tokens, context);
    if (seen.empty() || seen.back().node != span.node) {
      seen.push_back({.node = span.node});
    }
    seen.back().tokens += tokens;
  });
  return seen;
}

void Lanes::WeighOn(const Sequence& sequence, uint32_t node, uint64_t change) {
  LaneSequences& lane = lanes_[sequence.lane];
  lane.context_tokens[node] += change;
  lane.context_tokens_all += change;
  context_tokens_[node] += change;
  loads_[sequence.next_lane].context_tokens += change;
}

void Lanes::Weigh(const Sequence& sequence, bool add) {
  for (const SeenTokens& seen : sequence.seen) {
    WeighOn(sequence, seen.node, add ? seen.tokens : -seen.tokens);
  }
}

void Lanes::Add(Sequence& sequence, const SequenceKv& kv) {
  LaneSequences& lane = lanes_[sequence.lane];
  LAMINA_CHECK(lane.running.insert(&sequence).second);
  paths_[sequence.lane] = sequence.path;
  paths_[sequence.next_lane] = sequence.path;
  sequence.seen = SeenBy(sequence, kv);
  Weigh(sequence, /*add=*/true);
  lane.tokens += sequence.slots;
  ++loads_[sequence.next_lane].rows;
  ++running_;
  if (sequence.state == SequenceState::kPrefilling) {
    lane.prefilling.insert(&sequence);
  }
  if (sequence.moving()) {
    lane.moving.insert(&sequence);
    ++moving_;
  }
}

void Lanes::Decode(Sequence& sequence) {
  LAMINA_CHECK(lanes_[sequence.lane].prefilling.erase(&sequence) == 1);
  sequence.state = SequenceState::kDecoding;
}

void Lanes::Remove(Sequence& sequence) {
  LaneSequences& lane = lanes_[sequence.lane];
  LAMINA_CHECK(lane.running.erase(&sequence) == 1);
  Weigh(sequence, /*add=*/false);
  lane.tokens -= sequence.slots;
  --loads_[sequence.next_lane].rows;
  --running_;
  if (sequence.state == SequenceState::kPrefilling) {
    lane.prefilling.erase(&sequence);
  }
  if (sequence.moving()) {
    lane.moving.erase(&sequence);
    --moving_;
  }
}

void Lanes::Aim(Sequence& sequence, uint32_t lane) {
  LaneLoad& from = loads_[sequence.next_lane];
  --from.rows;
  from.context_tokens -= sequence.seen_tokens();
  moving_ -= sequence.moving() ? 1 : 0;
  lanes_[sequence.lane].moving.erase(&sequence);
  sequence.next_lane = lane;
  paths_[lane] = sequence.path;
  LaneLoad& to = loads_[lane];
  ++to.rows;
  to.context_tokens += sequence.seen_tokens();
  if (sequence.moving()) {
    lanes_[sequence.lane].moving.insert(&sequence);
    ++moving_;
  }
}

void Lanes::Move(Sequence& sequence, const SequenceKv& kv) {
  Remove(sequence);
  sequence.lane = sequence.next_lane;
  Add(sequence, kv);
}

void Lanes::Grow(Sequence& sequence, uint32_t node, uint32_t slots, const SequenceKv& kv) {
  sequence.slots += slots;
  lanes_[sequence.lane].tokens += slots;
  if (!windows_.empty()) {
    Weigh(sequence, /*add=*/false);
    sequence.seen = SeenBy(sequence, kv);
    Weigh(sequence, /*add=*/true);
    return;
  }
  if (sequence.seen.empty() || sequence.seen.back().node != node) {
    sequence.seen.push_back({.node = node});
  }
  sequence.seen.back().tokens += slots;
  WeighOn(sequence, node, slots);
}

absl::Status Lanes::AuditLane(uint32_t index, const SequenceKv& kv) const {
  const LaneSequences& lane = lanes_[index];
  const auto broken = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("lane ", index, ": ", what));
  };
  std::vector<uint64_t> context(lane.context_tokens.size());
  uint64_t all = 0;
  uint64_t tokens = 0;
  size_t moving = 0;
  size_t prefilling = 0;
  for (Sequence* sequence : lane.running) {
    if (sequence->lane != index) {
      return broken("has a row of another lane");
    }
    if (sequence->path != paths_[index] || sequence->path != paths_[sequence->next_lane]) {
      return broken("has a sequence of another path");
    }
    if (IsPrefill(index) && sequence->last_step > 0) {
      return broken("has decode rows, and is for prompts");
    }
    if (has_prefill() && !IsPrefill(index) && sequence->has_scratch) {
      return broken("has chunks of a prompt, and is for rows");
    }
    if (sequence->slots != kv.TokensOf(sequence->request.id)) {
      return broken("has a sequence that miscounts its slots");
    }
    if (sequence->seen != SeenBy(*sequence, kv)) {
      return broken("has a sequence that miscounts what it sees");
    }
    if (homes_.GroupOf(sequence->next_lane) != homes_.GroupOf(index)) {
      return broken("has a sequence that is wanted where its K and V are not");
    }
    for (const SeenTokens& seen : sequence->seen) {
      if (!homes_.MayLive(index, seen.node)) {
        return broken("has a sequence whose K and V are elsewhere");
      }
      context[seen.node] += seen.tokens;
    }
    all += sequence->seen_tokens();
    tokens += sequence->slots;
    moving += sequence->moving() ? 1 : 0;
    if (sequence->moving() != lane.moving.contains(sequence)) {
      return broken("miscounts those that move");
    }
    const bool prefills = sequence->state == SequenceState::kPrefilling;
    prefilling += prefills ? 1 : 0;
    if (prefills != lane.prefilling.contains(sequence)) {
      return broken("miscounts those with a prompt left");
    }
  }
  if (context != lane.context_tokens || all != lane.context_tokens_all || tokens != lane.tokens) {
    return broken("miscounts its context");
  }
  if (prefilling != lane.prefilling.size()) {
    return broken("has one that prefills elsewhere");
  }
  return moving == lane.moving.size() ? absl::OkStatus() : broken("has one that moves elsewhere");
}

absl::Status Lanes::Audit(const SequenceKv& kv) const {
  std::vector<LaneLoad> loads(lanes_.size());
  std::vector<uint64_t> context(context_tokens_.size());
  size_t running = 0;
  size_t moving = 0;
  for (uint32_t index = 0; index < size(); ++index) {
    LAMINA_RETURN_IF_ERROR(AuditLane(index, kv));
    for (const Sequence* sequence : lanes_[index].running) {
      ++loads[sequence->next_lane].rows;
      loads[sequence->next_lane].context_tokens += sequence->seen_tokens();
    }
    for (size_t node = 0; node < context.size(); ++node) {
      context[node] += lanes_[index].context_tokens[node];
    }
    running += lanes_[index].running.size();
    moving += lanes_[index].moving.size();
  }
  for (uint32_t index = 0; index < size(); ++index) {
    if (loads[index].rows != loads_[index].rows ||
        loads[index].context_tokens != loads_[index].context_tokens) {
      return absl::InternalError(absl::StrCat("lane ", index, " miscounts its load"));
    }
  }
  if (running != running_ || moving != moving_ || context != context_tokens_) {
    return absl::InternalError("the lanes together are miscounted");
  }
  return absl::OkStatus();
}

}  // namespace lamina::core

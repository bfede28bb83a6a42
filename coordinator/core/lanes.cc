// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/lanes.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace lamina::core {

void Lanes::Reset(uint32_t decode, const plan::PrefillLanes& prefill, uint32_t memory_nodes) {
  decode_ = decode;
  running_ = 0;
  moving_ = 0;
  lanes_.assign(decode + prefill.count(), Lane(before_));
  for (Lane& lane : lanes_) {
    lane.context_tokens.assign(memory_nodes, 0);
  }
  loads_.assign(lanes_.size(), {});
  context_tokens_.assign(memory_nodes, 0);
}

void Lanes::Weigh(const Sequence& sequence, const SequenceKv& kv, bool add) {
  Lane& lane = lanes_[sequence.lane];
  kv.VisitSpans(sequence.request.id, [&](uint32_t node, uint32_t tokens) {
    const uint64_t change = add ? tokens : -uint64_t{tokens};
    lane.context_tokens[node] += change;
    lane.context_tokens_all += change;
    context_tokens_[node] += change;
  });
}

void Lanes::Add(Sequence& sequence, const SequenceKv& kv) {
  Lane& lane = lanes_[sequence.lane];
  LAMINA_CHECK(lane.running.insert(&sequence).second);
  Weigh(sequence, kv, /*add=*/true);
  LaneLoad& load = loads_[sequence.next_lane];
  ++load.rows;
  load.context_tokens += sequence.slots;
  ++running_;
  if (sequence.moving()) {
    lane.moving.insert(&sequence);
    ++moving_;
  }
}

void Lanes::Remove(Sequence& sequence, const SequenceKv& kv) {
  Lane& lane = lanes_[sequence.lane];
  LAMINA_CHECK(lane.running.erase(&sequence) == 1);
  Weigh(sequence, kv, /*add=*/false);
  LaneLoad& load = loads_[sequence.next_lane];
  --load.rows;
  load.context_tokens -= sequence.slots;
  --running_;
  if (sequence.moving()) {
    lane.moving.erase(&sequence);
    --moving_;
  }
}

void Lanes::Aim(Sequence& sequence, uint32_t lane) {
  LaneLoad& from = loads_[sequence.next_lane];
  --from.rows;
  from.context_tokens -= sequence.slots;
  moving_ -= sequence.moving() ? 1 : 0;
  lanes_[sequence.lane].moving.erase(&sequence);
  sequence.next_lane = lane;
  LaneLoad& to = loads_[lane];
  ++to.rows;
  to.context_tokens += sequence.slots;
  if (sequence.moving()) {
    lanes_[sequence.lane].moving.insert(&sequence);
    ++moving_;
  }
}

void Lanes::Move(Sequence& sequence, const SequenceKv& kv) {
  Remove(sequence, kv);
  sequence.lane = sequence.next_lane;
  Add(sequence, kv);
}

void Lanes::Grow(Sequence& sequence, uint32_t node, uint32_t slots) {
  Lane& lane = lanes_[sequence.lane];
  lane.context_tokens[node] += slots;
  lane.context_tokens_all += slots;
  context_tokens_[node] += slots;
  loads_[sequence.next_lane].context_tokens += slots;
  sequence.slots += slots;
}

absl::Status Lanes::AuditLane(uint32_t index, const SequenceKv& kv) const {
  const Lane& lane = lanes_[index];
  const auto broken = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("lane ", index, ": ", what));
  };
  std::vector<uint64_t> context(lane.context_tokens.size());
  uint64_t all = 0;
  size_t moving = 0;
  for (Sequence* sequence : lane.running) {
    if (sequence->lane != index) {
      return broken("has a row of another lane");
    }
    if (IsPrefill(index) && sequence->last_step > 0) {
      return broken("has decode rows, and is for prompts");
    }
    if (has_prefill() && !IsPrefill(index) && sequence->state == SequenceState::kPrefilling) {
      return broken("has a prompt, and is for decode rows");
    }
    if (sequence->slots != kv.TokensOf(sequence->request.id)) {
      return broken("has a sequence that miscounts its slots");
    }
    kv.VisitSpans(sequence->request.id,
                  [&](uint32_t node, uint32_t tokens) { context[node] += tokens; });
    all += sequence->slots;
    moving += sequence->moving() ? 1 : 0;
    if (sequence->moving() != lane.moving.contains(sequence)) {
      return broken("miscounts those that move");
    }
  }
  if (context != lane.context_tokens || all != lane.context_tokens_all) {
    return broken("miscounts its context");
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
      loads[sequence->next_lane].context_tokens += sequence->slots;
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

// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/spills.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "plan/spill_blocks.h"

namespace lamina::core {
namespace {

// The ticket of holders that let go: no step that is planned uses the slots because of them.
constexpr uint64_t kReportTicket = UINT64_MAX - 2;

SlotHolder HolderOf(uint64_t id) { return {HolderKind::kSpill, id}; }

}  // namespace

void Spills::Reset(const std::vector<MemoryNodeShare>& nodes) {
  nodes_.clear();
  for (const MemoryNodeShare& share : nodes) {
    nodes_.push_back({.capacity_blocks = share.spill.blocks,
                      .nodes = share.spill.nodes,
                      .rates = share.spill.rates});
  }
  spills_.clear();
  drops_.clear();
  dropping_.clear();
  holders_ = 0;
}

bool Spills::Fits(const Sequence& sequence) const {
  const Node& node = nodes_[sequence.node];
  return sequence.state == SequenceState::kDecoding && sequence.held->nodes.size() == 1 &&
         sequence.held->released == 0 && !sequence.request.score && !sequence.request.is_beam &&
         sequence.held->tokens > 0 && node.failures_in_a_row < kFailuresInARowMax &&
         plan::SpillBlocksOf(sequence.held->tokens) <= node.capacity_blocks - node.used_blocks;
}

cost::SpillRates Spills::RatesOf(uint32_t node) const {
  cost::SpillRates rates = nodes_[node].rates;
  rates.prompt_tokens_per_second = prompt_tokens_per_second_;
  return rates;
}

plan::SpillOut Spills::Out(Sequence& sequence) {
  LAMINA_CHECK(Fits(sequence) && sequence.spill == 0);
  const uint64_t id = ++ids_;
  Spill& spill = spills_[id];
  spill = {.sequence = sequence.request.id,
           .node = sequence.node,
           .tokens = sequence.held->tokens,
           .state = State::kWriting};
  nodes_[spill.node].used_blocks += plan::SpillBlocksOf(spill.tokens);
  sequence.spill = id;
  Hold(id, spill, sequence);
  SetLeaving(spill, true);
  ++stats_.sequences_out;
  return {.spill = id, .sequence = spill.sequence, .tokens = spill.tokens};
}

plan::SpillIn Spills::In(const Sequence& sequence) {
  LAMINA_CHECK(IsStored(sequence));
  Spill& spill = spills_.at(sequence.spill);
  spill.state = State::kReading;
  Hold(sequence.spill, spill, sequence);
  ++stats_.sequences_in;
  return {.spill = sequence.spill,
          .sequence = sequence.request.id,
          .tokens = std::min(spill.tokens, sequence.join_tokens - 1)};
}

void Spills::Leave(const Sequence& sequence) {
  Spill& spill = spills_.at(sequence.spill);
  if (spill.state == State::kReading) {
    SetLeaving(spill, true);
  }
}

void Spills::Drop(Sequence& sequence) {
  const auto entry = spills_.find(std::exchange(sequence.spill, 0));
  if (entry == spills_.end()) {
    return;
  }
  if (entry->second.state == State::kStored) {
    Erase(entry);
  } else {
    entry->second.sequence = 0;
    SetLeaving(entry->second, true);
  }
}

bool Spills::IsStored(const Sequence& sequence) const {
  return spills_.at(sequence.spill).state == State::kStored;
}

uint32_t Spills::NodeOf(const Sequence& sequence) const { return spills_.at(sequence.spill).node; }

uint32_t Spills::TokensOf(const Sequence& sequence) const {
  return spills_.at(sequence.spill).tokens;
}

Spills::Done Spills::Take(const plan::SpillReport& report) {
  const auto entry = spills_.find(report.spill);
  if (entry == spills_.end() || entry->second.state == State::kStored) {
    return {};
  }
  Spill& spill = entry->second;
  spill.failed = spill.failed || !report.ok;
  if (--spill.reports_due > 0) {
    return {};
  }
  const Done done{
      .sequence = spill.sequence, .was_read = spill.state == State::kReading, .ok = !spill.failed};
  Release(entry->first, spill);
  spill.state = State::kStored;
  stats_.failures += done.ok ? 0 : 1;
  uint32_t& failures = nodes_[spill.node].failures_in_a_row;
  failures = done.ok ? 0 : failures + 1;
  if (!done.ok || done.sequence == 0) {
    Erase(entry);
  }
  return done;
}

std::vector<plan::SpillDrop> Spills::TakeDrops() { return std::exchange(drops_, {}); }

void Spills::Dropped(const std::vector<plan::SpillDrop>& drops) {
  for (const plan::SpillDrop& drop : drops) {
    const auto dropped = dropping_.find(drop.spill);
    LAMINA_CHECK(dropped != dropping_.end());
    nodes_[dropped->second.node].used_blocks -= plan::SpillBlocksOf(dropped->second.tokens);
    dropping_.erase(dropped);
  }
}

SpillStats Spills::stats() const {
  SpillStats stats = stats_;
  stats.stored = static_cast<uint32_t>(spills_.size());
  return stats;
}

void Spills::Hold(uint64_t id, Spill& spill, const Sequence& sequence) {
  kv_.Open(HolderOf(id));
  kv_.BeginSpan(HolderOf(id), spill.node);
  kv_.Share(sequence.request.id, 0, std::min(spill.tokens, sequence.held->tokens), HolderOf(id));
  spill.reports_due = nodes_[spill.node].nodes;
  ++holders_;
}

void Spills::Release(uint64_t id, Spill& spill) {
  SetLeaving(spill, false);
  kv_.Release(HolderOf(id), kReportTicket);
  kv_.Recycle(kReportTicket);
  --holders_;
}

void Spills::SetLeaving(Spill& spill, bool leaving) {
  if (spill.leaving != leaving) {
    uint64_t& slots = nodes_[spill.node].leaving;
    slots = leaving ? slots + spill.tokens : slots - spill.tokens;
    spill.leaving = leaving;
  }
}

void Spills::Erase(Entry entry) {
  drops_.push_back({.spill = entry->first});
  dropping_.insert(*entry);
  spills_.erase(entry);
}

absl::Status Spills::Audit() const {
  std::vector<uint32_t> used(nodes_.size());
  std::vector<uint64_t> leaving(nodes_.size());
  uint32_t holders = 0;
  for (const auto& [id, spill] : spills_) {
    used[spill.node] += plan::SpillBlocksOf(spill.tokens);
    leaving[spill.node] += spill.leaving ? spill.tokens : 0;
    holders += spill.state == State::kStored ? 0 : 1;
    if (spill.state == State::kStored && spill.sequence == 0) {
      return absl::InternalError(absl::StrCat("spill ", id, " is of nobody"));
    }
  }
  for (const auto& [id, spill] : dropping_) {
    used[spill.node] += plan::SpillBlocksOf(spill.tokens);
  }
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (used[node] != nodes_[node].used_blocks || leaving[node] != nodes_[node].leaving ||
        used[node] > nodes_[node].capacity_blocks) {
      return absl::InternalError(absl::StrCat("the tier of node ", node, " is miscounted"));
    }
  }
  return holders == holders_ ? absl::OkStatus()
                             : absl::InternalError("holders of spills are miscounted");
}

}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/spills.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// The ticket of holders that let go: no step that is planned uses the slots because of them.
constexpr uint64_t kReportTicket = UINT64_MAX - 2;

SlotHolder HolderOf(uint64_t id) { return {HolderKind::kSpill, id}; }

}  // namespace

void Spills::Reset(const std::vector<MemoryNodeShare>& nodes,
                   const std::vector<uint32_t>& block_tokens) {
  nodes_.clear();
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes_.push_back({.capacity_blocks = nodes[i].spill.blocks,
                      .sequence_block_tokens = block_tokens[i],
                      .nodes = nodes[i].spill.nodes,
                      .rates = nodes[i].spill.rates});
  }
  spills_.clear();
  drops_.clear();
  dropping_.clear();
  holders_ = 0;
  tails_leaving_ = 0;
}

bool Spills::Fits(const Sequence& sequence) const {
  const Node& node = nodes_[sequence.node];
  const uint32_t tokens = sequence.held->tokens;
  return sequence.state == SequenceState::kDecoding && sequence.held->nodes.size() == 1 &&
         sequence.held->released == 0 && !sequence.request.score && !sequence.request.is_beam &&
         tokens > 0 && node.failures_in_a_row < kFailuresInARowMax &&
         BlocksOf(sequence.node, tokens) <= node.capacity_blocks - node.used_blocks;
}

cost::SpillRates Spills::RatesOf(uint32_t node) const {
  cost::SpillRates rates = nodes_[node].rates;
  rates.block_tokens = nodes_[node].sequence_block_tokens;
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
  nodes_[spill.node].used_blocks += BlocksOf(spill.node, spill.tokens);
  sequence.spill = id;
  Hold(id, spill, sequence);
  SetLeaving(spill, spill.held);
  ++stats_.sequences_out;
  return {.spill = id, .sequence = spill.sequence, .tokens = spill.tokens};
}

// Fewer tokens than were written end in the same open block, or with a closed one: of that there is
// no bf16 any more.
plan::SpillIn Spills::In(const Sequence& sequence) {
  LAMINA_CHECK(IsStored(sequence));
  Spill& spill = spills_.at(sequence.spill);
  const uint32_t block = nodes_[spill.node].sequence_block_tokens;
  const uint32_t tokens = std::min(spill.tokens, sequence.join_tokens - 1);
  const bool open = tokens / block == spill.tokens / block;
  spill.state = State::kReading;
  Hold(sequence.spill, spill, sequence);
  ++stats_.sequences_in;
  return {.spill = sequence.spill,
          .sequence = sequence.request.id,
          .tokens = open ? tokens : tokens - OpenOf(spill.node, tokens)};
}

void Spills::Leave(Sequence& sequence) {
  if (sequence.spill != 0) {
    Spill& spill = spills_.at(sequence.spill);
    if (spill.state == State::kReading) {
      SetLeaving(spill, spill.held);
    }
  }
  for (const uint64_t id : std::exchange(sequence.reading, {})) {
    Spill& spill = spills_.at(id);
    spill.sequence = 0;
    SetLeaving(spill, spill.held);
  }
}

plan::SpillOut Spills::OutBlocks(uint32_t node, const std::vector<const OpenSpan*>& blocks,
                                 uint32_t block_tokens) {
  LAMINA_CHECK(HasRoomForBlocks(node));
  const uint64_t id = ++ids_;
  Spill& spill = spills_[id];
  spill = {.node = node,
           .tokens = static_cast<uint32_t>(blocks.size()) * block_tokens,
           .state = State::kWriting,
           .blocks = true};
  ++nodes_[node].used_blocks;
  ++nodes_[node].run_blocks;
  ++nodes_[node].runs_writing;
  Open(id, spill);
  plan::SpillOut out{.spill = id, .tokens = spill.tokens, .memory_node = node};
  for (const OpenSpan* block : blocks) {
    for (const HeldExtent& held : kv_.ShareKept(*block, HolderOf(id))) {
      out.slots.push_back(held.extent);
    }
  }
  spill.held = spill.tokens;
  ++stats_.runs_out;
  return out;
}

plan::SpillIn Spills::InBlocks(uint64_t id, Sequence& sequence, uint32_t first, uint32_t skip,
                               uint32_t tokens) {
  Spill& spill = spills_.at(id);
  LAMINA_CHECK(spill.blocks && spill.state == State::kStored && skip + tokens <= spill.tokens);
  spill.state = State::kReading;
  spill.sequence = sequence.request.id;
  Open(id, spill);
  kv_.Share(sequence.request.id, first, tokens, HolderOf(id));
  spill.held = tokens;
  sequence.reading.push_back(id);
  ++stats_.runs_in;
  return {
      .spill = id, .sequence = sequence.request.id, .tokens = tokens, .first = first, .skip = skip};
}

void Spills::BlockLeaves(uint64_t id, uint32_t tokens) {
  Spill& spill = spills_.at(id);
  if (spill.state == State::kWriting) {
    SetLeaving(spill, spill.leaving + tokens);
  }
}

void Spills::DropBlocks(uint64_t id) {
  const auto entry = spills_.find(id);
  if (entry == spills_.end()) {
    return;
  }
  if (entry->second.state == State::kStored) {
    Erase(entry);
  } else {
    entry->second.dropped = true;
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
    entry->second.dropped = true;
    SetLeaving(entry->second, entry->second.held);
  }
}

bool Spills::IsStored(const Sequence& sequence) const {
  return spills_.at(sequence.spill).state == State::kStored;
}

uint32_t Spills::NodeOf(const Sequence& sequence) const { return spills_.at(sequence.spill).node; }

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
  const Done done{.sequence = spill.sequence,
                  .blocks = spill.blocks ? entry->first : 0,
                  .was_read = spill.state == State::kReading,
                  .ok = !spill.failed};
  nodes_[spill.node].runs_writing -= spill.blocks && !done.was_read ? 1 : 0;
  Release(entry->first, spill);
  spill.sequence = spill.blocks ? 0 : spill.sequence;
  spill.state = State::kStored;
  stats_.failures += done.ok ? 0 : 1;
  uint32_t& failures = nodes_[spill.node].failures_in_a_row;
  failures = done.ok ? 0 : failures + 1;
  if (!done.ok || spill.dropped) {
    Erase(entry);
  }
  return done;
}

std::vector<plan::SpillDrop> Spills::TakeDrops() { return std::exchange(drops_, {}); }

void Spills::Dropped(const std::vector<plan::SpillDrop>& drops) {
  for (const plan::SpillDrop& drop : drops) {
    const auto dropped = dropping_.find(drop.spill);
    LAMINA_CHECK(dropped != dropping_.end());
    Node& node = nodes_[dropped->second.node];
    node.used_blocks -= BlocksOf(dropped->second.node, dropped->second.tokens);
    node.run_blocks -= dropped->second.blocks ? 1 : 0;
    dropping_.erase(dropped);
  }
}

SpillStats Spills::stats() const {
  SpillStats stats = stats_;
  for (const Node& node : nodes_) {
    stats.runs += node.run_blocks;
  }
  stats.stored = static_cast<uint32_t>(std::count_if(
      spills_.begin(), spills_.end(), [](const auto& spill) { return !spill.second.blocks; }));
  return stats;
}

void Spills::Open(uint64_t id, Spill& spill) {
  kv_.Open(HolderOf(id));
  kv_.BeginSpan(HolderOf(id), spill.node);
  spill.reports_due = nodes_[spill.node].nodes;
  spill.failed = false;
  ++holders_;
}

void Spills::Hold(uint64_t id, Spill& spill, const Sequence& sequence) {
  Open(id, spill);
  spill.held = std::min(spill.tokens, sequence.held->tokens);
  kv_.Share(sequence.request.id, 0, spill.held, HolderOf(id));
}

void Spills::Release(uint64_t id, Spill& spill) {
  SetLeaving(spill, 0);
  kv_.Release(HolderOf(id), kReportTicket);
  kv_.Recycle(kReportTicket);
  --holders_;
}

void Spills::SetLeaving(Spill& spill, uint32_t tokens) {
  uint64_t& slots = nodes_[spill.node].leaving;
  slots = slots - spill.leaving + tokens;
  if (OpenOf(spill.node, spill.tokens) > 0) {
    tails_leaving_ = tails_leaving_ - (spill.leaving > 0 ? 1 : 0) + (tokens > 0 ? 1 : 0);
  }
  spill.leaving = tokens;
}

void Spills::Erase(Entry entry) {
  drops_.push_back({.spill = entry->first});
  dropping_.insert(*entry);
  spills_.erase(entry);
}

absl::Status Spills::Audit() const {
  std::vector<Node> counted(nodes_.size());
  uint32_t holders = 0;
  uint32_t tails = 0;
  for (const auto& [id, spill] : spills_) {
    Node& node = counted[spill.node];
    node.used_blocks += BlocksOf(spill.node, spill.tokens);
    tails += spill.leaving > 0 && OpenOf(spill.node, spill.tokens) > 0 ? 1 : 0;
    node.run_blocks += spill.blocks ? 1 : 0;
    node.runs_writing += spill.blocks && spill.state == State::kWriting ? 1 : 0;
    node.leaving += spill.leaving;
    holders += spill.state == State::kStored ? 0 : 1;
    if (spill.state == State::kStored &&
        (spill.dropped || (spill.sequence == 0) != spill.blocks || spill.leaving > 0)) {
      return absl::InternalError(absl::StrCat("spill ", id, " is of nobody"));
    }
  }
  for (const auto& [id, spill] : dropping_) {
    counted[spill.node].used_blocks += BlocksOf(spill.node, spill.tokens);
    counted[spill.node].run_blocks += spill.blocks ? 1 : 0;
  }
  for (size_t node = 0; node < nodes_.size(); ++node) {
    const Node& kept = nodes_[node];
    if (counted[node].used_blocks != kept.used_blocks ||
        counted[node].run_blocks != kept.run_blocks ||
        counted[node].runs_writing != kept.runs_writing || counted[node].leaving != kept.leaving ||
        kept.used_blocks > kept.capacity_blocks) {
      return absl::InternalError(absl::StrCat("the tier of node ", node, " is miscounted"));
    }
  }
  return holders == holders_ && tails == tails_leaving_
             ? absl::OkStatus()
             : absl::InternalError("holders of spills are miscounted, or tails");
}

}  // namespace lamina::core

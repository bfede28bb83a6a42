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

// Tokens of the holder by node.
SpillParts PartsOf(const SequenceKv& kv, SlotHolder holder) {
  SpillParts parts;
  kv.VisitSpans(holder, [&parts](const SequenceKv::Span& span) {
    if (span.tokens == 0) {
      return;
    }
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&span](const SpillPart& one) { return one.node == span.node; });
    if (part == parts.end()) {
      part = parts.insert(part, SpillPart{.node = span.node});
    }
    part->tokens += span.tokens;
  });
  return parts;
}

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
  if (sequence.state != SequenceState::kDecoding || sequence.held->tokens == 0 ||
      sequence.held->released > 0 || sequence.request.score || sequence.request.is_beam) {
    return false;
  }
  const SpillParts parts = PartsOf(kv_, sequence.request.id);
  return std::all_of(parts.begin(), parts.end(), [this](const SpillPart& part) {
    const Node& node = nodes_[part.node];
    return node.failures_in_a_row < kFailuresInARowMax &&
           BlocksOf(part.node, part.tokens) <= node.capacity_blocks - node.used_blocks;
  });
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
  spill.sequence = sequence.request.id;
  spill.parts = PartsOf(kv_, sequence.request.id);
  spill.nodes = sequence.held->nodes;
  spill.tokens = sequence.held->tokens;
  spill.state = State::kWriting;
  for (const SpillPart& part : spill.parts) {
    nodes_[part.node].used_blocks += BlocksOf(part.node, part.tokens);
  }
  sequence.spill = id;
  Hold(id, spill, sequence, spill.tokens);
  HoldAlone(spill);
  ++stats_.sequences_out;
  return {.spill = id, .sequence = spill.sequence, .tokens = spill.tokens};
}

// Fewer tokens than were written end in the same open block, or with a closed one: of that there is
// no bf16 any more.
plan::SpillIn Spills::In(const Sequence& sequence) {
  LAMINA_CHECK(IsStored(sequence));
  Spill& spill = spills_.at(sequence.spill);
  const uint32_t node = spill.nodes.back();
  const uint32_t block = nodes_[node].sequence_block_tokens;
  const uint32_t tokens = std::min(spill.tokens, sequence.join_tokens - 1);
  const bool open = tokens / block == spill.tokens / block;
  spill.state = State::kReading;
  Hold(sequence.spill, spill, sequence, tokens);
  ++stats_.sequences_in;
  return {.spill = sequence.spill,
          .sequence = sequence.request.id,
          .tokens = open ? tokens : tokens - OpenOf(node, tokens)};
}

void Spills::Leave(Sequence& sequence) {
  if (sequence.spill != 0) {
    Spill& spill = spills_.at(sequence.spill);
    if (spill.state == State::kReading) {
      HoldAlone(spill);
    }
  }
  for (const uint64_t id : std::exchange(sequence.reading, {})) {
    Spill& spill = spills_.at(id);
    spill.sequence = 0;
    HoldAlone(spill);
  }
}

plan::SpillOut Spills::OutBlocks(uint32_t node, const std::vector<const OpenSpan*>& blocks,
                                 uint32_t block_tokens) {
  LAMINA_CHECK(HasRoomForBlocks(node));
  const uint64_t id = ++ids_;
  Spill& spill = spills_[id];
  const uint32_t tokens = static_cast<uint32_t>(blocks.size()) * block_tokens;
  spill.parts.push_back(SpillPart{.node = node, .tokens = tokens, .held = tokens});
  spill.tokens = tokens;
  spill.state = State::kWriting;
  spill.blocks = true;
  ++nodes_[node].used_blocks;
  ++nodes_[node].run_blocks;
  ++nodes_[node].runs_writing;
  kv_.Open(HolderOf(id));
  kv_.BeginSpan(HolderOf(id), node);
  plan::SpillOut out{.spill = id, .tokens = spill.tokens, .memory_node = node};
  for (const OpenSpan* block : blocks) {
    for (const HeldExtent& held : kv_.ShareKept(*block, HolderOf(id))) {
      out.slots.push_back(held.extent);
    }
  }
  Expect(spill);
  ++stats_.runs_out;
  return out;
}

plan::SpillIn Spills::InBlocks(uint64_t id, Sequence& sequence, uint32_t first, uint32_t skip,
                               uint32_t tokens) {
  Spill& spill = spills_.at(id);
  LAMINA_CHECK(spill.blocks && spill.state == State::kStored && skip + tokens <= spill.tokens);
  spill.state = State::kReading;
  spill.sequence = sequence.request.id;
  SpillPart& part = spill.parts.front();
  kv_.Open(HolderOf(id));
  kv_.BeginSpan(HolderOf(id), part.node);
  kv_.Share(sequence.request.id, first, tokens, HolderOf(id));
  part.held = tokens;
  Expect(spill);
  sequence.reading.push_back(id);
  ++stats_.runs_in;
  return {
      .spill = id, .sequence = sequence.request.id, .tokens = tokens, .first = first, .skip = skip};
}

void Spills::BlockLeaves(uint64_t id, uint32_t tokens) {
  Spill& spill = spills_.at(id);
  if (spill.state == State::kWriting) {
    SpillPart& part = spill.parts.front();
    SetLeaving(part, part.leaving + tokens);
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
    HoldAlone(entry->second);
  }
}

bool Spills::IsStored(const Sequence& sequence) const {
  return spills_.at(sequence.spill).state == State::kStored;
}

absl::Span<const uint32_t> Spills::NodesOf(const Sequence& sequence) const {
  return spills_.at(sequence.spill).nodes;
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
  const Done done{.sequence = spill.sequence,
                  .blocks = spill.blocks ? entry->first : 0,
                  .was_read = spill.state == State::kReading,
                  .ok = !spill.failed};
  for (const SpillPart& part : spill.parts) {
    Node& node = nodes_[part.node];
    node.runs_writing -= spill.blocks && !done.was_read ? 1 : 0;
    node.failures_in_a_row = done.ok ? 0 : node.failures_in_a_row + 1;
  }
  Release(entry->first, spill);
  spill.sequence = spill.blocks ? 0 : spill.sequence;
  spill.state = State::kStored;
  stats_.failures += done.ok ? 0 : 1;
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
    for (const SpillPart& part : dropped->second.parts) {
      Node& node = nodes_[part.node];
      node.used_blocks -= BlocksOf(part.node, part.tokens);
      node.run_blocks -= dropped->second.blocks ? 1 : 0;
    }
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

void Spills::Expect(Spill& spill) {
  spill.reports_due = 0;
  for (const SpillPart& part : spill.parts) {
    spill.reports_due += part.held > 0 ? nodes_[part.node].nodes : 0;
  }
  spill.failed = false;
  ++holders_;
}

void Spills::Hold(uint64_t id, Spill& spill, const Sequence& sequence, uint32_t tokens) {
  kv_.Fork(sequence.request.id, HolderOf(id), tokens);
  for (SpillPart& part : spill.parts) {
    part.held = kv_.SlotsOn(HolderOf(id), part.node);
  }
  Expect(spill);
}

void Spills::Release(uint64_t id, Spill& spill) {
  for (SpillPart& part : spill.parts) {
    SetLeaving(part, 0);
  }
  kv_.Release(HolderOf(id), kReportTicket);
  kv_.Recycle(kReportTicket);
  --holders_;
}

void Spills::HoldAlone(Spill& spill) {
  for (SpillPart& part : spill.parts) {
    SetLeaving(part, part.held);
  }
}

void Spills::SetLeaving(SpillPart& part, uint32_t tokens) {
  uint64_t& slots = nodes_[part.node].leaving;
  slots = slots - part.leaving + tokens;
  if (OpenOf(part.node, part.tokens) > 0) {
    tails_leaving_ = tails_leaving_ - (part.leaving > 0 ? 1 : 0) + (tokens > 0 ? 1 : 0);
  }
  part.leaving = tokens;
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
    const bool stored = spill.state == State::kStored;
    uint32_t tokens = 0;
    uint32_t leaving = 0;
    for (const SpillPart& part : spill.parts) {
      Node& node = counted[part.node];
      node.used_blocks += BlocksOf(part.node, part.tokens);
      node.run_blocks += spill.blocks ? 1 : 0;
      node.runs_writing += spill.blocks && spill.state == State::kWriting ? 1 : 0;
      node.leaving += part.leaving;
      tails += part.leaving > 0 && OpenOf(part.node, part.tokens) > 0 ? 1 : 0;
      tokens += part.tokens;
      leaving += part.leaving;
      if (!stored && kv_.SlotsOn(HolderOf(id), part.node) != part.held) {
        return absl::InternalError(
            absl::StrCat("spill ", id, " moves others than it holds on node ", part.node));
      }
    }
    holders += stored ? 0 : 1;
    if (tokens != spill.tokens) {
      return absl::InternalError(absl::StrCat("spill ", id, " is not all in tiers"));
    }
    if (stored && (spill.dropped || (spill.sequence == 0) != spill.blocks || leaving > 0)) {
      return absl::InternalError(absl::StrCat("spill ", id, " is of nobody"));
    }
  }
  for (const auto& [id, spill] : dropping_) {
    for (const SpillPart& part : spill.parts) {
      counted[part.node].used_blocks += BlocksOf(part.node, part.tokens);
      counted[part.node].run_blocks += spill.blocks ? 1 : 0;
    }
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

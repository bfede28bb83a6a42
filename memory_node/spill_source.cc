// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/thread_beat.h"
#include "plan/spill_blocks.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {
namespace {

using plan::kSpillBlockTokens;
using plan::kSpillTailTokens;

// How often the inbox of plans is looked at while something is stored or under way, which a plan
// may want back.
constexpr Nanos kPlanLook = Millis(1);

uint32_t TokensIn(const std::vector<Extent>& slots) {
  uint32_t tokens = 0;
  for (const Extent& extent : slots) {
    tokens += extent.tokens;
  }
  return tokens;
}

}  // namespace

SpillSource::SpillSource(const NodeEpoch& epoch, UnitMeter& meter, SpillTier& tier, Report report)
    : epoch_(epoch),
      meter_(meter),
      tier_(tier),
      report_(std::move(report)),
      form_(SpillFormOf(epoch.layers, epoch.device)),
      tail_form_(SpillTailFormOf(epoch.layers, epoch.device)) {
  LAMINA_CHECK(tail_form_->block_bytes() <= form_->block_bytes());
}

absl::Status SpillSource::Open() {
  tier_.file().Format(plan::SpillBlockBytes(form_->block_bytes() / kSpillBlockTokens));
  CountUsed();
  return tier_.io().Open();
}

void SpillSource::Close() {
  tier_.io().Cancel();
  // A disk may be at a block for longer than a data thread may stand still.
  while (!tier_.io().Wait(ThreadBeat::kNapMost)) {
    epoch_.counters.beat.Raise();
  }
  tier_.io().Take(done_);
  done_.clear();
  tier_.io().Close();
  under_way_.clear();
  stored_.clear();
  tier_.counters().used_bytes.store(0, std::memory_order_relaxed);
}

absl::Status SpillSource::Take(const std::vector<plan::SlotMove>& moves) {
  TakeDone();  // What has been reported may be wanted back.
  for (const plan::SlotMove& move : moves) {
    switch (move.kind) {
      case plan::SlotMove::Kind::kDrop:
        Drop(move.spill);
        break;
      case plan::SlotMove::Kind::kOut:
        LAMINA_RETURN_IF_ERROR(BeginOut(move));
        break;
      case plan::SlotMove::Kind::kIn:
        LAMINA_RETURN_IF_ERROR(BeginIn(move));
        break;
    }
  }
  return absl::OkStatus();
}

Nanos SpillSource::LookAt(Nanos now) const {
  if (tier_.io().has_done()) {
    return now;
  }
  return stored_.empty() && under_way_.empty() ? kNever : now + kPlanLook;
}

absl::Status SpillSource::Look() {
  meter_.LapIdle();
  TakeDone();
  meter_.Lap(telemetry::WorkKind::kSpill);
  return absl::OkStatus();
}

void SpillSource::TakeDone() {
  if (!tier_.io().has_done()) {
    return;
  }
  tier_.io().Take(done_);
  for (const SpillOrder& order : done_) {
    auto move = under_way_.extract(order.number);
    End(move.mapped(), order);
  }
  done_.clear();
}

absl::Status SpillSource::BeginOut(const plan::SlotMove& move) {
  const uint32_t tokens = TokensIn(move.slots);
  absl::StatusOr<std::vector<uint32_t>> blocks =
      tier_.file().Take(plan::SpillBlocksOf(tokens) + plan::SpillTailBlocksOf(move.tail.tokens));
  if (!blocks.ok()) {
    Fail(move.spill, blocks.status());
    return absl::OkStatus();
  }
  CountUsed();
  return OrderBlocks({.out = true,
                      .spill = move.spill,
                      .blocks = *std::move(blocks),
                      .tokens = tokens,
                      .tail = move.tail,
                      .of_blocks = move.of_blocks},
                     move.slots);
}

absl::Status SpillSource::BeginIn(const plan::SlotMove& move) {
  const auto found = stored_.find(move.spill);
  const uint32_t tokens = TokensIn(move.slots);
  if (found == stored_.end() || uint64_t{move.skip} + tokens > found->second.tokens ||
      move.tail.tokens > found->second.open) {
    Fail(move.spill, absl::InternalError(absl::StrCat("the plan wants ", tokens + move.tail.tokens,
                                                      " tokens of spill ", move.spill, " back, ",
                                                      "of which there are fewer")));
    return absl::OkStatus();
  }
  const auto stored = found->second.blocks.begin();
  std::vector<uint32_t> blocks(stored + move.skip / kSpillBlockTokens,
                               stored + plan::SpillBlocksOf(move.skip + tokens));
  const auto open = stored + plan::SpillBlocksOf(found->second.tokens);
  blocks.insert(blocks.end(), open, open + plan::SpillTailBlocksOf(move.tail.tokens));
  LAMINA_RETURN_IF_ERROR(OrderBlocks({.spill = move.spill,
                                      .blocks = std::move(blocks),
                                      .tokens = tokens,
                                      .tail = move.tail,
                                      .skip = move.skip % kSpillBlockTokens,
                                      .of_blocks = found->second.of_blocks},
                                     move.slots));
  found->second.ordered = true;
  ReadAhead();
  return absl::OkStatus();
}

void SpillSource::Drop(uint64_t spill) {
  const auto found = stored_.find(spill);
  if (found != stored_.end()) {  // Else another node's, or one that was not written.
    tier_.file().GiveBack(found->second.blocks);
    stored_.erase(found);
    ReadAhead();  // Before anybody writes to these blocks.
    CountUsed();
  }
}

// The last in service order gives up its slots first, and waits for the longest: so the one that
// was written last is the first to come back.
void SpillSource::ReadAhead() {
  std::vector<uint32_t> blocks;
  const auto next = std::find_if(stored_.rbegin(), stored_.rend(), [](const auto& entry) {
    return !entry.second.of_blocks && !entry.second.ordered;
  });
  if (next != stored_.rend()) {
    blocks = next->second.blocks;
    blocks.resize(std::min(blocks.size(), SpillAhead::kBlocks));
  }
  tier_.io().ReadAhead(std::move(blocks));
}

absl::Status SpillSource::OrderBlocks(Move move, absl::Span<const Extent> slots) {
  std::vector<Slots> of_blocks;
  const size_t closed = move.blocks.size() - plan::SpillTailBlocksOf(move.tail.tokens);
  for (uint32_t block = 0; block < closed; ++block) {
    LAMINA_ASSIGN_OR_RETURN(Slots of_block, SlotsOf(move, slots, block));
    of_blocks.push_back(std::move(of_block));
  }
  for (uint32_t done = 0; done < move.tail.tokens; done += kSpillTailTokens) {
    of_blocks.push_back(
        {.extents = {{.first_slot = move.tail.first_slot + done,
                      .tokens = std::min(kSpillTailTokens, move.tail.tokens - done)}}});
  }
  SpillOrder order{.write = move.out,
                   .blocks = move.blocks,
                   .copy =
                       [this, out = move.out, closed, of_blocks = std::move(of_blocks)](
                           size_t index, SpillPass& block) {
                         return Copy(index < closed ? *form_ : *tail_form_, out, of_blocks[index],
                                     block);
                       },
                   .went_well =
                       [this, spill = move.spill] {
                         report_({.epoch = epoch_.config.epoch, .spill = spill, .ok = true});
                       },
                   .number = ++orders_};
  move.taken = RealClock().Now();
  under_way_.emplace(order.number, std::move(move));
  tier_.io().Order(std::move(order));
  return absl::OkStatus();
}

absl::StatusOr<SpillSource::Slots> SpillSource::SlotsOf(const Move& move,
                                                        absl::Span<const Extent> slots,
                                                        uint32_t block) {
  // Slots are of the tokens behind those that are passed over.
  const uint32_t begin = block * kSpillBlockTokens;
  const uint32_t first = begin - std::min(begin, move.skip);
  const uint32_t end = std::min(begin + kSpillBlockTokens - move.skip, move.tokens);
  Slots of_block;
  LAMINA_ASSIGN_OR_RETURN(of_block.extents,
                          plan::SlotTables::Part(slots, move.tokens, first, end - first));
  of_block.passed = begin == 0 ? move.skip : 0;
  if (of_block.passed > 0) {
    of_block.extents.insert(of_block.extents.begin(),
                            Extent{.first_slot = 0, .tokens = of_block.passed});
  }
  return of_block;
}

absl::Status SpillSource::Copy(const SpillForm& form, bool out, const Slots& slots,
                               SpillPass& block) {
  const uint32_t tokens = TokensIn(slots.extents) - slots.passed;
  return out ? form.Load(slots.extents, slots.passed, tokens, block)
             : form.Unload(block, slots.extents, slots.passed, tokens);
}

// The thread that was the last at it has reported what went well.
void SpillSource::End(Move& move, const SpillOrder& order) {
  if (!order.status.ok()) {
    if (move.out) {
      tier_.file().GiveBack(move.blocks);
      CountUsed();
    }
    return Fail(move.spill, order.status);
  }
  SpillTier::Counters& counters = tier_.counters();
  const uint64_t bytes = move.blocks.size() * tier_.file().block_bytes();
  telemetry::AddTo(move.out ? counters.bytes_out : counters.bytes_in, bytes);
  if (move.of_blocks) {
    telemetry::AddTo(move.out ? counters.cached_tokens_out : counters.cached_tokens_in,
                     move.tokens);
  } else {
    telemetry::AddTo(move.out ? counters.sequences_out : counters.sequences_in, 1);
  }
  telemetry::AddTo(move.out ? counters.nanos_out : counters.nanos_in,
                   static_cast<uint64_t>(order.ended - move.taken));
  if (!move.out) {
    CountParts(move, order);
  }
  tier_.WentWell();
  TellEnded(move.spill);
  if (move.out) {
    stored_[move.spill] = {.blocks = std::move(move.blocks),
                           .tokens = move.tokens,
                           .open = move.tail.tokens,
                           .of_blocks = move.of_blocks};
    ReadAhead();
  }
}

void SpillSource::CountParts(const Move& move, const SpillOrder& order) {
  if (move.blocks.empty()) {
    return;  // It had no tokens.
  }
  SpillTier::Counters& counters = tier_.counters();
  const SpillTimes& times = order.times;
  const auto add = [](std::atomic<uint64_t>& counter, Nanos nanos) {
    telemetry::AddTo(counter, static_cast<uint64_t>(std::max<Nanos>(nanos, 0)));
  };
  add(counters.nanos_queued, times.begun - move.taken);
  add(counters.nanos_reading, times.at_disk);
  add(counters.nanos_behind, order.ended - times.fetched);
  add(counters.nanos_copying, times.copying);
  telemetry::AddTo(counters.bytes_ahead, uint64_t{times.ahead} * tier_.file().block_bytes());
}

void SpillSource::TellEnded(uint64_t spill) const {
  if (ended_ != nullptr) {
    ended_(spill);
  }
}

void SpillSource::Fail(uint64_t spill, const absl::Status& why) {
  tier_.Failed(why);
  TellEnded(spill);
  report_({.epoch = epoch_.config.epoch, .spill = spill, .ok = false});
}

void SpillSource::CountUsed() {
  const SpillFile& file = tier_.file();
  tier_.counters().used_bytes.store(
      uint64_t{file.blocks() - file.blocks_free()} * file.block_bytes(), std::memory_order_relaxed);
}

}  // namespace lamina::memory_node

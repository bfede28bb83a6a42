// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/spill_blocks.h"
#include "telemetry/work_meter.h"

namespace lamina::memory_node {
namespace {

using plan::kSpillBlockTokens;

// How often the disk is looked at while there is nothing else to do, and the inbox of plans while
// something is stored, which a plan may want back.
constexpr Nanos kDiskLook = Micros(200);
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
      form_(SpillFormOf(epoch.layers, epoch.device)) {}

absl::Status SpillSource::Open() {
  tier_.file().Format(plan::SpillBlockBytes(form_->block_bytes() / kSpillBlockTokens));
  CountUsed();
  return tier_.io().Open();
}

void SpillSource::Close() {
  tier_.io().Cancel();
  tier_.io().Wait();
  tier_.io().Take(done_);
  tier_.io().Close();
  move_.reset();
  moves_.clear();
  stored_.clear();
  tier_.counters().used_bytes.store(0, std::memory_order_relaxed);
}

void SpillSource::Take(std::vector<plan::SlotMove> moves) {
  for (plan::SlotMove& move : moves) {
    moves_.emplace_back(std::move(move), RealClock().Now());
  }
}

bool SpillSource::HasWork() const {
  return tier_.io().has_done() || (!move_.has_value() && !moves_.empty());
}

Nanos SpillSource::LookAt(Nanos now) const {
  if (HasWork()) {
    return now;
  }
  if (move_.has_value()) {
    return now + kDiskLook;
  }
  return stored_.empty() ? kNever : now + kPlanLook;
}

absl::Status SpillSource::Look() {
  meter_.LapIdle();
  TakeDone();
  if (!move_.has_value() && !moves_.empty()) {
    LAMINA_RETURN_IF_ERROR(Begin());
  }
  meter_.Lap(telemetry::WorkKind::kSpill);
  return absl::OkStatus();
}

// Behind an error nothing of the move is of use any more.
void SpillSource::TakeDone() {
  if (!tier_.io().has_done()) {
    return;
  }
  tier_.io().Take(done_);
  for (const SpillOrder& order : done_) {
    move_->status.Update(order.status);
  }
  move_->ordered -= done_.size();
  if (!move_->status.ok()) {
    move_->ordered -= tier_.io().Cancel();
  }
  if (move_->ordered == 0) {
    End();
  }
}

absl::Status SpillSource::Begin() {
  plan::SlotMove& move = moves_.front().first;
  switch (move.kind) {
    case plan::SlotMove::Kind::kDrop:
      Drop(move.spill);
      moves_.pop_front();
      break;
    case plan::SlotMove::Kind::kOut:
      BeginOut(move);
      break;
    case plan::SlotMove::Kind::kIn:
      BeginIn(move);
      break;
  }
  return move_.has_value() ? OrderBlocks() : absl::OkStatus();
}

void SpillSource::BeginOut(plan::SlotMove& move) {
  const uint32_t tokens = TokensIn(move.slots);
  absl::StatusOr<std::vector<uint32_t>> blocks = tier_.file().Take(plan::SpillBlocksOf(tokens));
  if (!blocks.ok()) {
    Fail(move.spill, blocks.status());
    moves_.pop_front();
    return;
  }
  move_ = Move{.blocks = *std::move(blocks), .tokens = tokens, .of_blocks = move.of_blocks};
  CountUsed();
}

void SpillSource::BeginIn(plan::SlotMove& move) {
  const auto found = stored_.find(move.spill);
  const uint32_t tokens = TokensIn(move.slots);
  if (found == stored_.end() || uint64_t{move.skip} + tokens > found->second.tokens) {
    Fail(move.spill,
         absl::InternalError(absl::StrCat("the plan wants ", tokens, " tokens of spill ",
                                          move.spill, " back, ", "of which there are fewer")));
    moves_.pop_front();
    return;
  }
  const std::vector<uint32_t>& blocks = found->second.blocks;
  const uint32_t skipped = move.skip / kSpillBlockTokens;
  move_ = Move{.blocks = {blocks.begin() + skipped,
                          blocks.begin() + plan::SpillBlocksOf(move.skip + tokens)},
               .tokens = tokens,
               .skip = move.skip % kSpillBlockTokens,
               .of_blocks = found->second.of_blocks};
}

void SpillSource::Drop(uint64_t spill) {
  const auto found = stored_.find(spill);
  if (found != stored_.end()) {  // Else another node's, or one that was not written.
    tier_.file().GiveBack(found->second.blocks);
    stored_.erase(found);
    CountUsed();
  }
}

absl::Status SpillSource::OrderBlocks() {
  const bool out = moves_.front().first.kind == plan::SlotMove::Kind::kOut;
  for (uint32_t block = 0; block < move_->blocks.size(); ++block) {
    LAMINA_ASSIGN_OR_RETURN(Slots slots, SlotsOf(block));
    tier_.io().Order({.write = out,
                      .block = move_->blocks[block],
                      .copy = [this, out, slots = std::move(slots)](absl::Span<std::byte> bytes) {
                        return Copy(out, slots, bytes.data());
                      }});
    ++move_->ordered;
  }
  if (move_->ordered == 0) {
    End();
  }
  return absl::OkStatus();
}

absl::StatusOr<SpillSource::Slots> SpillSource::SlotsOf(uint32_t block) const {
  const Move& move = *move_;
  // Slots are of the tokens behind those that are passed over.
  const uint32_t begin = block * kSpillBlockTokens;
  const uint32_t first = begin - std::min(begin, move.skip);
  const uint32_t end = std::min(begin + kSpillBlockTokens - move.skip, move.tokens);
  Slots slots;
  LAMINA_ASSIGN_OR_RETURN(slots.extents, plan::SlotTables::Part(moves_.front().first.slots,
                                                                move.tokens, first, end - first));
  slots.passed = begin == 0 ? move.skip : 0;
  if (slots.passed > 0) {
    slots.extents.insert(slots.extents.begin(), Extent{.first_slot = 0, .tokens = slots.passed});
  }
  return slots;
}

absl::Status SpillSource::Copy(bool out, const Slots& slots, std::byte* block) const {
  const uint32_t tokens = TokensIn(slots.extents) - slots.passed;
  return out ? form_->Load(slots.extents, slots.passed, tokens, block)
             : form_->Unload(block, slots.extents, slots.passed, tokens);
}

void SpillSource::End() {
  const auto [done, taken] = std::move(moves_.front());
  moves_.pop_front();
  Move move = *std::exchange(move_, std::nullopt);
  const bool out = done.kind == plan::SlotMove::Kind::kOut;
  if (!move.status.ok()) {
    if (out) {
      tier_.file().GiveBack(move.blocks);
      CountUsed();
    }
    return Fail(done.spill, move.status);
  }
  const uint64_t bytes = move.blocks.size() * tier_.file().block_bytes();
  telemetry::AddTo(out ? tier_.counters().bytes_out : tier_.counters().bytes_in, bytes);
  SpillTier::Counters& counters = tier_.counters();
  if (move.of_blocks) {
    telemetry::AddTo(out ? counters.cached_tokens_out : counters.cached_tokens_in, move.tokens);
  } else {
    telemetry::AddTo(out ? counters.sequences_out : counters.sequences_in, 1);
  }
  telemetry::AddTo(out ? tier_.counters().nanos_out : tier_.counters().nanos_in,
                   static_cast<uint64_t>(RealClock().Now() - taken));
  tier_.WentWell();
  if (out) {
    stored_[done.spill] = {
        .blocks = std::move(move.blocks), .tokens = move.tokens, .of_blocks = move.of_blocks};
  }
  report_({.epoch = epoch_.config.epoch, .spill = done.spill, .ok = true});
}

void SpillSource::Fail(uint64_t spill, const absl::Status& why) {
  tier_.Failed(why);
  report_({.epoch = epoch_.config.epoch, .spill = spill, .ok = false});
}

void SpillSource::CountUsed() {
  const SpillFile& file = tier_.file();
  tier_.counters().used_bytes.store(
      uint64_t{file.blocks() - file.blocks_free()} * file.block_bytes(), std::memory_order_relaxed);
}

}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
#include "compute_node/resident_int8.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/attention.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {
namespace {

constexpr uint32_t kBlock = kInt8BlockTokens;

}  // namespace

ResidentInt8::ResidentInt8(const plan::EpochConfig& config, Int8Residents* memory)
    : config_(config),
      memory_(memory),
      blocks_(memory == nullptr ? 0 : memory->blocks.slots() / kBlock, config.lanes),
      free_tails_(memory == nullptr ? 0 : memory->tails.slots() / kBlock) {
  std::iota(free_tails_.rbegin(), free_tails_.rend(), 0);  // Tail 0 goes first.
}

void ResidentInt8::Apply(const plan::StepPlan& plan) {
  const auto drop = [this](plan::SequenceId id) {
    if (const auto found = open_.find(id); found != open_.end()) {
      if (found->second.tail != kNoTail) {
        free_tails_.push_back(found->second.tail);
      }
      open_.erase(found);
    }
    blocks_.Leave(id);
  };
  for (const plan::SequenceLeave& leave : plan.leaves) {
    drop(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    drop(join.id);
  }
}

void ResidentInt8::BeginStep(uint32_t lane, absl::Span<const RowRun> runs) {
  if (memory_ == nullptr) {
    return;
  }
  blocks_.BeginStep(lane, runs);
  const absl::Span<const RowRun> sorted = blocks_.RunsOf(lane);
  for (const RowRun& run : sorted) {
    BeginRun(run, lane);
  }
  // Rows next to others of their sequence would have to find what these have not overwritten.
  for (size_t i = 0; i < sorted.size(); ++i) {
    const bool follows = i > 0 && sorted[i - 1].sequence == sorted[i].sequence;
    const bool goes_on = i + 1 < sorted.size() && sorted[i + 1].sequence == sorted[i].sequence;
    open_.at(sorted[i].sequence).is_found = sorted[i].tokens == 1 && !follows && !goes_on;
  }
}

void ResidentInt8::Restart(Open& open, plan::SequenceId id, uint32_t token) {
  open.first = token;
  open.end = token;
  blocks_.Drop(blocks_.Of(id));
}

void ResidentInt8::BeginRun(const RowRun& run, uint32_t lane) {
  Open& open = open_[run.sequence];
  if (open.end != run.first_token) {
    Restart(open, run.sequence, run.first_token);
  }
  const bool takes_tail = open.tail == kNoTail && !free_tails_.empty();
  if (takes_tail) {
    open.tail = free_tails_.back();
    free_tails_.pop_back();
  }
  if (takes_tail || open.end % kBlock == 0) {
    open.first = open.end;
  }
  const uint32_t end = open.end + run.tokens;
  // Blocks that the rows fill.
  for (uint32_t block = open.end / kBlock; (block + 1) * kBlock <= end; ++block) {
    const bool is_whole = open.tail != kNoTail && open.first <= block * kBlock;
    if (is_whole) {
      blocks_.Add(blocks_.Of(run.sequence), lane, block);
    } else {
      blocks_.Drop(blocks_.Of(run.sequence));  // Those before it would not be the last ones.
    }
  }
  if (end / kBlock > open.end / kBlock && end % kBlock != 0) {
    open.first = Int8TokensOf(end);
  }
  open.end = end;
}

uint32_t ResidentInt8::First(plan::SequenceId id, uint32_t before) const {
  const auto found = open_.find(id);
  if (found == open_.end()) {
    return before;
  }
  const Open& open = found->second;
  const uint32_t closed = Int8TokensOf(before);
  if (!open.is_found || open.tail == kNoTail || open.first != closed) {
    return before;
  }
  const ResidentTiles::Held& held = blocks_.Of(id);
  return held.tiles.empty() ? closed : std::min(closed, held.first * kBlock);
}

uint64_t ResidentInt8::WordOf(const plan::FetchRun& run, absl::Span<const uint64_t> kept) const {
  return plan::Int8Tokens::Of(run, kept).word();
}

void ResidentInt8::Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv) {
  if (memory_ == nullptr) {
    return;
  }
  for (const RowRun& run : blocks_.RunsOf(lane)) {
    if (open_.at(run.sequence).tail == kNoTail) {
      continue;
    }
    const uint32_t end = run.first_token + run.tokens;
    for (uint32_t block = run.first_token / kBlock; block * kBlock < end; ++block) {
      StoreBlock(run, block, layer, qkv);
    }
  }
}

void ResidentInt8::StoreBlock(const RowRun& run, uint32_t block, uint32_t layer,
                              const kernels::MatrixView<BFloat16>& qkv) {
  const uint32_t first = std::max(run.first_token, block * kBlock);
  const uint32_t end = std::min(run.first_token + run.tokens, (block + 1) * kBlock);
  const bool is_full = end == (block + 1) * kBlock;
  const ResidentTiles::Held& held = blocks_.Of(run.sequence);
  if (is_full && !held.Has(block)) {
    return;  // It had no room, or has made some.
  }
  const AttentionDescriptor& shape = config_.layers[layer];
  kernels::KvArena& tails = memory_->tails;
  const uint32_t tail_slot = open_.at(run.sequence).tail * kBlock;
  const Extent slots{.first_slot = tail_slot + first - block * kBlock, .tokens = end - first};
  const BFloat16* const k = qkv.row(run.first_row + first - run.first_token) + shape.q_width();
  kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, {&slots, 1}, tails.k(layer),
                   tails.v(layer), tails.head_stride(layer));
  if (is_full) {
    const Extent closed{.first_slot = held.At(block) * kBlock, .tokens = kBlock};
    kernels::CloseInt8Block(shape, tails.View(layer), tail_slot, {&closed, 1}, /*first=*/0,
                            memory_->blocks.View(layer));
  }
}

// Tokens go to slots of their numbers: some that are not copied come first.
void ResidentInt8::Fill(uint32_t layer, HeadRange heads, const Kept& tokens, const Int8Piece& piece,
                        const Place& at) {
  const auto& [run, kept] = tokens;
  closed_slots_.assign(1, {.first_slot = 0, .tokens = at.int8});
  scale_slots_.assign(1, {.first_slot = 0, .tokens = at.scales});
  open_slots_.assign(1, {.first_slot = 0, .tokens = at.open});
  const ResidentTiles::Held& held = blocks_.Of(run.sequence);
  const uint32_t open_word = run.first_token / kBlock;  // A word is a block.
  for (uint32_t word = 0; word < kept.size(); ++word) {
    if (kept[word] == 0) {
      continue;
    }
    const bool is_open = word == open_word;
    const uint32_t first = (is_open ? open_.at(run.sequence).tail : held.At(word)) * kBlock;
    for (uint64_t left = kept[word]; left != 0; left &= left - 1) {
      plan::AppendSlot(first + static_cast<uint32_t>(std::countr_zero(left)),
                       is_open ? open_slots_ : closed_slots_);
    }
    if (!is_open) {
      scale_slots_.push_back({.first_slot = first, .tokens = kBlock});
    }
  }
  const auto count = plan::Int8Tokens::Of({.before = run.first_token}, kept);
  const uint32_t dim = config_.layers[layer].head_dim;
  for (uint32_t head = 0; head < heads.count; ++head) {
    const kernels::Int8View from = memory_->blocks.View(layer, heads.first + head);
    const kernels::Int8View to = Int8HeadOf(piece.int8, head, dim);
    kernels::LoadInt8(dim, from, closed_slots_, at.int8, count.closed,
                      {.k = to.k, .v = to.v, .v_scales = to.v_scales});
    kernels::LoadInt8(dim, from, scale_slots_, at.scales, count.blocks * kBlock,
                      {.k_scales = to.k_scales});
    const kernels::KvView tail = memory_->tails.View(layer, heads.first + head);
    kernels::LoadKv(dim, tail.k, tail.v, open_slots_, at.open, count.open,
                    piece.k + head * piece.head_stride, piece.v + head * piece.head_stride);
  }
}

}  // namespace lamina::compute_node

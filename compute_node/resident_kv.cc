// SPDX-License-Identifier: Apache-2.0
#include "compute_node/resident_kv.h"

#include <algorithm>
#include <bit>

#include "kernels/attention.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

ResidentKv::ResidentKv(const plan::EpochConfig& config, kernels::KvArena* arena)
    : config_(config), arena_(arena), tiles_(tokens_max() / kTile, config.lanes) {}

void ResidentKv::Apply(const plan::StepPlan& plan) {
  const auto drop = [this](plan::SequenceId id) {
    made_.erase(id);
    tiles_.Leave(id);
  };
  for (const plan::SequenceLeave& leave : plan.leaves) {
    drop(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    drop(join.id);
  }
}

void ResidentKv::BeginStep(uint32_t lane, absl::Span<const RowRun> runs) {
  if (arena_ == nullptr) {
    return;
  }
  tiles_.BeginStep(lane, runs);
  for (const RowRun& run : tiles_.RunsOf(lane)) {
    Made& made = made_[run.sequence];
    ResidentTiles::Held& held = tiles_.Of(run.sequence);
    if (made.end != run.first_token) {
      made = {.first = run.first_token, .end = run.first_token};
      tiles_.Drop(held);
    }
    const uint32_t end = made.end + run.tokens;
    const uint32_t next = held.tiles.empty() ? made.end / kTile : held.end();
    for (uint32_t tile = next; tile * kTile < end; ++tile) {
      tiles_.Add(held, lane, tile);
    }
    made.end = end;
  }
}

uint32_t ResidentKv::FirstOf(const Made& made, const ResidentTiles::Held& held) {
  return std::max(made.first, held.gone * kTile);
}

uint32_t ResidentKv::First(plan::SequenceId id, uint32_t before) const {
  const auto found = made_.find(id);
  return found == made_.end() ? before : std::min(before, FirstOf(found->second, tiles_.Of(id)));
}

uint64_t ResidentKv::WordOf(const plan::FetchRun& /*run*/, absl::Span<const uint64_t> kept) const {
  return plan::CountTokens(kept);
}

void ResidentKv::AppendSlots(plan::SequenceId id, absl::Span<const uint64_t> set,
                             std::vector<Extent>& slots) const {
  const ResidentTiles::Held& held = tiles_.Of(id);
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = set[word]; left != 0; left &= left - 1) {
      plan::AppendSlot(SlotOf(held, word * 64 + static_cast<uint32_t>(std::countr_zero(left))),
                       slots);
    }
  }
}

void ResidentKv::Fill(const Lane& /*lane*/, uint32_t layer, const RowRun& run,
                      const plan::TokenSpan& tokens, const MadeKv::Into& into) const {
  const ResidentTiles::Held& held = tiles_.Of(run.sequence);
  std::vector<Extent> slots;
  for (uint32_t i = 0; i < tokens.tokens; ++i) {
    plan::AppendSlot(SlotOf(held, tokens.first + i), slots);
  }
  into.rows.Fill(View(layer), slots, {.first_slot = into.slot, .tokens = tokens.tokens});
}

void ResidentKv::Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv) {
  if (arena_ == nullptr) {
    return;
  }
  const AttentionDescriptor& shape = config_.layers[layer];
  for (const RowRun& run : tiles_.RunsOf(lane)) {
    const ResidentTiles::Held& held = tiles_.Of(run.sequence);
    const uint32_t first = std::max(run.first_token, FirstOf(made_.at(run.sequence), held));
    const uint32_t end = run.first_token + run.tokens;
    slots_.clear();
    for (uint32_t token = first; token < end; ++token) {
      plan::AppendSlot(SlotOf(held, token), slots_);
    }
    if (slots_.empty()) {
      continue;
    }
    const BFloat16* const k = qkv.row(run.first_row + first - run.first_token) + shape.q_width();
    kernels::StoreKv(shape, k, k + shape.kv_width(), qkv.stride, slots_, arena_->k(layer),
                     arena_->v(layer), arena_->head_stride(layer));
  }
}

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
#include "compute_node/resident_kv.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "kernels/attention.h"
#include "plan/token_sets.h"

namespace lamina::compute_node {

ResidentKv::ResidentKv(const plan::EpochConfig& config, kernels::KvArena* arena)
    : config_(config), arena_(arena), lanes_(config.lanes) {
  free_.resize(tokens_max() / kTile);
  std::iota(free_.rbegin(), free_.rend(), 0);  // Tile 0 goes first.
}

void ResidentKv::Apply(const plan::StepPlan& plan) {
  const auto drop = [this](plan::SequenceId id) {
    if (const auto found = held_.find(id); found != held_.end()) {
      Drop(found->second);
      held_.erase(found);
    }
  };
  for (const plan::SequenceLeave& leave : plan.leaves) {
    drop(leave.id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    drop(join.id);
  }
}

void ResidentKv::Drop(Held& held) {
  free_.insert(free_.end(), held.tiles.begin(), held.tiles.end());
  held.tiles.clear();
  held.first = held.end;
}

void ResidentKv::DropOldest(Held& held) {
  free_.push_back(held.tiles.front());
  held.tiles.pop_front();
  ++held.first_tile;
  held.first = std::max(held.first, held.first_tile * kTile);
}

void ResidentKv::BeginStep(uint32_t lane, absl::Span<const RowRun> runs) {
  if (arena_ == nullptr) {
    return;
  }
  std::vector<RowRun>& rows = lanes_[lane];
  for (const RowRun& run : rows) {  // Its last step has ended; some may be in another lane by now.
    const auto found = held_.find(run.sequence);
    if (found != held_.end() && found->second.lane == lane) {
      found->second.lane = kNoLane;
    }
  }
  rows.assign(runs.begin(), runs.end());
  // A chunk of a prompt may be in front of rows of the same sequence.
  std::sort(rows.begin(), rows.end(), [](const RowRun& a, const RowRun& b) {
    return std::pair(a.sequence, a.first_token) < std::pair(b.sequence, b.first_token);
  });
  for (const RowRun& run : rows) {
    held_[run.sequence].lane = lane;
  }
  for (const RowRun& run : rows) {
    Held& held = held_[run.sequence];
    if (held.end != run.first_token) {
      held.end = run.first_token;
      Drop(held);
    }
    Extend(held, lane, run.tokens);
  }
}

void ResidentKv::Extend(Held& held, uint32_t lane, uint32_t tokens) {
  const uint32_t end = held.end + tokens;
  if (held.tiles.empty()) {
    held.first_tile = held.end / kTile;
  }
  for (uint32_t tile = held.first_tile + static_cast<uint32_t>(held.tiles.size());
       tile * kTile < end; ++tile) {
    if (!AddTile(held, lane)) {
      held.first_tile = tile + 1;  // It has none.
      held.first = held.first_tile * kTile;
    }
  }
  held.end = end;
}

bool ResidentKv::AddTile(Held& held, uint32_t lane) {
  if (free_.empty()) {
    Held* most = &held;
    for (auto& [id, other] : held_) {
      const bool may = other.lane == kNoLane || other.lane == lane;
      // The requester's tile counts as if it had come.
      if (may && other.tiles.size() > most->tiles.size() + (most == &held ? 1 : 0)) {
        most = &other;
      }
    }
    if (most->tiles.empty()) {
      return false;
    }
    DropOldest(*most);
  }
  held.tiles.push_back(free_.back());
  free_.pop_back();
  return true;
}

uint32_t ResidentKv::First(plan::SequenceId id, uint32_t before) const {
  const auto found = held_.find(id);
  return found == held_.end() ? before : std::min(before, found->second.first);
}

void ResidentKv::AppendSlots(plan::SequenceId id, absl::Span<const uint64_t> set,
                             std::vector<Extent>& slots) const {
  const Held& held = held_.at(id);
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = set[word]; left != 0; left &= left - 1) {
      plan::AppendSlot(SlotOf(held, word * 64 + static_cast<uint32_t>(std::countr_zero(left))),
                       slots);
    }
  }
}

void ResidentKv::Fill(const Lane& /*lane*/, uint32_t layer, const RowRun& run,
                      const plan::TokenSpan& tokens, const MadeKv::Into& into) const {
  const Held& held = held_.at(run.sequence);
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
  for (const RowRun& run : lanes_[lane]) {
    const Held& held = held_.at(run.sequence);
    const uint32_t first = std::max(run.first_token, held.first);
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

// SPDX-License-Identifier: Apache-2.0
#include "memory_node/sparse_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/kv_form.h"
#include "common/status_macros.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {
namespace {

// Appends a slot, or makes the last extent longer.
void AppendSlot(uint32_t slot, std::vector<Extent>& slots) {
  if (!slots.empty() && slots.back().first_slot + slots.back().tokens == slot) {
    ++slots.back().tokens;
  } else {
    slots.push_back({.first_slot = slot, .tokens = 1});
  }
}

// The slots of the tokens of `set`, in order; `extents` are those of all tokens.
void SlotsOfTokens(absl::Span<const uint64_t> set, absl::Span<const Extent> extents,
                   std::vector<Extent>& slots) {
  slots.clear();
  uint32_t passed = 0;  // Tokens of the extents before.
  for (uint32_t word = 0; word < set.size(); ++word) {
    for (uint64_t left = set[word]; left != 0; left &= left - 1) {
      const uint32_t token = word * 64 + static_cast<uint32_t>(std::countr_zero(left));
      while (token - passed >= extents.front().tokens) {
        passed += extents.front().tokens;
        extents.remove_prefix(1);
      }
      AppendSlot(extents.front().first_slot + token - passed, slots);
    }
  }
}

}  // namespace

SparseStream::SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                           UnitMeter& meter, kernels::KvReads& kv, bool int8)
    : AheadStream(epoch, feed, meter),
      checks_(checks),
      kv_(kv),
      int8_(int8),
      steps_(epoch.config.lanes) {}

absl::Status SparseStream::Begin(const Lane& lane) {
  Step& step = steps_[lane.index];
  step.has_sets = false;
  step.rows.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    step.rows.push_back(fetched.run);
  }
  step.places.resize(std::max(step.places.size(), step.rows.size()));
  if (int8_) {
    // Before the step's own rows come.
    step.copies.resize(std::max(step.copies.size(), step.rows.size()));
    for (size_t run = 0; run < step.rows.size(); ++run) {
      if (PassesTail(step.rows[run])) {
        LAMINA_RETURN_IF_ERROR(step.copies[run].Take(epoch_.layers, kv_,
                                                     TailOf(*lane.fetched[run].sequence).first_slot,
                                                     step.rows[run].tail_fetched()));
      }
    }
  }
  return absl::OkStatus();
}

transport::SignalCondition SparseStream::Awaited(const Lane& lane) const {
  if (!steps_[lane.index].has_sets) {
    return {.word = plan::TokenSetWindows(epoch_.layout).word(kComputeNode, lane.index),
            .at_least = lane.step};
  }
  return AheadStream::Awaited(lane);
}

absl::StatusOr<bool> SparseStream::GoOn(Lane& lane) {
  Step& step = steps_[lane.index];
  if (!step.has_sets) {
    LAMINA_RETURN_IF_ERROR(TakeSets(lane, step));
    step.has_sets = true;
    BeginLayer(lane, 0);
    return false;
  }
  LAMINA_RETURN_IF_ERROR(int8_ ? pieces(lane).PutInt8(lane, kv_, step.int8)
                               : pieces(lane).PutTiles(lane, kv_, step.tokens));
  return pieces(lane).LayerEnded() && !BeginNextLayer(lane);
}

// Copied, so that what is checked is what is used.
absl::Status SparseStream::TakeSets(const Lane& lane, Step& step) {
  const std::byte* const window =
      epoch_.region.bytes().data() +
      plan::TokenSetWindows(epoch_.layout).Window(kComputeNode, lane.index);
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(checks_.Header(header, {.lane = lane.index,
                                                 .epoch = epoch_.config.epoch,
                                                 .step = lane.step,
                                                 .rows = static_cast<uint32_t>(step.rows.size()),
                                                 .sender = kComputeNode}));
  const plan::TokenSets sets(epoch_.layout.layer_count(), step.rows);
  step.sets.resize(sets.bytes() / sizeof(uint64_t));
  std::memcpy(step.sets.data(), window + sizeof(header), sets.bytes());
  for (uint32_t layer = 0; layer < epoch_.layout.layer_count(); ++layer) {
    for (uint32_t run = 0; run < step.rows.size(); ++run) {
      const auto set = absl::MakeConstSpan(step.sets).subspan(sets.SetOf(layer, run), sets.words());
      LAMINA_RETURN_IF_ERROR(CheckSet(step.rows[run], set,
                                      absl::StrCat("token sets of lane ", lane.index, " step ",
                                                   lane.step, " layer ", layer, " run ", run)));
    }
  }
  return absl::OkStatus();
}

absl::Status SparseStream::CheckSet(const plan::FetchRun& run, absl::Span<const uint64_t> set,
                                    const std::string& of) const {
  if (!plan::EndsBefore(set, run.before)) {
    return absl::InternalError(
        absl::StrCat(of, " name tokens that it does not have before it: there are ", run.before));
  }
  if (int8_ && run.tokens > 1 && !plan::IsWhole(set, run.before)) {
    return absl::InternalError(absl::StrCat(of, " name ", plan::CountTokens(set), " of the ",
                                            run.before, " tokens before ", run.tokens,
                                            " rows, which with INT8 attend to all of them"));
  }
  return absl::OkStatus();
}

void SparseStream::BeginLayer(const Lane& lane, uint32_t layer) {
  Step& step = steps_[lane.index];
  const plan::TokenSets sets(epoch_.layout.layer_count(), step.rows);
  step.runs.clear();
  step.tokens.clear();
  step.int8.clear();
  for (uint32_t run = 0; run < step.rows.size(); ++run) {
    const auto set = absl::MakeConstSpan(step.sets).subspan(sets.SetOf(layer, run), sets.words());
    step.runs.push_back(plan::ChosenRun(step.rows[run], set, int8_));
    const plan::SlotTables::Sequence& sequence = *lane.fetched[run].sequence;
    if (int8_) {
      PlaceInt8(sequence, set, step, run);
    } else {
      SlotsOfTokens(set, sequence.extents, step.places[run].slots);
      step.tokens.push_back({.slots = step.places[run].slots});
    }
  }
  pieces(lane).BeginLayer(layer, step.runs);
}

void SparseStream::PlaceInt8(const plan::SlotTables::Sequence& sequence,
                             absl::Span<const uint64_t> set, Step& step, uint32_t run) const {
  Places& places = step.places[run];
  const plan::FetchRun& row = step.rows[run];
  const size_t closed = row.int8_fetched() / kInt8BlockTokens;  // A word is a block.
  SlotsOfTokens(set.first(closed), sequence.extents, places.slots);
  std::vector<uint64_t> blocks(set.begin(), set.begin() + static_cast<ptrdiff_t>(closed));
  for (uint64_t& word : blocks) {
    word = word == 0 ? 0 : ~uint64_t{0};
  }
  SlotsOfTokens(blocks, sequence.extents, places.blocks);
  places.open.clear();
  for (uint64_t left = closed < set.size() ? set[closed] : 0; left != 0; left &= left - 1) {
    AppendSlot(TailOf(sequence).first_slot + static_cast<uint32_t>(std::countr_zero(left)),
               places.open);
  }
  step.int8.push_back({.slots = places.slots,
                       .scale_slots = places.blocks,
                       .open = places.open,
                       .copy = PassesTail(row) ? &step.copies[run] : nullptr});
}

}  // namespace lamina::memory_node

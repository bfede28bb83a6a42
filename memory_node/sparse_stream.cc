// SPDX-License-Identifier: Apache-2.0
#include "memory_node/sparse_stream.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {
namespace {

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
      const uint32_t slot = extents.front().first_slot + token - passed;
      if (!slots.empty() && slots.back().first_slot + slots.back().tokens == slot) {
        ++slots.back().tokens;
      } else {
        slots.push_back({.first_slot = slot, .tokens = 1});
      }
    }
  }
}

}  // namespace

SparseStream::SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                           UnitMeter& meter, kernels::KvReads& kv)
    : AheadStream(epoch, feed, meter), checks_(checks), kv_(kv), steps_(epoch.config.lanes) {}

absl::Status SparseStream::Begin(const Lane& lane) {
  Step& step = steps_[lane.index];
  step.has_sets = false;
  step.rows.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    step.rows.push_back(fetched.run);
  }
  step.slots.resize(std::max(step.slots.size(), step.rows.size()));
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
  LAMINA_RETURN_IF_ERROR(pieces(lane).PutTiles(lane, kv_, step.tokens));
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
      if (!plan::EndsBefore(set, step.rows[run].before)) {
        return absl::InternalError(
            absl::StrCat("token sets of lane ", lane.index, " step ", lane.step, " layer ", layer,
                         " name tokens that run ", run, " does not have before it: there are ",
                         step.rows[run].before));
      }
    }
  }
  return absl::OkStatus();
}

void SparseStream::BeginLayer(const Lane& lane, uint32_t layer) {
  Step& step = steps_[lane.index];
  const plan::TokenSets sets(epoch_.layout.layer_count(), step.rows);
  step.runs.clear();
  step.tokens.clear();
  for (uint32_t run = 0; run < step.rows.size(); ++run) {
    const auto set = absl::MakeConstSpan(step.sets).subspan(sets.SetOf(layer, run), sets.words());
    SlotsOfTokens(set, lane.fetched[run].sequence->extents, step.slots[run]);
    step.runs.push_back({.before = plan::CountTokens(set), .tokens = step.rows[run].tokens});
    step.tokens.push_back({.slots = step.slots[run]});
  }
  pieces(lane).BeginLayer(layer, step.runs);
}

}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
#include "memory_node/sparse_stream.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "plan/token_sets.h"

namespace lamina::memory_node {

SparseStream::SparseStream(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed,
                           UnitMeter& meter, kernels::KvReads& kv, KvForm form)
    : AheadStream(epoch, feed, meter), checks_(checks), steps_(epoch.config.lanes) {
  for (Step& step : steps_) {
    step.chosen = MakeChosenTokens(epoch, kv, form);
  }
}

absl::Status SparseStream::Begin(const Lane& lane) {
  Step& step = steps_[lane.index];
  step.has_sets = false;
  step.rows.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    step.rows.push_back(fetched.run);
  }
  step.chosen->Begin(lane.fetched);
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
  LAMINA_RETURN_IF_ERROR(step.chosen->Put(pieces(lane), lane));
  return pieces(lane).LayerEnded() && !BeginNextLayer(lane);
}

// Copied, so that what is checked is what is used.
absl::Status SparseStream::TakeSets(const Lane& lane, Step& step) {
  const std::byte* const window =
      epoch_.region.bytes().data() +
      plan::TokenSetWindows(epoch_.layout).Window(kComputeNode, lane.index);
  plan::WindowHeader header;
  std::memcpy(&header, window, sizeof(header));
  LAMINA_RETURN_IF_ERROR(
      checks_.SealedHeader(header, {.lane = lane.index,
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
      const std::string of = absl::StrCat("token sets of lane ", lane.index, " step ", lane.step,
                                          " layer ", layer, " run ", run);
      if (!plan::EndsBefore(set, step.rows[run].before)) {
        return absl::InternalError(absl::StrCat(
            of, " name tokens that it does not have before it: there are ", step.rows[run].before));
      }
      LAMINA_RETURN_IF_ERROR(
          step.chosen->Check(step.rows[run], set, step.sets[sets.KeptOf(layer, run)], of));
    }
  }
  return absl::OkStatus();
}

void SparseStream::BeginLayer(const Lane& lane, uint32_t layer) {
  Step& step = steps_[lane.index];
  const plan::TokenSets sets(epoch_.layout.layer_count(), step.rows);
  step.runs.clear();
  step.chosen->BeginLayer();
  for (uint32_t run = 0; run < step.rows.size(); ++run) {
    const auto set = absl::MakeConstSpan(step.sets).subspan(sets.SetOf(layer, run), sets.words());
    step.runs.push_back(
        step.chosen->AddRun(lane.fetched[run], set, step.sets[sets.KeptOf(layer, run)]));
  }
  pieces(lane).BeginLayer(layer, step.runs);
}

}  // namespace lamina::memory_node

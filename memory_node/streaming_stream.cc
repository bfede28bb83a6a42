// SPDX-License-Identifier: Apache-2.0
#include "memory_node/streaming_stream.h"

#include <algorithm>

#include "common/status_macros.h"
#include "plan/epoch_shape.h"

namespace lamina::memory_node {
namespace {

// Appends the slots of tokens [first, end); `extents` are those of all tokens.
void AppendSlots(absl::Span<const Extent> extents, uint32_t first, uint32_t end,
                 std::vector<Extent>& slots) {
  uint32_t passed = 0;  // Tokens of the extents before.
  for (const Extent& extent : extents) {
    const uint32_t from = std::max(first, passed);
    const uint32_t to = std::min(end, passed + extent.tokens);
    if (from < to) {
      slots.push_back({.first_slot = extent.first_slot + from - passed, .tokens = to - from});
    }
    passed += extent.tokens;
  }
}

}  // namespace

StreamingStream::StreamingStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter,
                                 kernels::KvReads& kv)
    : AheadStream(epoch, feed, meter), kv_(kv), steps_(epoch.config.lanes) {}

absl::Status StreamingStream::Begin(const Lane& lane) {
  Step& step = steps_[lane.index];
  step.whole.Clear();
  step.streamed.Clear();
  step.slots.resize(std::max(step.slots.size(), lane.fetched.size()));
  for (size_t i = 0; i < lane.fetched.size(); ++i) {
    const plan::FetchRun& run = lane.fetched[i].run;
    const plan::TokenGap gap = plan::GapBefore(epoch_.config.streaming, run.before);
    std::vector<Extent>& slots = step.slots[i];
    slots.clear();
    AppendSlots(lane.fetched[i].sequence->extents, 0, gap.first, slots);
    AppendSlots(lane.fetched[i].sequence->extents, gap.end, run.before, slots);
    step.whole.runs.push_back(run);
    step.whole.tokens.push_back({.slots = lane.fetched[i].slots.kv});
    step.streamed.runs.push_back(plan::WithoutGap(run, gap));
    step.streamed.tokens.push_back({.slots = slots});
  }
  BeginLayer(lane, 0);
  return absl::OkStatus();
}

// A node holds one head of every layer at least.
void StreamingStream::BeginLayer(const Lane& lane, uint32_t layer) {
  Step& step = steps_[lane.index];
  const HeadRange held = plan::HeadsOf(epoch_.config, epoch_.config.layers[layer], epoch_.node);
  step.ranges = plan::AlikeHeadsOf(epoch_.config.streaming, layer, held);
  step.range = 0;
  BeginRange(lane, layer);
}

void StreamingStream::BeginRange(const Lane& lane, uint32_t layer) {
  const Step& step = steps_[lane.index];
  pieces(lane).BeginHeads(layer, step.ranges[step.range].heads, step.sent().runs);
}

absl::StatusOr<bool> StreamingStream::GoOn(Lane& lane) {
  Step& step = steps_[lane.index];
  LAMINA_RETURN_IF_ERROR(pieces(lane).PutTiles(lane, kv_, step.sent().tokens));
  if (!pieces(lane).LayerEnded()) {
    return false;
  }
  if (++step.range < step.ranges.size()) {
    BeginRange(lane, pieces(lane).layer());
    return false;
  }
  return !BeginNextLayer(lane);
}

}  // namespace lamina::memory_node

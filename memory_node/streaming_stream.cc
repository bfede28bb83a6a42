// SPDX-License-Identifier: Apache-2.0
#include "memory_node/streaming_stream.h"

#include <algorithm>

#include "common/status_macros.h"
#include "control/blame.h"
#include "plan/epoch_shape.h"

namespace lamina::memory_node {
namespace {

// Paths whose K and V come have one compute node (plan::CheckFetch()).
constexpr uint32_t kComputeNode = 0;

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
    : epoch_(epoch), feed_(feed), kv_(kv) {
  for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
    streams_.push_back({.pieces = PieceStream(epoch, meter, lane)});
  }
}

absl::Status StreamingStream::Open() {
  for (Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(stream.pieces.Open());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamingStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty() || lane.fetched_by != plan::AttentionPath::kStreaming) {
    return false;
  }
  Stream& stream = streams_[lane.index];
  stream.active = true;
  stream.whole.Clear();
  stream.streamed.Clear();
  stream.slots.resize(std::max(stream.slots.size(), lane.fetched.size()));
  for (size_t i = 0; i < lane.fetched.size(); ++i) {
    const plan::FetchRun& run = lane.fetched[i].run;
    const plan::TokenGap gap = plan::GapBefore(epoch_.config.streaming, run.before);
    std::vector<Extent>& slots = stream.slots[i];
    slots.clear();
    AppendSlots(lane.fetched[i].sequence->extents, 0, gap.first, slots);
    AppendSlots(lane.fetched[i].sequence->extents, gap.end, run.before, slots);
    stream.whole.runs.push_back(run);
    stream.whole.tokens.push_back({.slots = lane.fetched[i].slots.kv});
    stream.streamed.runs.push_back(plan::WithoutGap(run, gap));
    stream.streamed.tokens.push_back({.slots = slots});
  }
  BeginLayer(stream, 0);
  feed_.Join(lane);
  return false;
}

// A node holds one head of every layer at least.
void StreamingStream::BeginLayer(Stream& stream, uint32_t layer) {
  const HeadRange held = plan::HeadsOf(epoch_.config, epoch_.config.layers[layer], epoch_.node);
  stream.ranges = plan::AlikeHeadsOf(epoch_.config.streaming, layer, held);
  stream.range = 0;
  BeginRange(stream, layer);
}

void StreamingStream::BeginRange(Stream& stream, uint32_t layer) {
  const plan::AlikeHeads& range = stream.ranges[stream.range];
  ++stream.range;
  stream.pieces.BeginHeads(layer, range.heads,
                           range.streams ? stream.streamed.runs : stream.whole.runs);
}

void StreamingStream::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (const Stream& stream : streams_) {
    if (stream.active && !MayPut(stream)) {
      conditions.push_back(stream.pieces.Credit());
    }
  }
}

Nanos StreamingStream::LookAt(Nanos now) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [this](const Stream& stream) { return MayPut(stream); })
             ? now
             : kNever;
}

absl::Status StreamingStream::Look() {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const size_t index = (next_lane_ + i) % streams_.size();
    if (MayPut(streams_[index])) {
      next_lane_ = static_cast<uint32_t>(index + 1);
      epoch_.counters.beat.Begin(ThreadActivity::kWorking);
      return control::Blame(PutSome(feed_.lanes()[index], streams_[index]),
                            epoch_.NameOf(kComputeNode));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamingStream::PutSome(Lane& lane, Stream& stream) {
  PieceStream& pieces = stream.pieces;
  const bool streams = stream.ranges[stream.range - 1].streams;
  LAMINA_RETURN_IF_ERROR(
      pieces.PutTiles(lane, kv_, streams ? stream.streamed.tokens : stream.whole.tokens));
  if (!pieces.LayerEnded()) {
    return absl::OkStatus();
  }
  const uint32_t layer = pieces.layer();
  if (stream.range < stream.ranges.size()) {
    BeginRange(stream, layer);
    return absl::OkStatus();
  }
  if (layer + 1 < epoch_.layers.size()) {
    BeginLayer(stream, layer + 1);
    return absl::OkStatus();
  }
  stream.active = false;
  return feed_.EndStep(lane);
}

}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
#include "memory_node/ahead_stream.h"

#include "common/status_macros.h"
#include "control/blame.h"

namespace lamina::memory_node {
namespace {

// How soon a link without room is looked at again: two turns take as long at 26 GB/s, and a faster
// one stands still meanwhile.
constexpr Nanos kRoomLook = Micros(20);

}  // namespace

AheadStream::AheadStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter)
    : epoch_(epoch), feed_(feed), meter_(meter) {
  for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
    streams_.push_back({.pieces = PieceStream(epoch, meter, lane)});
  }
}

absl::Status AheadStream::Open() {
  for (Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(stream.pieces.Open());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> AheadStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty() || !Serves(lane.fetched_by)) {
    return false;
  }
  pieces(lane).BeginStep();
  LAMINA_RETURN_IF_ERROR(Begin(lane));
  streams_[lane.index].active = true;
  feed_.Join(lane);
  return false;
}

bool AheadStream::IsReady(uint32_t lane) const {
  if (!streams_[lane].active) {
    return false;
  }
  const transport::SignalCondition awaited = Awaited(feed_.lanes()[lane]);
  return epoch_.region.LoadSignal(awaited.word) >= awaited.at_least;
}

void AheadStream::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (uint32_t lane = 0; lane < streams_.size(); ++lane) {
    if (!streams_[lane].active) {
      continue;
    }
    if (!IsReady(lane)) {
      conditions.push_back(Awaited(feed_.lanes()[lane]));
    } else if (!streams_[lane].pieces.HasRoom()) {
      stood_still_ = true;
    }
  }
}

Nanos AheadStream::LookAt(Nanos now) const {
  for (uint32_t lane = 0; lane < streams_.size(); ++lane) {
    if (IsReady(lane)) {  // The link is that of all lanes.
      return streams_[lane].pieces.HasRoom() ? now : now + kRoomLook;
    }
  }
  return kNever;
}

absl::Status AheadStream::Look() {
  if (stood_still_) {
    CountStandstill();
  }
  const auto lanes = static_cast<uint32_t>(streams_.size());
  for (uint32_t i = 0; i < lanes; ++i) {
    const uint32_t index = (next_lane_ + i) % lanes;
    if (!MayGoOn(index)) {
      continue;
    }
    next_lane_ = index + 1;
    epoch_.counters.beat.Begin(ThreadActivity::kWorking);
    Lane& lane = feed_.lanes()[index];
    const absl::StatusOr<bool> sent = GoOn(lane);
    if (!sent.ok() || !*sent) {
      return control::Blame(sent.status(), epoch_.NameOf(kComputeNode));
    }
    streams_[index].active = false;
    return feed_.EndStep(lane);
  }
  return absl::OkStatus();
}

absl::Status AheadStream::BeforeStore(const Lane& lane, uint32_t layer) {
  const bool unsent = streams_[lane.index].active && pieces(lane).layer() <= layer;
  return unsent ? KeepTails(lane, layer) : absl::OkStatus();
}

absl::Status AheadStream::Serve(size_t /*condition*/) {
  stood_still_ = true;
  return Look();
}

// That time is none of the puts that follow.
void AheadStream::CountStandstill() {
  stood_still_ = false;
  const Nanos before = meter_.end();
  meter_.LapIdle();
  telemetry::AddTo(meter_.link(kComputeNode).waited_nanos,
                   static_cast<uint64_t>(meter_.end() - before));
}

bool AheadStream::BeginNextLayer(const Lane& lane) {
  const uint32_t next = pieces(lane).layer() + 1;
  if (next == epoch_.layers.size()) {
    return false;
  }
  BeginLayer(lane, next);
  return true;
}

}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
#include "memory_node/kv_stream.h"

#include <algorithm>

#include "common/kv_form.h"
#include "common/status_macros.h"
#include "control/blame.h"

namespace lamina::memory_node {
namespace {

// Paths whose K and V come have one compute node (plan::CheckFetch()).
constexpr uint32_t kComputeNode = 0;

}  // namespace

KvStream::KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored)
    : epoch_(epoch), feed_(feed), stored_(stored) {
  for (uint32_t lane = 0; lane < epoch.config.lanes; ++lane) {
    streams_.push_back({.pieces = PieceStream(epoch, meter, lane)});
  }
}

absl::Status KvStream::Open() {
  for (Stream& stream : streams_) {
    LAMINA_RETURN_IF_ERROR(stream.pieces.Open());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> KvStream::TakeStep(Lane& lane) {
  if (lane.fetched.empty() || !Serves(lane.fetched_by)) {
    return false;
  }
  Stream& stream = streams_[lane.index];
  stream.active = true;
  stream.runs.clear();
  stream.kv.clear();
  stream.activations.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    stream.runs.push_back(fetched.run);
    stream.kv.push_back({.slots = fetched.slots.kv, .hidden = fetched.hidden_kv});
    stream.activations.push_back(
        {.slots = fetched.slots.activations, .hidden = fetched.hidden_activations});
  }
  if (stored_.int8) {
    LAMINA_RETURN_IF_ERROR(TakeInt8(lane, stream));
  }
  stream.pieces.BeginLayer(0, stream.runs);
  feed_.Join(lane);
  return false;
}

absl::Status KvStream::TakeInt8(const Lane& lane, Stream& stream) {
  stream.int8.clear();
  stream.copies.clear();
  stream.copies.reserve(lane.fetched.size());  // Runs point into it.
  for (const FetchedRun& fetched : lane.fetched) {
    const uint32_t open = fetched.run.tail_fetched();
    Int8RunTokens& tokens = stream.int8.emplace_back(
        Int8RunTokens{.slots = fetched.slots.kv,
                      .hidden = fetched.hidden_kv,
                      .tail_slot = fetched.sequence->tail * kInt8BlockTokens});
    if (open > 0 && open + fetched.run.tokens > kInt8BlockTokens) {
      TailCopy& copy = stream.copies.emplace_back();
      LAMINA_RETURN_IF_ERROR(copy.Take(epoch_.layers, stored_.kv, tokens.tail_slot, open));
      tokens.copy = &copy;
    }
  }
  return absl::OkStatus();
}

void KvStream::AppendAwaited(std::vector<transport::SignalCondition>& conditions) {
  for (const Stream& stream : streams_) {
    if (stream.active && !MayPut(stream)) {
      conditions.push_back(stream.pieces.Credit());
    }
  }
}

Nanos KvStream::LookAt(Nanos now) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [this](const Stream& stream) { return MayPut(stream); })
             ? now
             : kNever;
}

absl::Status KvStream::Look() {
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

absl::Status KvStream::PutPart(Lane& lane, Stream& stream) {
  PieceStream& pieces = stream.pieces;
  if (stored_.int8) {
    return pieces.PutInt8(lane, stored_.kv, stream.int8);
  }
  return pieces.piece().activations()
             ? pieces.PutActivations(lane, *stored_.activations, stream.activations)
             : pieces.PutTiles(lane, stored_.kv, stream.kv);
}

absl::Status KvStream::PutSome(Lane& lane, Stream& stream) {
  PieceStream& pieces = stream.pieces;
  LAMINA_RETURN_IF_ERROR(PutPart(lane, stream));
  if (!pieces.LayerEnded()) {
    return absl::OkStatus();
  }
  if (pieces.layer() + 1 < epoch_.layers.size()) {
    pieces.BeginLayer(pieces.layer() + 1, stream.runs);
    return absl::OkStatus();
  }
  stream.active = false;
  return feed_.EndStep(lane);
}

}  // namespace lamina::memory_node

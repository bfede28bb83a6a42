// SPDX-License-Identifier: Apache-2.0
#include "memory_node/kv_stream.h"

#include "common/kv_form.h"
#include "common/status_macros.h"

namespace lamina::memory_node {

KvStream::KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored)
    : AheadStream(epoch, feed, meter), stored_(stored), steps_(epoch.config.lanes) {}

absl::Status KvStream::Begin(const Lane& lane) {
  Step& step = steps_[lane.index];
  step.runs.clear();
  step.kv.clear();
  step.activations.clear();
  for (const FetchedRun& fetched : lane.fetched) {
    step.runs.push_back(fetched.run);
    step.kv.push_back({.slots = fetched.slots.kv});
    step.activations.push_back({.slots = fetched.slots.activations});
  }
  if (stored_.int8) {
    TakeInt8(lane, step);
  }
  BeginLayer(lane, 0);
  return absl::OkStatus();
}

void KvStream::BeginLayer(const Lane& lane, uint32_t layer) {
  pieces(lane).BeginLayer(layer, steps_[lane.index].runs);
}

void KvStream::TakeInt8(const Lane& lane, Step& step) {
  step.int8.clear();
  step.tails.clear();
  step.copies.clear();
  step.tails.reserve(lane.fetched.size());  // Runs point into both.
  step.copies.reserve(lane.fetched.size());
  for (const FetchedRun& fetched : lane.fetched) {
    step.tails.push_back(TailOf(*fetched.sequence));
    Int8RunTokens& tokens = step.int8.emplace_back(Int8RunTokens{.slots = fetched.slots.kv,
                                                                 .scale_slots = fetched.slots.kv,
                                                                 .hidden = fetched.unseen,
                                                                 .open = {&step.tails.back(), 1}});
    if (PassesTail(fetched.run)) {
      TailCopy& copy = step.copies.emplace_back();
      copy.Begin(step.tails.back().first_slot, fetched.run.tail_fetched());
      tokens.copy = &copy;
    }
  }
}

absl::Status KvStream::KeepTails(const Lane& lane, uint32_t layer) {
  for (TailCopy& copy : steps_[lane.index].copies) {
    LAMINA_RETURN_IF_ERROR(copy.Take(layer, epoch_.layers[layer], stored_.kv));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> KvStream::GoOn(Lane& lane) {
  LAMINA_RETURN_IF_ERROR(PutPart(lane));
  return pieces(lane).LayerEnded() && !BeginNextLayer(lane);
}

absl::Status KvStream::PutPart(Lane& lane) {
  const Step& step = steps_[lane.index];
  PieceStream& stream = pieces(lane);
  if (stored_.int8) {
    return stream.PutInt8(lane, stored_.kv, step.int8);
  }
  return stream.piece().activations()
             ? stream.PutActivations(lane, *stored_.activations, step.activations)
             : stream.PutTiles(lane, stored_.kv, step.kv);
}

}  // namespace lamina::memory_node

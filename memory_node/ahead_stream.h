// SPDX-License-Identifier: Apache-2.0
//
// AheadStream: what sources have in common that send the pieces of a step (piece_stream.h) without
// waiting for the step's own rows, as far ahead as windows go and the link has room. Lanes take
// turns, one turn of a piece each. A step is joined when it begins, and ended when its last piece
// has been put.
//
// To add one: say in Begin() what the step sends, in BeginLayer() what of it a layer does, and put
// it in GoOn(); and add the source to the list in attention_worker.cc.
//
// Threading: the data thread. Allocation: in Open(), and as the source does.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "memory_node/node_epoch.h"
#include "memory_node/piece_stream.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/attention_paths.h"

namespace lamina::memory_node {

class AheadStream : public WorkSource {
 public:
  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open() final;
  void Close() final {}
  uint32_t share() const final { return 1; }
  // Takes part in a step with rows that it serves, and leaves its units to others.
  absl::StatusOr<bool> TakeStep(Lane& lane) final;
  // What lanes wait for that cannot go on: Awaited(). Those that have it and wait for room on the
  // link wait for a time alone.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) final;
  Nanos LookAt(Nanos now) const final;
  absl::Status Look() final;
  absl::Status Serve(size_t condition) final;

  // Rows of the lane's step are stored in a layer next. What is yet to be sent of it, and these
  // overwrite, is copied first. Errors: the device's.
  // Cost: 64 tokens of one layer for each sequence that goes on behind its open block, which is
  // less than closing it.
  absl::Status BeforeStore(const Lane& lane, uint32_t layer);

 protected:
  // Paths whose K and V come have one compute node (plan::CheckFetch()).
  static constexpr uint32_t kComputeNode = 0;

  // References must outlive this.
  AheadStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter);

  // Whether it sends what rows of the path read.
  virtual bool Serves(plan::AttentionPath path) const = 0;

  // The lane's step begins, with lane.fetched. Errors end the epoch.
  virtual absl::Status Begin(const Lane& lane) = 0;
  // Copies what the lane's step sends of a layer out of tails of INT8 that its rows go on in.
  virtual absl::Status KeepTails(const Lane& /*lane*/, uint32_t /*layer*/) {
    return absl::OkStatus();  // There are none.
  }
  // The pieces of a layer are to be sent.
  virtual void BeginLayer(const Lane& lane, uint32_t layer) = 0;
  // What the lane's step needs before GoOn().
  virtual transport::SignalCondition Awaited(const Lane& lane) const {
    return pieces(lane).Credit();
  }
  // One turn. True: the step has been sent whole. Errors: the transport's, or the peer's.
  virtual absl::StatusOr<bool> GoOn(Lane& lane) = 0;

  // Begins the layer behind the one that has been sent. False: there is none.
  bool BeginNextLayer(const Lane& lane);

  PieceStream& pieces(const Lane& lane) { return streams_[lane.index].pieces; }
  const PieceStream& pieces(const Lane& lane) const { return streams_[lane.index].pieces; }

  const NodeEpoch& epoch_;

 private:
  struct Stream {
    bool active = false;  // A step's, that has not been sent whole.
    PieceStream pieces;
  };

  void CountStandstill();
  // Whether the lane's step has what it waits for.
  bool IsReady(uint32_t lane) const;
  bool MayGoOn(uint32_t lane) const { return IsReady(lane) && streams_[lane].pieces.HasRoom(); }

  StepFeed& feed_;
  UnitMeter& meter_;
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
  bool stood_still_ = false;     // Before the turn to come, for the compute node or the link.
};

}  // namespace lamina::memory_node

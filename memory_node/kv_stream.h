// SPDX-License-Identifier: Apache-2.0
//
// KvStream: the source that puts K and V of a step's sequences into the windows of the compute node
// where they are attended (path fetch), layer by layer, in the pieces of plan/fetch_pieces.h.
//
// What a layer needs from here is the tokens before the step, all of which are stored when the step
// begins: so the stream does not wait for the step's own rows, and runs ahead as far as windows go.
// Two of them take turns; a piece goes out when the compute node has used up the last but one.
// Tokens that come as activations (plan/fetch_split.h) go ahead of the K and V of the others.
//
// A turn gathers and puts at most kTurnBytes, so that attention of other lanes waits no longer.
// Over shared memory it gathers into the window itself, elsewhere into a copy of it from which it
// puts. What leaves is K and V of the piece's tokens and zeros, of no other sequence.
//
// Threading: the data thread. Allocation: in Open(), and when a step begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kv_device.h"
#include "memory_node/node_epoch.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

class KvStream final : public WorkSource {
 public:
  // One turn puts at most so many bytes of K and V together.
  static constexpr size_t kTurnBytes = size_t{256} << 10;

  // What is sent: of an epoch that keeps no activations K and V alone.
  struct Stored {
    kernels::KvReads& kv;
    kernels::KvActivations* activations = nullptr;
  };

  // References must outlive this.
  KvStream(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter, const Stored& stored);

  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open() override;
  void Close() override {}
  uint32_t share() const override { return 1; }
  // Takes part in a step with rows that attend over there, and leaves its units to others.
  absl::StatusOr<bool> TakeStep(Lane& lane) override;
  // The credits of lanes whose next window is still in use.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override;
  Nanos LookAt(Nanos now) const override;
  absl::Status Look() override;
  absl::Status Serve(size_t /*condition*/) override { return Look(); }

 private:
  // Where one lane's stream is.
  struct Stream {
    bool active = false;  // A step's, that has not been sent whole.
    std::vector<plan::FetchRun> runs;
    uint32_t layer = 0;
    std::vector<plan::FetchPiece> pieces;  // Of the layer.
    size_t piece = 0;                      // The next one of these, and
    size_t done = 0;                       // how much of it has left: tiles, heads in order; or
                                           // tokens, of activations.
    uint64_t sent = 0;                     // Whole pieces, in the epoch.
    // Two windows as they are to lie at the compute node. A source of puts, until its credit. Empty
    // over shared memory.
    std::vector<std::byte> staged;
  };

  bool MayPut(const Stream& stream) const;
  void BeginLayer(Stream& stream);
  absl::Status PutSome(Lane& lane, Stream& stream);
  absl::Status PutTiles(Lane& lane, Stream& stream);
  absl::Status PutActivations(Lane& lane, Stream& stream);
  absl::Status PutHeader(const Lane& lane, Stream& stream);
  // A turn's puts have been made, of so many bytes, up to `done`; of `all`.
  absl::Status EndTurn(Lane& lane, Stream& stream, size_t bytes, uint32_t puts, size_t done,
                       size_t all);
  absl::Status Gather(const Lane& lane, const Stream& stream, size_t first_tile, size_t end_tile,
                      BFloat16* k, BFloat16* v);
  absl::Status GatherActivations(const Lane& lane, const Stream& stream, size_t first, size_t end,
                                 BFloat16* to);
  transport::SignalUpdate SignalOf(const Lane& lane, const Stream& stream) const;
  absl::Status Put(Stream& stream, size_t offset, size_t bytes,
                   const transport::SignalUpdate* signal);
  absl::Status EndPiece(Lane& lane, Stream& stream);
  // Where the piece at hand is gathered.
  std::byte* Gathered(Stream& stream) const;
  uint32_t IndexOf(const Stream& stream) const {
    return static_cast<uint32_t>(&stream - streams_.data());
  }

  const NodeEpoch& epoch_;
  StepFeed& feed_;
  UnitMeter& meter_;
  const Stored stored_;
  std::byte* direct_ = nullptr;  // The compute node's region, where it is shared memory.
  std::vector<Stream> streams_;  // [lanes]
  uint32_t next_lane_ = 0;       // Lanes take turns.
};

}  // namespace lamina::memory_node

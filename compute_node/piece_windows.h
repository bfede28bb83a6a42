// SPDX-License-Identifier: Apache-2.0
//
// PieceWindows: the pieces of K and V, or of activations, that memory nodes put into this node's
// windows (plan/fetch_pieces.h): as many at once as these hold. Whoever attends takes a piece that
// has come, uses it where it lies, and gives back what it took of the windows. Paths that fetch
// have one of these each and share the windows: a step has rows of one of them.
//
// Threading: the data thread. Allocation: per epoch, and when a layer begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/kv_form.h"
#include "compute_node/lane.h"
#include "compute_node/peers.h"
#include "compute_node/piece_rows.h"
#include "compute_node/worker_context.h"
#include "plan/fetch_pieces.h"
#include "telemetry/fetched_bandwidth.h"

namespace lamina::compute_node {

class PieceWindows {
 public:
  // The context must outlive this.
  explicit PieceWindows(const WorkerContext& context);

  // A step of the lane begins: nothing is awaited before its first layer.
  void BeginStep(const Lane& lane);
  // The pieces of a layer that the memory node sends for these runs.
  void BeginLayer(const Lane& lane, uint32_t node, uint32_t layer,
                  absl::Span<const plan::FetchRun> runs);
  // As above, of some of the heads that the memory node holds; Ended() is then of these.
  void BeginHeads(const Lane& lane, uint32_t node, uint32_t layer, HeadRange heads,
                  absl::Span<const plan::FetchRun> runs);

  // What has not been given back of a layer.
  bool Ended(const Lane& lane, uint32_t node) const;
  bool Ended(const Lane& lane) const;
  // How many of a layer have been given back.
  size_t GivenBack(const Lane& lane, uint32_t node) const { return StreamOf(lane, node).piece; }
  // Whether some of these that have not are activations.
  bool AwaitsActivations(const Lane& lane, uint32_t node) const;
  // Whether the next piece lies here. Requires: !Ended().
  bool HasCome(const Lane& lane, uint32_t node) const;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;
  void AppendAwaited(const Lane& lane, uint32_t node, std::vector<AwaitedSignal>& awaited) const;

  // The piece at hand, and the one behind it.
  const plan::FetchPiece& piece(const Lane& lane, uint32_t node, size_t behind = 0) const;
  // Where its elements begin, behind the header: K of its heads and V of them, or activations;
  // where K and V are INT8, its planes (plan::PlanesOf()). The piece behind is this side's to write
  // as far as the memory node does not: it takes nothing of the piece at hand, and the others have
  // been given back.
  BFloat16* elements(const Lane& lane, uint32_t node, size_t behind = 0) const;

  // The lane's rows that attend to the piece at hand, and the arena that it is. Requires: it has K
  // and V; View() and Store() are of bf16 ones.
  PieceRows RowsOf(Lane& lane, uint32_t node) const {
    return {
        context_, lane, node, StreamOf(lane, node).layer, piece(lane, node), elements(lane, node)};
  }

  // Checks that the piece at hand is what the plan says, and counts it: how many bytes came.
  // Requires: HasCome(). Errors: as Peers::CheckWindow().
  absl::StatusOr<size_t> Take(const Lane& lane, uint32_t node);
  // The memory node may write where the piece at hand lies; the next piece is at hand.
  // Errors: as Peers::Put().
  absl::Status GiveBack(const Lane& lane, uint32_t node);

  // For each memory node whose next piece, of K and V, has come: has `attend` use the piece where
  // it lies, gives its window back, and calls `ended` where that was the node's last. Returns
  // Ended(). Errors: as Take() and GiveBack().
  absl::StatusOr<bool> AttendCome(Lane& lane, absl::FunctionRef<void(uint32_t node)> attend,
                                  absl::FunctionRef<void(uint32_t node)> ended);
  // AttendCome() for one memory node alone.
  absl::Status AttendNext(Lane& lane, uint32_t node, absl::FunctionRef<void(uint32_t node)> attend,
                          absl::FunctionRef<void(uint32_t node)> ended);

 private:
  // What one memory node sends of one lane.
  struct Stream {
    uint32_t layer = 0;
    std::vector<plan::FetchPiece> pieces;  // The pieces of that.
    size_t piece = 0;                      // Next of these.
    bool ends_step = false;                // None of the step's comes behind these.

    size_t left() const { return pieces.size() - piece; }
  };

  plan::FetchWindows windows() const { return plan::FetchWindows(context_.layout); }
  // That of K and V in pieces.
  KvForm form() const { return context_.config.int8_tails > 0 ? KvForm::kInt8 : KvForm::kBF16; }
  // Over the data of the piece at hand.
  uint64_t Checksum(const Lane& lane, uint32_t node) const;
  // The pieces that have been given back in the epoch, by any path.
  plan::FetchRing& Taken(const Lane& lane, uint32_t node) const {
    return context_.pieces_taken[lane.index][node];
  }
  const Stream& StreamOf(const Lane& lane, uint32_t node) const {
    return streams_[lane.index][node];
  }
  // Bytes of one of the stream's pieces, which are the memory node's, and what it takes of the
  // ring.
  size_t BytesOf(uint32_t node, const Stream& stream, size_t piece) const;
  uint32_t PartsOf(uint32_t node, const Stream& stream, size_t piece) const {
    return windows().Parts(BytesOf(node, stream, piece));
  }
  // How many of the stream's pieces, from the one at hand on, may have been sent by now.
  size_t SentAhead(const Lane& lane, uint32_t node) const;
  // How the link from the memory node is used, which all lanes share: what of their pieces has come
  // by now, and what of this lane's may come from now on.
  telemetry::FetchedBandwidth& Look(uint32_t node);
  void ExpectPieces(const Lane& lane, uint32_t node);

  const WorkerContext& context_;
  std::vector<std::vector<Stream>> streams_;  // [lanes][memory nodes]
  std::vector<uint64_t> come_;                // [lanes]
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// PieceStream: the way of one lane's pieces (plan/fetch_pieces.h) from this node into the two
// windows that it has at the compute node. Sources of streams (kv_stream.h, sparse_stream.h) say
// which tokens a layer's pieces have; this knows where in the pieces it is.
//
// Several sources may have a stream of one lane, in turns: a step is of one of them.
//
// Windows take turns: a piece goes out when the compute node has given back the last but one. A
// turn gathers and puts at most kTurnBytes, so that attention of other lanes waits no longer. Over
// shared memory it gathers into the window itself, elsewhere into a copy from which it puts. What
// leaves is K and V, or activations, of the piece's tokens and zeros, of no other sequence.
//
// Where rows of other lanes attend here, their replies go the same way as pieces and leave behind
// what is under way: no more than two turns then, of all streams together.
//
// Threading: the data thread. Allocation: in Open(), and when a layer begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/extent.h"
#include "kernels/kv_device.h"
#include "memory_node/int8_pieces.h"
#include "memory_node/node_epoch.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "plan/data_checksum.h"
#include "plan/fetch_pieces.h"

namespace lamina::memory_node {

// Where the tokens of one kind lie that a run sends.
struct RunTokens {
  absl::Span<const Extent> slots;  // In order.
  uint32_t hidden = 0;             // The first ones, which lie nowhere any more: no row sees them.
};

class PieceStream {
 public:
  // One turn puts at most so many bytes.
  static constexpr size_t kTurnBytes = size_t{256} << 10;

  // References must outlive this.
  PieceStream(const NodeEpoch& epoch, UnitMeter& meter, uint32_t lane);

  // Registers what is put. Errors: the transport's, marked as its.
  absl::Status Open();

  // A step begins; until its first layer does there is nothing to put.
  void BeginStep();
  // The first or the next layer of a step, of runs with these tokens. `runs` must live through it.
  void BeginLayer(uint32_t layer, absl::Span<const plan::FetchRun> runs) {
    BeginHeads(layer, AllHeads(epoch_.layers[layer]), runs);
  }
  // As above, some of the layer's heads that lie here: LayerEnded() is then of these.
  void BeginHeads(uint32_t layer, HeadRange heads, absl::Span<const plan::FetchRun> runs);

  // The signal that lets the next piece out.
  transport::SignalCondition Credit() const;
  // Whether the link has room for one more turn. No signal says when that changes.
  bool HasRoom() const;

  // One turn of the piece at hand. `tokens`: of each run, those that come as K and V.
  // Errors: the transport's.
  absl::Status PutTiles(Lane& lane, kernels::KvReads& kv, absl::Span<const RunTokens> tokens);
  // A turn of a piece whose slots are INT8.
  absl::Status PutInt8(Lane& lane, kernels::KvReads& reads, absl::Span<const Int8RunTokens> tokens);
  // As above, where piece().activations(); `tokens` come as activations.
  absl::Status PutActivations(Lane& lane, kernels::KvActivations& activations,
                              absl::Span<const RunTokens> tokens);

  // Requires: !LayerEnded().
  const plan::FetchPiece& piece() const { return pieces_[piece_]; }
  uint32_t layer() const { return layer_; }
  // Every piece of the layer has left.
  bool LayerEnded() const { return piece_ == pieces_.size(); }

 private:
  plan::FetchWindows windows() const { return plan::FetchWindows(epoch_.layout); }
  // Whole pieces of the lane in the epoch, from this source or another one.
  uint64_t sent() const { return epoch_.pieces_sent[lane_]; }
  std::byte* Gathered();  // Where the piece at hand is gathered.
  absl::Status GatherTiles(kernels::KvReads& kv, absl::Span<const RunTokens> tokens,
                           size_t first_tile, size_t end_tile, BFloat16* k, BFloat16* v);
  absl::Status GatherActivations(kernels::KvActivations& activations,
                                 absl::Span<const RunTokens> tokens, size_t first, size_t end,
                                 BFloat16* to);
  absl::Status PutData(size_t offset, size_t bytes);
  // The last data of the piece, with its header and its signal.
  absl::Status PutLast(const Lane& lane, size_t offset, size_t bytes);
  absl::Status Put(size_t offset, size_t bytes, bool with_signal = false);
  void CheckData(size_t offset, size_t bytes);
  // A turn's puts have been made, of so many bytes, up to `done`; of `all`.
  void EndTurn(Lane& lane, size_t bytes, uint32_t puts, size_t done, size_t all);

  const NodeEpoch& epoch_;
  UnitMeter& meter_;
  const uint32_t lane_;
  std::byte* direct_ = nullptr;  // The compute node's region, where it is shared memory.
  // Two windows as they are to lie at the compute node. A source of puts, until its credit. Empty
  // over shared memory.
  std::vector<std::byte> staged_;
  uint32_t layer_ = 0;
  absl::Span<const plan::FetchRun> runs_;
  std::vector<plan::FetchPiece> pieces_;  // The layer's.
  size_t piece_ = 0;                      // The next one of these, and
  size_t done_ = 0;              // how much of it has left: tiles, heads in order; or tokens.
  plan::DataChecksum checksum_;  // Over that, if there are any.
};

}  // namespace lamina::memory_node

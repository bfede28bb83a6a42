// SPDX-License-Identifier: Apache-2.0
//
// PieceStream: the way of one lane's pieces (plan/fetch_pieces.h) from this node into the windows
// that it has at the compute node. Sources of streams (kv_stream.h, sparse_stream.h) say
// which tokens a layer's pieces have; this knows where in the pieces it is.
//
// Several sources may have a stream of one lane, in turns: a step is of one of them.
//
// A piece goes out when the compute node has given back those that lay where it is to lie
// (plan/fetch_ring.h). A turn gathers and puts at most kTurnBytes, so that attention of other lanes
// waits no longer. Over shared memory it gathers into the window itself, elsewhere into a copy from
// which it puts. What leaves is K and V, or activations, of the piece's tokens and zeros, of no
// other sequence.
//
// Elsewhere runs of whole tiles of bf16 that lie in the arena as they are to lie in the window are
// put from there instead, if the arena is a source of puts (NodeEpoch::puts_arena). It may be read
// until the compute node's answer. Nobody stores to these slots before: all their tokens are the
// sequence's and were stored before the step, and slots that it gives up are given to nobody until
// the compute node has reported the step (docs/design/kv.md).
//
// Where rows of other lanes attend here, their replies go the same way as pieces and leave behind
// what is under way: no more than two turns then, of all streams together.
//
// Threading: the data thread. Allocation: in Open(), and when a layer begins.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
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
};

class PieceStream {
 public:
  // One turn puts at most so many bytes.
  static constexpr size_t kTurnBytes = size_t{256} << 10;
  // Tiles are put as they lie where so many bytes of K, and of V, lie together at least. A core
  // copies that many in some 2 us; to leave them out of what is copied takes up to four more puts,
  // of some tenths of a microsecond each.
  static constexpr size_t kLyingBytesMin = size_t{16} << 10;

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

  // The signal that lets the next piece out.   Requires: !LayerEnded().
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
  // Tiles [first, end) of those that the piece at hand sends, counted over its heads.
  struct Stretch {
    size_t first = 0;
    size_t end = 0;
    // K and V of all of them, as they lie in the arena. Null: they are gathered.
    const BFloat16* k = nullptr;
    const BFloat16* v = nullptr;
  };
  // What such a stretch has of one run in one head, in slots that are sent, counted over the heads.
  struct RunPart {
    uint32_t head = 0;  // Among the piece's.
    uint32_t run = 0;
    size_t run_begin = 0;  // The run's first slot in this head.
    // Slots [begin, end), of which those before tokens_end have a token.
    size_t begin = 0;
    size_t tokens_end = 0;
    size_t end = 0;
  };

  plan::FetchWindows windows() const { return plan::FetchWindows(epoch_.layout); }
  // Whole pieces of the lane in the epoch, from this source or another one.
  plan::FetchRing& sent() const { return epoch_.pieces_sent[lane_]; }
  // What the piece at hand takes of the ring.
  uint32_t Parts() const;
  std::byte* Gathered();  // Where the piece at hand is gathered.
  // Calls `visit` with what tiles [first_tile, end_tile) have of runs, in order.
  void VisitRunParts(size_t first_tile, size_t end_tile,
                     absl::FunctionRef<void(const RunPart&)> visit) const;
  // Cuts the tiles into stretches_.
  void CutIntoStretches(kernels::KvReads& kv, absl::Span<const RunTokens> tokens, size_t first_tile,
                        size_t end_tile);
  absl::Status GatherTiles(kernels::KvReads& kv, absl::Span<const RunTokens> tokens,
                           size_t first_tile, size_t end_tile, BFloat16* k, BFloat16* v);
  absl::Status GatherActivations(kernels::KvActivations& activations,
                                 absl::Span<const RunTokens> tokens, size_t first, size_t end,
                                 BFloat16* to);
  // Where bytes at `offset` of the window are put from: `lying`, or if that is null as gathered.
  const std::byte* SourceOf(size_t offset, const BFloat16* lying);
  absl::Status PutData(size_t offset, size_t bytes, const BFloat16* lying = nullptr);
  // The last data of the piece, with its header and its signal.
  absl::Status PutLast(const Lane& lane, size_t offset, size_t bytes,
                       const BFloat16* lying = nullptr);
  absl::Status Put(size_t offset, absl::Span<const std::byte> source, bool with_signal = false);
  void CheckData(size_t offset, absl::Span<const std::byte> source);
  // A turn's puts have been made, of so many bytes, up to `done`; of `all`.
  void EndTurn(Lane& lane, size_t bytes, uint32_t puts, size_t done, size_t all);

  const NodeEpoch& epoch_;
  UnitMeter& meter_;
  const uint32_t lane_;
  std::byte* direct_ = nullptr;  // The compute node's region, where it is shared memory.
  // The ring as it is to lie at the compute node. A piece in it is a source of puts until its
  // credit. Empty over shared memory.
  std::vector<std::byte> staged_;
  uint32_t layer_ = 0;
  absl::Span<const plan::FetchRun> runs_;
  std::vector<plan::FetchPiece> pieces_;  // The layer's.
  size_t piece_ = 0;                      // The next one of these, and
  size_t done_ = 0;                 // how much of it has left: tiles, heads in order; or tokens.
  plan::DataChecksum checksum_;     // Over that, if there are any.
  std::vector<Stretch> stretches_;  // Those of a turn, in order.
};

}  // namespace lamina::memory_node

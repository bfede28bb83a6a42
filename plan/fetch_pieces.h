// SPDX-License-Identifier: Apache-2.0
//
// FetchPieces: path fetch: in which pieces K and V of a step's sequences go from a memory node to
// the compute node where they are attended, one layer at a time. Both sides compute the same list,
// so nothing of it travels (headinfer.txt 3-4: groups of heads stream through two buffers).
//
// A piece is some KV heads of some runs, so that it fits into one window: as many heads as fit of
// all runs; where one head of all runs does not fit, one head of as many runs as do. An epoch may
// fix the number of heads instead: all of them is layer-wise fetching.
//
//   window   header | heads x slots of K | heads x slots of V
//
// Slots are those of a KV arena (kernels/attention.h, KvView of the host): K in tiles of
// kFetchTile. Every run begins with a tile. Its first slots are the tokens that lie at the memory
// node; the ones behind them are for the rows' own tokens, whose K and V the compute node has.
//
// Where a step recomputes (kvpr.txt 3, hybridserve.txt 4), some tokens of a run come as activations
// (fetch_split.h says which), in a piece of their own ahead of the run's K and V, and all heads
// together:
//
//   window   header | tokens x activation
//
// Where K and V are INT8 (docs/adr/0171-int8-behind-the-open-block.md) a run has closed blocks as
// INT8 and its open one as bf16:
//
//   window   header | heads x INT8 slots of K, V, scales of K, of V | heads x slots of K, of V
//
// INT8 slots are those of an arena (kernels/int8_kv.h, Int8View). Every run has some for the tokens
// that come so, and for those of blocks that its own rows close while later ones of them attend.
// Whole blocks that the compute node makes from token numbers have the first ones of each head.
// Where tokens are chosen (plan/token_sets.h) these lie one behind the other, and scales of K come
// once for each block that has one of them, in slots of their own. Chosen tokens that the compute
// node keeps have the first slots of each head there, of INT8, of scales and of bf16.
//
// Nor do those come that the compute node keeps (path sparse, compute_node/recent_tokens.h) or has
// made for the step from token numbers (compute_node/token_rows.h), or whose activations it keeps
// (fetch_split.h), or that the windows of all layers have left behind: these have no slots in a
// piece either. Slots of tokens that it puts into a window itself, recomputed or kept, are the
// first ones of each head, whole tiles for each run: it writes them while the others come, those of
// recomputed tokens into the piece behind the one of the activations. A run whose K and V are all
// made again has its own tokens behind these, and no other slots: the piece behind is a header
// alone where all runs are so.
//
// Where the heads of a layer are spread over memory nodes, so are activations (activation_part.h),
// and K and V that are made again go to pieces of all nodes. So their pieces are of the same runs
// where a step recomputes: all are cut for the node with most heads.
//
// Where sequences are cut into spans over memory nodes (partition token_range), each node's pieces
// are of what lies there: a run is what of a run of rows is of one span (fetch_split.h), and has
// room for those of its own tokens that are of this span, none but in the last ones.
//
// Threading:   plain values.   Allocation: when a list grows.
// Determinism: pure functions.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/attention_descriptor.h"
#include "common/kv_form.h"
#include "plan/epoch_config.h"
#include "plan/fetch_ring.h"
#include "plan/step_plan.h"
#include "plan/window_header.h"
#include "plan/window_layout.h"

namespace lamina::plan {

// Slots of a tile of K.
inline constexpr uint32_t kFetchTile = 16;

// Consecutive tokens of one sequence that are rows of a step.
struct FetchRun {
  uint32_t before = 0;  // Tokens of the sequence in front of them: what is fetched.
  uint32_t tokens = 0;
  uint32_t recomputed = 0;  // How many of those before come as activations,
  uint32_t remade = 0;      // of how many the compute node has the activations,
  uint32_t kept = 0;        // of how many K and V,
  uint32_t hidden = 0;      // and of how many nothing comes, since no row sees them.
  // Where K and V are INT8: `before` are the tokens that a row has chosen, so many of them from
  // closed blocks, of so many of these.
  bool chosen = false;
  uint32_t chosen_closed = 0;
  uint32_t chosen_blocks = 0;
  // Those that are kept of them are the last ones: some of so many closed blocks, and so many of
  // the open one, of which then all are kept.
  uint32_t kept_blocks = 0;
  uint32_t kept_open = 0;

  // Tokens whose K and V come.
  uint32_t fetched() const { return before - made() - kept - hidden; }
  // Tokens whose K and V are made again.
  uint32_t made() const { return recomputed + remade; }
  // Whether those of all are: own tokens lie behind them, and nothing comes as K and V.
  bool all_recomputed() const { return made() > 0 && fetched() == 0; }
  // In a window: of the tokens that are fetched, and the own ones.
  uint32_t slots() const { return all_recomputed() ? 0 : WholeTiles(fetched() + tokens); }
  // In a window: what those take that the compute node puts there itself; with INT8 the closed
  // ones.
  uint32_t filled_slots() const {
    return WholeTiles(made() + kept - kept_open + (all_recomputed() ? tokens : 0));
  }

  // Where K and V are INT8: tokens that come so, and bf16 of the open block behind them. Those that
  // are kept are of closed blocks, and the first ones, unless they are chosen.
  uint32_t int8_fetched() const { return chosen ? chosen_closed : Int8TokensOf(before) - kept; }
  uint32_t tail_fetched() const { return before - kept - int8_fetched(); }
  // In a window: of all tokens that some row sees as INT8, of scales of K of their blocks, and of
  // the open block.
  uint32_t int8_slots() const {
    return chosen ? filled_slots() + WholeTiles(chosen_closed)
                  : Int8TokensOf(before + std::max(tokens, 1u) - 1);
  }
  uint32_t scale_slots() const {
    return chosen ? (kept_blocks + chosen_blocks) * kInt8BlockTokens : int8_slots();
  }
  uint32_t scales_fetched() const {
    return chosen ? chosen_blocks * kInt8BlockTokens : int8_fetched();
  }
  uint32_t tail_slots() const {
    return std::min(kInt8BlockTokens, WholeTiles(tail_fetched() + kept_open + tokens));
  }
  // What of the latter two the compute node puts there itself. The open block is its own where it
  // keeps any chosen tokens, for these are the last ones.
  uint32_t filled_scales() const { return chosen ? kept_blocks * kInt8BlockTokens : kept; }
  uint32_t filled_open() const { return chosen && kept > 0 ? tail_slots() : 0; }

  static uint32_t WholeTiles(uint32_t slots) {
    return (slots + kFetchTile - 1) / kFetchTile * kFetchTile;
  }
};

struct FetchPiece {
  HeadRange heads;         // Heads that the memory node holds.
  uint32_t first_run = 0;  // Runs [first_run, runs_end).
  uint32_t runs_end = 0;
  uint32_t slots = 0;       // Slots of all its runs, in each head.
  uint32_t filled = 0;      // The first of these, or of INT8, which the compute node fills.
  uint32_t recomputed = 0;  // Tokens of a piece of activations; it has no heads.
  // Where K and V are INT8: slots of INT8 of all its runs, in each head, and of scales of K;
  // `slots` are those of open blocks then.
  uint32_t int8_slots = 0;
  uint32_t scale_slots = 0;
  // The first ones of scales and of open blocks, which the compute node fills.
  uint32_t filled_scales = 0;
  uint32_t filled_open = 0;

  bool activations() const { return heads.count == 0; }

  // Elements of K, and of V.
  size_t elements(uint32_t head_dim) const { return size_t{heads.count} * slots * head_dim; }
  friend bool operator==(const FetchPiece&, const FetchPiece&) = default;
};

// Where the planes of a piece begin, in bytes behind the header. Shapes: heads after heads.
struct FetchPlanes {
  size_t int8_k = 0;
  size_t int8_v = 0;
  size_t k_scales = 0;
  size_t v_scales = 0;
  size_t k = 0;
  size_t v = 0;
  size_t end = 0;
};
FetchPlanes PlanesOf(const FetchPiece& piece, uint32_t head_dim);

// Bytes of a piece behind its header, slots that the compute node fills among them.
size_t PieceBytes(const FetchPiece& piece, uint32_t head_dim, uint32_t activation_width);
// What of a piece of K and V, of this form, these take.
size_t FilledBytes(const FetchPiece& piece, uint32_t head_dim, KvForm form);

// What pieces are cut for.
struct FetchLimits {
  uint64_t window_bytes = 0;      // Bytes of one window.
  uint32_t heads = 0;             // KV heads of a piece, or the layer's if these are fewer; 0: any.
  uint32_t activation_width = 0;  // Elements of a token's activation; 0: nothing is recomputed.
  // Where heads are spread over memory nodes: how many of them the one with most has, and
  // `activation_width` is the largest part. 0: each has those that its pieces are of.
  uint32_t heads_most = 0;
  bool int8 = false;  // K and V are; nothing is recomputed then.
};

FetchLimits FetchLimitsOf(const EpochConfig& config);

// The pieces of one layer, heads in order and runs in order.
// Shapes: part  the layer over the heads that the memory node holds
// Requires: every run fits with as many heads as a piece has at least (CheckFetch()), and where
// something is made again with all heads, and its activations. No K and V are kept where some are
// made again.
void PiecesOf(const AttentionDescriptor& part, absl::Span<const FetchRun> runs,
              const FetchLimits& limits, std::vector<FetchPiece>& pieces);

// As above, of some of the heads that the memory node holds; pieces count heads among all of these.
void PiecesOf(const AttentionDescriptor& part, HeadRange heads, absl::Span<const FetchRun> runs,
              const FetchLimits& limits, std::vector<FetchPiece>& pieces);

// Where pieces lie and which words tell of them. Pieces count from 1 in each (memory node, lane),
// over the whole epoch. The two windows of these are one ring, of which a piece takes the parts
// that it needs (fetch_ring.h): a window whole if it is larger than half of one. The word of a
// credit shows how many pieces have been used up.
class FetchWindows {
 public:
  // The layout must outlive this.
  explicit FetchWindows(const WindowLayout& layout) : layout_(layout) {}

  // A word of a memory node's region.
  uint32_t credit_word(uint32_t compute_node, uint32_t lane) const {
    return layout_.Word(WindowKind::kFetchCredit, compute_node, lane);
  }
  // A word of a compute node's region.
  uint32_t word(uint32_t memory_node, uint32_t lane) const {
    return layout_.Word(WindowKind::kFetched, memory_node, lane);
  }
  size_t window_bytes() const { return layout_.group(WindowKind::kFetched).window_bytes; }
  // Bytes of the ring of a (memory node, lane), and of a part of it.
  size_t ring_bytes() const { return layout_.group(WindowKind::kFetched).turns * window_bytes(); }
  size_t part_bytes() const { return ring_bytes() / FetchRing::kParts; }
  // Parts of a piece with so many bytes behind its header.   Requires: it fits into a window.
  uint32_t Parts(size_t bytes) const {
    const size_t whole = (sizeof(WindowHeader) + bytes + part_bytes() - 1) / part_bytes();
    return std::bit_ceil(static_cast<uint32_t>(whole));
  }
  // Where the next piece of so many parts begins, in the ring, and in the compute node's region.
  size_t Offset(const FetchRing& ring, uint32_t parts) const {
    return ring.First(parts) * part_bytes();
  }
  size_t Window(uint32_t memory_node, uint32_t lane, const FetchRing& ring, uint32_t parts) const {
    return layout_.Window(WindowKind::kFetched, memory_node, lane, 0) + Offset(ring, parts);
  }

 private:
  const WindowLayout& layout_;
};

// Bytes of one window, with windows in pairs for each lane and memory node; 0 without path fetch.
uint64_t FetchWindowBytes(const EpochConfig& config);

// Tokens of the longest run, its own among them: those of the longest sequence, or of a span.
uint32_t RunTokensMax(const EpochConfig& config);

// Whether rows of all these paths are served where sequences are cut into spans.
bool ServesSpans(AttentionPaths paths);

// Errors: kInvalidArgument  path fetch with several compute nodes; partition token_range with paths
//                           that are not served with it; windows in which one KV head of the
//                           longest sequence, or span, does not fit, or as many as the epoch fixes,
//                           or where activations are kept all: says how many bytes would do;
//                           activations of fewer elements than there are KV heads with partition
//                           head, or any with INT8; path recompute without activations in addition
//                           to K and V, or token numbers to make K and V from; activations that
//                           stay on the compute node where nothing is made of them; K and V from
//                           token numbers without path recompute, or with activations.
absl::Status CheckFetch(const EpochConfig& config);

}  // namespace lamina::plan

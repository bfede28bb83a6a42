// SPDX-License-Identifier: Apache-2.0
//
// The paths of attention_path_test.cc, each with what may change its pieces and windows.

#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "common/attention_descriptor.h"
#include "common/kv_form.h"
#include "common/sparse_tokens.h"
#include "common/streaming_heads.h"
#include "plan/attention_paths.h"
#include "plan/row_pieces.h"
#include "plan/slot_kinds.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

inline constexpr uint32_t kSpanTokens = 256;
inline constexpr uint32_t kTokensMax = 700;
inline constexpr uint32_t kSequences = 4;
inline constexpr uint32_t kLanes = 2;
inline constexpr uint32_t kChunkTokens = 300;  // A step has so many.
inline constexpr uint32_t kHeadDim = 16;
// Two windows for each lane and memory node.
inline constexpr uint64_t kFetchLeast =
    uint64_t{2} * kLanes * 2 * (kTokensMax + 4) * 2 * kHeadDim * 2;

// Room for a span in place of the longest sequence.
inline constexpr uint64_t kFetchLeastOfSpans =
    uint64_t{2} * kLanes * 2 * kSpanTokens * 2 * kHeadDim * 2;

// Where tokens that come and others that are here alternate, each kind ends with a tile of its own.
inline constexpr uint64_t kFetchLeastOfKept = kFetchLeastOfSpans / kSpanTokens * (kSpanTokens + 16);

// Where slots of a span are of two kinds each ends with a tile of its own; all heads fit.
inline constexpr uint64_t kHybridLeastOfSpans =
    kFetchLeastOfSpans / kSpanTokens * (kSpanTokens + 16) * 2;

// INT8 needs room for closed blocks, and an open one.
inline constexpr uint64_t kFetchLeastInt8 =
    uint64_t{2} * kLanes * 2 *
    ((kTokensMax + 64) / 64 * 64 * KvHeadBytes(kHeadDim, KvForm::kInt8) + 64 * 2 * kHeadDim * 2);

struct Case {
  const char* name;
  plan::AttentionPath kind;
  std::vector<HeadRange> heads;  // With partition head.
  uint32_t span_tokens = 0;      // With partition token_range.
  plan::Chunking chunking = {};
  bool toy = false;
  uint64_t fetch_bytes = 0;
  uint32_t fetch_heads = 0;
  uint32_t recomputed = 0;        // As in StepPlan; activations are kept then,
  uint32_t bare = 0;              // but of so many first tokens of each sequence.
  uint32_t activation_share = 0;  // Share of the slots; activations are kept then.
  // With path sparse: which tokens, of which tests know what window sums choose, and that a ratio
  // of 1 chooses all.
  SparseTokens sparse_tokens = SparseTokens::kWindowSums;
  double sparse_ratio = 0;
  uint32_t resident_tokens = 0;   // So many tokens of all sequences stay, or INT8 in as many bytes.
  uint32_t activations_here = 0;  // So many of each sequence stay on the compute node,
  uint32_t first_here = 0;        // from this token on.
  bool int8 = false;              // K and V are.
  // With path streaming: what heads see, and by layer which stream, again from the first one on
  // behind the last.
  StreamingHeads streaming = {};
  bool ahead = false;  // Activations are used before slices run, as while their weights come.
};

inline void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// Room for all blocks of all sequences, and tails.
inline constexpr uint32_t kAllResidentInt8 = kSequences * (kTokensMax + 64) + 64;

// Changes a byte of a piece; where tokens stay, slots of which do not come, one of each tile.
inline void ChangeBytes(const Case& one, std::byte* piece) {
  constexpr size_t kTileBytes = size_t{16} * kHeadDim * 2;
  const bool stay = one.resident_tokens > 0 || one.activations_here > 0;
  const size_t end = stay ? 2 * kTokensMax / 16 * kTileBytes : kTileBytes;
  for (size_t tile = 0; tile < end; tile += kTileBytes) {
    piece[tile + 200] ^= std::byte{4};
  }
}

inline std::vector<Case> Cases() {
  using plan::AttentionPath;
  const std::vector<HeadRange> heads = {{.first = 0, .count = 1}, {.first = 1, .count = 1}};
  return {
      {.name = "Remote", .kind = AttentionPath::kRemote},
      {.name = "RemoteInPieces",
       .kind = AttentionPath::kRemote,
       .chunking = {.chunks = 2, .query_first = true}},
      {.name = "RemoteByHead", .kind = AttentionPath::kRemote, .heads = heads},
      {.name = "RemoteByHeadGroups",
       .kind = AttentionPath::kRemote,
       .chunking = {.chunks = 2, .by_heads = true}},
      {.name = "RemoteBySpan", .kind = AttentionPath::kRemote, .span_tokens = kSpanTokens},
      {.name = "Local", .kind = AttentionPath::kLocal},
      {.name = "Fetch", .kind = AttentionPath::kFetch, .fetch_bytes = 16 << 20},
      // Windows in which one head of the longest sequence just fits: several pieces for a head.
      {.name = "FetchInSmallWindows", .kind = AttentionPath::kFetch, .fetch_bytes = kFetchLeast},
      // Layer by layer: all heads in each piece, in windows that have room for some sequences.
      {.name = "FetchWholeLayers",
       .kind = AttentionPath::kFetch,
       .fetch_bytes = 4 * kFetchLeast,
       .fetch_heads = 100},
      {.name = "FetchHeadByHead",
       .kind = AttentionPath::kFetch,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1},
      {.name = "FetchByHead",
       .kind = AttentionPath::kFetch,
       .heads = heads,
       .fetch_bytes = 1 << 20},
      // Spans lie on the nodes in turn.
      {.name = "FetchBySpan",
       .kind = AttentionPath::kFetch,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20},
      // One head of one span just fits: several pieces for a head of a sequence.
      {.name = "FetchBySpanInSmallWindows",
       .kind = AttentionPath::kFetch,
       .span_tokens = kSpanTokens,
       .fetch_bytes = kFetchLeastOfSpans},
      {.name = "FetchBySpanHeadByHead",
       .kind = AttentionPath::kFetch,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1},
      {.name = "FetchAndRecompute",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 16 << 20,
       .recomputed = 400},
      // All of it, in windows in which the longest sequence just fits.
      {.name = "RecomputeInSmallWindows",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = plan::kRecomputeUnit},
      {.name = "RecomputeBehindBareTokens",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 16 << 20,
       .recomputed = 700,
       .bare = 64},
      // Behind a part of a tile, in windows in which the longest sequence just fits.
      {.name = "RecomputeAllThatIsNotBare",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = plan::kRecomputeUnit,
       .bare = 37},
      // K and V of tokens with activations here are made from these, and of others from some that
      // come: none of these, some, and all.
      {.name = "RecomputeWhatIsHere",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 16 << 20,
       .recomputed = 400,
       .activations_here = kTokensMax},
      {.name = "RecomputeWhatIsHereAndComes",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 16 << 20,
       .recomputed = 700,
       .bare = 21,
       .activations_here = 40,
       .first_here = 30},
      {.name = "RecomputeAllInSmallWindowsSomeHere",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = plan::kRecomputeUnit,
       .activations_here = 37},
      {.name = "RecomputeAheadOfWhatIsHere",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = 950,
       .activations_here = 32,
       .ahead = true},
      {.name = "FetchHybrid",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = 16 << 20,
       .activation_share = 600},
      {.name = "FetchHybridInSmallWindows",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20) * 2,
       .activation_share = 300},
      {.name = "FetchActivationsAlone",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = 16 << 20,
       .activation_share = plan::SlotKinds::kUnit},
      // Nothing comes of activations that are here: of some, or of all.
      {.name = "FetchHybridSomeHere",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = 16 << 20,
       .activation_share = 600,
       .activations_here = 40,
       .first_here = 21},
      {.name = "FetchHybridAllHereInSmallWindows",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20) * 2,
       .activation_share = 300,
       .activations_here = kTokensMax},
      {.name = "RecomputeAhead",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 16 << 20,
       .recomputed = 400,
       .ahead = true},
      {.name = "RecomputeAheadInSmallWindows",
       .kind = AttentionPath::kRecompute,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = plan::kRecomputeUnit,
       .ahead = true},
      {.name = "FetchHybridAhead",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = 16 << 20,
       .activation_share = 600,
       .ahead = true},
      {.name = "FetchHybridAheadInSmallWindows",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20) * 2,
       .activation_share = 300,
       .ahead = true},
      {.name = "FetchHybridAheadSomeHere",
       .kind = AttentionPath::kHybrid,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20) * 2,
       .activation_share = 700,
       .activations_here = 37,
       .ahead = true},
      // Activations are spread as heads are, and K and V that are made of them.
      {.name = "RecomputeByHead",
       .kind = AttentionPath::kRecompute,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .recomputed = 400},
      {.name = "RecomputeByHeadInSmallWindows",
       .kind = AttentionPath::kRecompute,
       .heads = heads,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = plan::kRecomputeUnit,
       .bare = 37},
      {.name = "RecomputeByHeadWhatIsHereAndComes",
       .kind = AttentionPath::kRecompute,
       .heads = heads,
       .fetch_bytes = 2 * kFetchLeast,
       .recomputed = 700,
       .bare = 21,
       .activations_here = 40,
       .first_here = 30},
      {.name = "RecomputeByHeadAheadOfWhatIsHere",
       .kind = AttentionPath::kRecompute,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .recomputed = 950,
       .activations_here = 32,
       .ahead = true},
      {.name = "FetchHybridByHead",
       .kind = AttentionPath::kHybrid,
       .heads = heads,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20) * 2,
       .activation_share = 300},
      {.name = "FetchHybridByHeadAhead",
       .kind = AttentionPath::kHybrid,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .activation_share = 600,
       .ahead = true},
      {.name = "FetchActivationsAloneByHead",
       .kind = AttentionPath::kHybrid,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .activation_share = plan::SlotKinds::kUnit},
      // Each node has the activations of its spans, and K and V that are made of them go to its own
      // pieces.
      {.name = "RecomputeBySpan",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .recomputed = 400},
      {.name = "RecomputeAllBySpan",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .recomputed = plan::kRecomputeUnit},
      {.name = "RecomputeBySpanInSmallWindows",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 2 * kFetchLeastOfSpans,
       .recomputed = plan::kRecomputeUnit,
       .bare = 37},
      // Those that stay are of two spans.
      {.name = "RecomputeBySpanWhatIsHereAndComes",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 2 * kFetchLeastOfSpans,
       .recomputed = 700,
       .bare = 21,
       .activations_here = 60,
       .first_here = 240},
      {.name = "RecomputeBySpanAhead",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 2 * kFetchLeastOfSpans,
       .recomputed = plan::kRecomputeUnit,
       .ahead = true},
      {.name = "RecomputeBySpanAheadOfWhatIsHere",
       .kind = AttentionPath::kRecompute,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .recomputed = 950,
       .activations_here = 32,
       .ahead = true},
      {.name = "FetchHybridBySpan",
       .kind = AttentionPath::kHybrid,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .activation_share = 600},
      {.name = "FetchHybridBySpanAllHereInSmallWindows",
       .kind = AttentionPath::kHybrid,
       .span_tokens = kSpanTokens,
       .fetch_bytes = kHybridLeastOfSpans,
       .activation_share = 300,
       .activations_here = kTokensMax},
      {.name = "FetchHybridBySpanAheadSomeHere",
       .kind = AttentionPath::kHybrid,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .activation_share = 600,
       .activations_here = 60,
       .first_here = 240,
       .ahead = true},
      {.name = "FetchActivationsAloneBySpan",
       .kind = AttentionPath::kHybrid,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .activation_share = plan::SlotKinds::kUnit},
      {.name = "Sparse",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5},
      {.name = "SparseInSmallWindows",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20),
       .sparse_ratio = 0.2},
      {.name = "SparseHeadByHead",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1,
       .sparse_ratio = 0.8},
      // Nothing is left out.
      {.name = "SparseWithAll",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 1},
      // All tokens stay, and none comes again.
      {.name = "SparseWithAllResident",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 1,
       .resident_tokens = kSequences * (kTokensMax + 16)},
      // Some make room for others, in windows in which one head of the longest sequence just fits.
      {.name = "SparseWithSomeResident",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20),
       .sparse_ratio = 1,
       .resident_tokens = 160},
      {.name = "SparseWithSomeResidentHeadByHead",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1,
       .sparse_ratio = 0.8,
       .resident_tokens = 64},
      {.name = "SparseWithATileResident",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5,
       .resident_tokens = 16},
      // Each node is told the same tokens, and sums are over the heads of both.
      {.name = "SparseByHead",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5},
      {.name = "SparseByHeadInSmallWindows",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20),
       .sparse_ratio = 0.2},
      {.name = "SparseByHeadWithATileResident",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5,
       .resident_tokens = 16},
      {.name = "SparseByHeadWithAll",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 1},
      // Nothing is weighed, as under fetch_heads.
      {.name = "SparseByHeadWithSomeResident",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = kFetchLeast / (kTokensMax + 4) * (kTokensMax + 20),
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .resident_tokens = 160},
      // Each node is told of the tokens of its spans: of all that do not stay.
      {.name = "SparseBySpanWithAll",
       .kind = AttentionPath::kSparse,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1},
      {.name = "SparseBySpanWithAllResident",
       .kind = AttentionPath::kSparse,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .resident_tokens = kSequences * (kTokensMax + 16)},
      // One head of one span just fits.
      {.name = "SparseBySpanWithSomeResidentInSmallWindows",
       .kind = AttentionPath::kSparse,
       .span_tokens = kSpanTokens,
       .fetch_bytes = kFetchLeastOfKept,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .resident_tokens = 160},
      // Those of one sequence are of two spans.
      {.name = "SparseBySpanWithManyResidentHeadByHead",
       .kind = AttentionPath::kSparse,
       .span_tokens = kSpanTokens,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .resident_tokens = 640},
      {.name = "SparseInt8ByHead",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5,
       .int8 = true},
      {.name = "SparseInt8ByHeadWithAll",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .int8 = true},
      {.name = "Streaming",
       .kind = AttentionPath::kStreaming,
       .fetch_bytes = 16 << 20,
       .streaming = {.sink = 16, .window = 64, .layers = {{1}, {0, 1}, {}}}},
      // Neither sink nor window end with a tile; one head of the longest sequence just fits.
      {.name = "StreamingInSmallWindows",
       .kind = AttentionPath::kStreaming,
       .fetch_bytes = kFetchLeast,
       .streaming = {.sink = 5, .window = 37, .layers = {{0}}}},
      {.name = "StreamingWithoutSink",
       .kind = AttentionPath::kStreaming,
       .fetch_bytes = 16 << 20,
       .streaming = {.sink = 0, .window = 1, .layers = {{1}, {0}}}},
      {.name = "StreamingByHead",
       .kind = AttentionPath::kStreaming,
       .heads = heads,
       .fetch_bytes = 1 << 20,
       .streaming = {.sink = 33, .window = 290, .layers = {{0, 1}, {1}, {}}}},
      // Sink and window leave nothing out.
      {.name = "StreamingWithAll",
       .kind = AttentionPath::kStreaming,
       .fetch_bytes = 16 << 20,
       .streaming = {.sink = 10, .window = kTokensMax, .layers = {{0, 1}}}},
      {.name = "RemoteInt8", .kind = AttentionPath::kRemote, .int8 = true},
      {.name = "LocalInt8", .kind = AttentionPath::kLocal, .int8 = true},
      {.name = "FetchInt8", .kind = AttentionPath::kFetch, .fetch_bytes = 16 << 20, .int8 = true},
      {.name = "FetchInt8InSmallWindows",
       .kind = AttentionPath::kFetch,
       .fetch_bytes = kFetchLeastInt8,
       .int8 = true},
      {.name = "FetchInt8WholeLayers",
       .kind = AttentionPath::kFetch,
       .fetch_bytes = 4 * kFetchLeastInt8,
       .fetch_heads = 100,
       .int8 = true},
      {.name = "FetchInt8ByHead",
       .kind = AttentionPath::kFetch,
       .heads = heads,
       .fetch_bytes = 1 << 20,
       .fetch_heads = 1,
       .int8 = true},
      {.name = "SparseInt8",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 0.5,
       .int8 = true},
      {.name = "SparseInt8InSmallWindows",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = kFetchLeastInt8,
       .sparse_ratio = 0.2,
       .int8 = true},
      {.name = "SparseInt8HeadByHead",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1,
       .sparse_ratio = 0.8,
       .int8 = true},
      {.name = "SparseInt8WithAll",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 1,
       .int8 = true},
      // Blocks that close here are those that memory nodes close: all stay, or the last ones, in
      // windows in which one head of the longest sequence just fits.
      {.name = "SparseInt8WithAllResident",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .sparse_ratio = 1,
       .resident_tokens = kAllResidentInt8,
       .int8 = true},
      {.name = "SparseInt8WithSomeResident",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = kFetchLeastInt8,
       .sparse_ratio = 0.5,
       .resident_tokens = 256,
       .int8 = true},
      {.name = "SparseInt8WithABlockResidentHeadByHead",
       .kind = AttentionPath::kSparse,
       .fetch_bytes = 16 << 20,
       .fetch_heads = 1,
       .sparse_ratio = 0.8,
       .resident_tokens = 128,
       .int8 = true},
      // Nothing is weighed, as under fetch_heads.
      {.name = "SparseInt8ByHeadWithSomeResident",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = 16 << 20,
       .sparse_tokens = SparseTokens::kLocal,
       .sparse_ratio = 1,
       .resident_tokens = 640,
       .int8 = true},
      {.name = "SparseInt8ByHeadChosenWithSomeResident",
       .kind = AttentionPath::kSparse,
       .heads = heads,
       .fetch_bytes = kFetchLeastInt8,
       .sparse_ratio = 0.2,
       .resident_tokens = 256,
       .int8 = true},
      {.name = "Toy", .kind = AttentionPath::kLocal, .toy = true},
  };
}

// Those of sequences that are cut into spans.
inline std::vector<Case> CasesBySpan() {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& one) { return one.span_tokens == 0; });
  return cases;
}

// Those to which K and V, or activations, come in pieces.
inline std::vector<Case> CasesThatFetch() {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& one) { return one.fetch_bytes == 0 || one.ahead; });
  return cases;
}

// Those that choose tokens for heads of several memory nodes, by weights, or by a fixed pattern.
inline std::vector<Case> CasesChosenByHead(bool weighed) {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [weighed](const Case& one) {
    return one.sparse_ratio == 0 || one.heads.empty() ||
           (one.sparse_tokens == SparseTokens::kWindowSums) != weighed;
  });
  return cases;
}

// Those that use activations before a slice runs.
inline std::vector<Case> CasesAhead() {
  std::vector<Case> cases = Cases();
  std::erase_if(cases, [](const Case& one) { return !one.ahead; });
  return cases;
}

// Those of them where activations stay on the compute node.
inline std::vector<Case> CasesAheadOfWhatIsHere() {
  std::vector<Case> cases = CasesAhead();
  std::erase_if(cases, [](const Case& one) { return one.activations_here == 0; });
  return cases;
}

// Those that fetch, where activations stay on the compute node.
inline std::vector<Case> CasesBehindWhatIsHere() {
  std::vector<Case> cases = CasesThatFetch();
  std::erase_if(cases, [](const Case& one) { return one.activations_here == 0; });
  return cases;
}

}  // namespace lamina::compute_node

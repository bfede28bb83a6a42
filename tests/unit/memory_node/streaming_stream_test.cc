// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends where some heads stream: every byte of every piece, of these heads no
// token that no row sees, and nothing of another sequence.

#include "memory_node/streaming_stream.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/k_tiles.h"
#include "plan/fetch_pieces.h"
#include "plan/streaming_tokens.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

constexpr size_t kDim = 16;
constexpr uint64_t kSlotBytes = 2 * kDim * 2;  // K and V of one head.
// Two windows for a lane and memory node: one head of the longest sequence fits.
constexpr uint64_t kLeast = 2 * UnitCluster::kContext * kSlotBytes;

struct Run {
  uint32_t sequence = 0;
  uint32_t before = 0;
};

// The rows whose K and V the node sends.
std::vector<Run> RunsOf(const UnitCluster& cluster, const Step& step, uint32_t node) {
  std::vector<Run> runs;
  const bool all = cluster.config().partition == Partition::kHead;
  const auto nodes = static_cast<uint32_t>(cluster.config().memory_nodes.size());
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    if (all || step.sequences[row] % nodes == node) {
      runs.push_back({.sequence = step.sequences[row], .before = step.positions[row]});
    }
  }
  return runs;
}

// One head of one run: the tokens that come, then zeros. Returns the first slot behind them.
size_t ExpectHead(UnitCluster& cluster, const Run& run, uint32_t layer, uint32_t head,
                  plan::TokenGap gap, const BFloat16* k, const BFloat16* v, size_t slot) {
  std::vector<BFloat16> whole_k(size_t{UnitCluster::kContext} * kDim);
  std::vector<BFloat16> whole_v(whole_k.size());
  cluster.CopyKv(run.sequence, layer, head, run.before, whole_k.data(), whole_v.data());
  const plan::FetchRun sent = plan::WithoutGap({.before = run.before, .tokens = 1}, gap);
  for (uint32_t i = 0; i < sent.slots(); ++i, ++slot) {
    const uint32_t token = i < gap.first ? i : i + gap.tokens();
    for (size_t element = 0; element < kDim; ++element) {
      const BFloat16 zero;
      const BFloat16 want_k =
          i < sent.before ? whole_k[kernels::OffsetInTiles(token, element, kDim)] : zero;
      const BFloat16 want_v = i < sent.before ? whole_v[token * kDim + element] : zero;
      EXPECT_EQ(k[kernels::OffsetInTiles(slot, element, kDim)].bits, want_k.bits)
          << "K of slot " << slot << " layer " << layer << " head " << head;
      EXPECT_EQ(v[slot * kDim + element].bits, want_v.bits)
          << "V of slot " << slot << " layer " << layer << " head " << head;
    }
  }
  return slot;
}

struct Sent {
  uint64_t pieces = 0;
  uint64_t slots = 0;
};

// Takes the pieces of a step from `first` on, and gives each window back.
Sent ExpectPieces(UnitCluster& cluster, const Step& step, uint32_t node, uint64_t first) {
  const plan::EpochConfig& config = cluster.config();
  const std::vector<Run> runs = RunsOf(cluster, step, node);
  Sent sent;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const HeadRange held =
        config.partition == Partition::kHead ? config.heads[node] : AllHeads(config.layers[layer]);
    for (const plan::AlikeHeads& range : plan::AlikeHeadsOf(config.streaming, layer, held)) {
      std::vector<plan::FetchRun> come;
      std::vector<plan::TokenGap> gaps;
      for (const Run& run : runs) {
        gaps.push_back(range.streams ? plan::GapBefore(config.streaming, run.before)
                                     : plan::TokenGap());
        come.push_back(plan::WithoutGap({.before = run.before, .tokens = 1}, gaps.back()));
      }
      std::vector<plan::FetchPiece> pieces;
      plan::PiecesOf(PartOf(config.layers[layer], held), range.heads, come,
                     plan::FetchLimitsOf(config), pieces);
      for (const plan::FetchPiece& piece : pieces) {
        const uint64_t number = first + sent.pieces++;
        cluster.AwaitPiece(node, step.spec.lane, number,
                           plan::PieceBytes(piece, kDim, /*activation_width=*/0));
        const BFloat16* const k = cluster.Fetched(node, step.spec.lane, number);
        size_t slot = 0;
        for (uint32_t head = 0; head < piece.heads.count; ++head) {
          for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
            slot = ExpectHead(cluster, runs[run], layer, held.first + piece.heads.first + head,
                              gaps[run], k, k + piece.elements(kDim), slot);
          }
        }
        sent.slots += slot;
        cluster.RaiseCredit(node, step.spec.lane, number);
      }
    }
  }
  return sent;
}

// Steps of rows behind contexts short and long. Returns how many slots came.
uint64_t RunSteps(UnitCluster& cluster) {
  const auto nodes = static_cast<uint32_t>(cluster.config().memory_nodes.size());
  for (uint32_t node = 0; node < nodes; ++node) {
    cluster.FillWindows(node, 0, {.bits = 0xabcd});  // What is not overwritten shows.
  }
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}, {3, 129}}});
  std::vector<uint64_t> pieces(nodes);
  uint64_t slots = 0;
  for (uint64_t number = 2; number < 6; ++number) {
    const Step step = cluster.MakeStep({.step = number,
                                        .rows = number % 2 == 0 ? std::vector<uint32_t>{1, 0, 2, 3}
                                                                : std::vector<uint32_t>{3, 0}});
    cluster.PushPlan(step);
    for (uint32_t node = 0; node < nodes; ++node) {
      const Sent sent = ExpectPieces(cluster, step, node, pieces[node] + 1);
      pieces[node] += sent.pieces;
      slots += sent.slots;
    }
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
  }
  cluster.Stop();
  return slots;
}

TEST(StreamingStreamTest, PiecesHaveWhatRowsSeeAndZeros) {
  for (const uint64_t bytes : {kLeast, 3 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.memory_nodes = 2,
                         .fetch_bytes = 2 * bytes,
                         .streaming = {.sink = 5, .window = 37, .layers = {{1}, {0, 1, 2}}}});
    RunSteps(cluster);
  }
}

TEST(StreamingStreamTest, ANodeSendsTheHeadsThatItHolds) {
  UnitCluster cluster({.memory_nodes = 2,
                       .partition = Partition::kHead,
                       .heads = {1, 2},
                       .fetch_bytes = 2 * kLeast,
                       .streaming = {.sink = 16, .window = 64, .layers = {{0, 2}, {1}}}});
  RunSteps(cluster);
}

TEST(StreamingStreamTest, WithHeadsThatStreamLessComes) {
  const auto slots = [](uint32_t window) {
    UnitCluster cluster(
        {.fetch_bytes = 4 * kLeast,
         .streaming = {.sink = 0, .window = window, .layers = {{0, 1, 2}, {0, 1, 2}}}});
    return RunSteps(cluster);
  };
  EXPECT_LT(4 * slots(16), slots(UnitCluster::kContext));
}

}  // namespace
}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends to a compute node that attends itself: every byte of every piece, and
// when it may leave.

#include "memory_node/kv_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "plan/fetch_pieces.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

constexpr uint64_t kSlotBytes = 2 * 16 * 2;  // K and V of one head.
// Of two windows for a lane and memory node: one head of the longest sequence fits.
constexpr uint64_t kLeast = 2 * UnitCluster::kContext * kSlotBytes;

// Of the step's rows whose sequences live on the node.
std::vector<plan::FetchRun> RunsOf(const Step& step, uint32_t node, uint32_t nodes,
                                   std::vector<uint32_t>& sequences) {
  std::vector<plan::FetchRun> runs;
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    if (nodes == 1 || step.sequences[row] % nodes == node) {
      runs.push_back({.before = step.positions[row], .tokens = 1});
      sequences.push_back(step.sequences[row]);
    }
  }
  return runs;
}

// Takes the pieces of a step from `first` on, and gives each window back. A window has K and V of
// the piece's tokens and zeros: not a byte of another sequence. Returns how many pieces there were.
uint64_t ExpectPieces(UnitCluster& cluster, const Step& step, uint32_t node, uint64_t first) {
  const plan::EpochConfig& config = cluster.config();
  const auto nodes =
      config.partition == Partition::kHead ? 1 : static_cast<uint32_t>(config.memory_nodes.size());
  std::vector<uint32_t> sequences;
  const std::vector<plan::FetchRun> runs = RunsOf(step, node, nodes, sequences);
  std::vector<plan::FetchPiece> pieces;
  uint64_t next = first;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const AttentionDescriptor part = plan::LayersOf(config, node)[layer];
    const uint32_t first_head = config.partition == Partition::kHead ? config.heads[node].first : 0;
    plan::PiecesOf(part, runs, plan::FetchWindowBytes(config), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      cluster.AwaitFetched(node, step.spec.lane, next);
      std::vector<BFloat16> wanted(2 * piece.elements(part.head_dim));
      size_t slot = 0;
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          BFloat16* const k = wanted.data() + slot * part.head_dim;
          cluster.CopyKv(sequences[run], layer, first_head + piece.heads.first + head,
                         runs[run].before, k, k + piece.elements(part.head_dim));
          slot += runs[run].slots();
        }
      }
      EXPECT_EQ(std::memcmp(cluster.Fetched(node, step.spec.lane, next), wanted.data(),
                            wanted.size() * sizeof(BFloat16)),
                0)
          << "layer " << layer << " piece " << next;
      cluster.RaiseCredit(node, step.spec.lane, next++);
    }
  }
  return next - first;
}

TEST(KvStreamTest, PiecesHaveTheTokensBeforeTheStepAndZeros) {
  for (const uint64_t bytes : {kLeast, 3 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.fetch_bytes = bytes});
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}}});
    // Windows are filled anew with other runs, over what was there.
    uint64_t pieces = 0;
    for (uint64_t number = 2; number <= 5; ++number) {
      const Step step = cluster.MakeStep(
          {.step = number,
           .rows = number % 2 == 0 ? std::vector<uint32_t>{1, 0, 2} : std::vector<uint32_t>{2, 0}});
      cluster.PushPlan(step);  // No window of the step has come, and none is waited for.
      pieces += ExpectPieces(cluster, step, 0, pieces + 1);
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_GE(pieces, 8u);
    cluster.Stop();
  }
}

TEST(KvStreamTest, HeadsAndRequestsAreTheNodesOwn) {
  for (const bool by_head : {true, false}) {
    UnitClusterOptions options{.memory_nodes = 2, .fetch_bytes = 2 * kLeast};
    if (by_head) {
      options.partition = Partition::kHead;
      options.heads = {1, 2};
    }
    UnitCluster cluster(options);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 100}, {1, 300}, {2, 5}}});
    const Step step = cluster.MakeStep({.step = 2, .rows = {0, 1, 2}});
    cluster.PushPlan(step);
    ExpectPieces(cluster, step, 0, 1);
    ExpectPieces(cluster, step, 1, 1);
    cluster.Stop();
  }
}

// Two windows take turns, and other lanes are served while a credit is awaited.
TEST(KvStreamTest, AThirdPieceWaitsForTheFirstOnesCredit) {
  UnitCluster cluster({.lanes = 2, .fetch_bytes = 2 * kLeast});
  cluster.Start();
  cluster.Run({.lane = 0, .step = 1, .prompts = {{0, 700}}});
  const Step step = cluster.MakeStep({.lane = 0, .step = 2, .rows = {0}});
  cluster.PushPlan(step);
  cluster.AwaitFetched(0, 0, 2);
  cluster.Run({.lane = 1, .step = 1, .prompts = {{1, 9}}});
  cluster.AwaitTurns();
  EXPECT_EQ(cluster.LastFetched(0, 0), 2u);

  EXPECT_EQ(ExpectPieces(cluster, step, 0, 1), 6u);  // Three heads in each of two layers.

  cluster.Stop();
}

}  // namespace
}  // namespace lamina::memory_node

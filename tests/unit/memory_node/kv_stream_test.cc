// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends to a compute node that attends itself: every byte of every piece, and
// when it may leave.

#include "memory_node/kv_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "kernels/attention.h"
#include "kernels/int8_arena.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"
#include "telemetry/work_meter.h"
#include "tests/unit/memory_node/fetched_pieces.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

void ExpectTokensAndZeros(uint64_t bytes, const std::string& transport) {
  UnitCluster cluster({.fetch_bytes = bytes, .transport = transport});
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

TEST(KvStreamTest, PiecesHaveTheTokensBeforeTheStepAndZeros) {
  for (const uint64_t bytes : {kLeast, 3 * kLeast, 16 * kLeast}) {
    for (const char* transport : {"fake://", "shm://"}) {
      SCOPED_TRACE(transport);
      ExpectTokensAndZeros(bytes, transport);
    }
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

// The first slots of each head are the compute node's: they are as it left them.
void LeaveFilled(const plan::FetchPiece& piece, size_t slots, size_t slot_bytes, std::byte* plane) {
  const size_t elements = piece.filled * slot_bytes / sizeof(BFloat16);
  for (uint32_t head = 0; head < piece.heads.count; ++head) {
    std::fill_n(reinterpret_cast<BFloat16*>(plane + head * slots * slot_bytes), elements, kMine);
  }
}

// What a piece of INT8 has: blocks quantised from K and V as they were sent, bf16 behind them, and
// zeros.
std::vector<std::byte> Int8PieceOf(UnitCluster& cluster, const plan::FetchPiece& piece,
                                   const Runs& runs, uint32_t layer) {
  const uint32_t head_dim = cluster.config().layers[layer].head_dim;
  const plan::FetchPlanes planes = plan::PlanesOf(piece, head_dim);
  std::vector<std::byte> wanted(planes.end);
  const size_t scale = sizeof(kernels::Int8Scale);
  LeaveFilled(piece, piece.int8_slots, head_dim, wanted.data() + planes.int8_k);
  LeaveFilled(piece, piece.int8_slots, head_dim, wanted.data() + planes.int8_v);
  LeaveFilled(piece, piece.int8_slots, scale, wanted.data() + planes.k_scales);
  LeaveFilled(piece, piece.int8_slots, scale, wanted.data() + planes.v_scales);
  size_t int8_slot = 0;
  size_t slot = 0;
  for (uint32_t head = 0; head < piece.heads.count; ++head) {
    int8_slot += piece.filled;
    for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
      const plan::FetchRun& run = runs.runs[i];
      std::vector<BFloat16> k(plan::FetchRun::WholeTiles(run.before) * head_dim);
      std::vector<BFloat16> v(k.size());
      cluster.CopyKv(runs.sequences[i], layer, piece.heads.first + head, run.before, k.data(),
                     v.data());
      const Extent closed{.first_slot = static_cast<uint32_t>(int8_slot),
                          .tokens = run.int8_slots() - run.kept};
      for (uint32_t block = run.kept; block < run.kept + run.int8_fetched();
           block += kInt8BlockTokens) {
        kernels::CloseInt8Block(
            {.query_heads = 1, .kv_heads = 1, .head_dim = head_dim}, {.k = k.data(), .v = v.data()},
            block, {&closed, 1}, block - run.kept,
            {.k = reinterpret_cast<uint8_t*>(wanted.data() + planes.int8_k),
             .v = reinterpret_cast<uint8_t*>(wanted.data() + planes.int8_v),
             .k_scales = reinterpret_cast<kernels::Int8Scale*>(wanted.data() + planes.k_scales),
             .v_scales = reinterpret_cast<kernels::Int8Scale*>(wanted.data() + planes.v_scales)});
      }
      const Extent open{.first_slot = run.kept + run.int8_fetched(), .tokens = run.tail_fetched()};
      kernels::LoadKv(head_dim, k.data(), v.data(), {&open, 1}, 0, open.tokens,
                      reinterpret_cast<BFloat16*>(wanted.data() + planes.k) + slot * head_dim,
                      reinterpret_cast<BFloat16*>(wanted.data() + planes.v) + slot * head_dim);
      int8_slot += closed.tokens;
      slot += run.tail_slots();
    }
  }
  return wanted;
}

// Nothing comes of blocks that the compute node makes from token numbers.
void ExpectInt8Pieces(uint64_t bytes, uint32_t made_tokens_max, uint32_t recomputed,
                      const std::string& transport = "fake://") {
  UnitCluster cluster({.fetch_bytes = bytes,
                       .made_tokens_max = made_tokens_max,
                       .int8_tails = 4,
                       .transport = transport});
  cluster.FillWindows(0, 0, kMine);
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 62}, {1, 700}, {2, 16}}});
  uint64_t next = 1;
  std::vector<plan::FetchPiece> pieces;
  for (uint64_t number = 2; number <= 6; ++number) {  // Sequence 0 fills its first block.
    const Step step =
        cluster.MakeStep({.step = number, .rows = {1, 0, 2}, .recomputed = recomputed});
    const Runs runs = RunsOf(step, 0, 1, cluster.config(), nullptr);
    cluster.PushPlan(step);
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      plan::PiecesOf(cluster.config().layers[layer], runs.runs,
                     plan::FetchLimitsOf(cluster.config()), pieces);
      for (const plan::FetchPiece& piece : pieces) {
        const std::vector<std::byte> wanted = Int8PieceOf(cluster, piece, runs, layer);
        cluster.AwaitPiece(0, 0, next, wanted.size());
        ExpectNothingBehind(cluster, {.piece = next}, wanted.size());
        EXPECT_EQ(std::memcmp(cluster.Fetched(0, 0, next), wanted.data(), wanted.size()), 0)
            << "step " << number << " layer " << layer << " piece " << next;
        cluster.FillFetched(0, 0, next, kMine);
        cluster.RaiseCredit(0, 0, next++);
      }
    }
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
  }
  cluster.Stop();
}

TEST(KvStreamTest, ClosedBlocksComeAsInt8AndTheOpenOneAsItIs) {
  for (const uint64_t bytes : {kLeast, 16 * kLeast}) {
    for (const char* transport : {"fake://", "shm://"}) {
      SCOPED_TRACE(transport);
      ExpectInt8Pieces(bytes, /*made_tokens_max=*/0, /*recomputed=*/0, transport);
    }
  }
}

TEST(KvStreamTest, ClosedBlocksThatAreMadeFromTokenNumbersDoNotCome) {
  for (const uint64_t bytes : {kLeast, 16 * kLeast}) {
    for (const uint32_t recomputed : {100u, 500u, plan::kRecomputeUnit}) {
      SCOPED_TRACE(recomputed);
      ExpectInt8Pieces(bytes, /*made_tokens_max=*/1024, recomputed);
    }
  }
}

// Rows that fill an open block and go on in its tail may come before it has been sent.
TEST(KvStreamTest, OpenBlocksComeAsTheStepFoundThem) {
  // A layer takes most of a window.
  UnitCluster cluster({.layers = 4, .fetch_bytes = kLeast, .int8_tails = 4});
  cluster.FillWindows(0, 0, kMine);
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 62}, {1, 190}}});
  const Step step = cluster.MakeStep({.step = 2, .rows = {0, 0, 0, 0, 1, 1, 1}});
  Runs runs;
  runs.runs = {{.before = 62, .tokens = 4}, {.before = 190, .tokens = 3}};
  runs.sequences = {0, 1};
  cluster.PushPlan(step);
  cluster.AwaitFetched(0, 0, 2);
  cluster.AwaitTurns();
  EXPECT_EQ(cluster.LastFetched(0, 0), 2u);  // The others wait for credits, and rows for nothing.
  for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
    cluster.RunUnit(step, layer);
  }
  uint64_t next = 1;
  std::vector<plan::FetchPiece> pieces;
  for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
    plan::PiecesOf(cluster.config().layers[layer], runs.runs, plan::FetchLimitsOf(cluster.config()),
                   pieces);
    ASSERT_EQ(pieces.size(), 1u);
    const std::vector<std::byte> wanted = Int8PieceOf(cluster, pieces[0], runs, layer);
    cluster.AwaitPiece(0, 0, next, wanted.size());
    EXPECT_EQ(std::memcmp(cluster.Fetched(0, 0, next), wanted.data(), wanted.size()), 0) << layer;
    cluster.RaiseCredit(0, 0, next++);
  }
  cluster.Stop();
}

// Pieces leave as long as windows have room for them, and not one of them is written over before
// its credit, which lets one more of its size out.
TEST(KvStreamTest, AsManyPiecesLeaveAsThereIsRoomFor) {
  struct Ahead {
    uint32_t tokens = 0;
    uint64_t pieces = 0;
  };
  // A layer is a piece of 9, 21 and 39 KiB, in two windows of 68 KiB: one, two and four of eight
  // parts of 17 KiB.
  for (const auto& [tokens, pieces] : {Ahead{40, 8}, Ahead{100, 4}, Ahead{200, 2}}) {
    SCOPED_TRACE(tokens);
    UnitCluster cluster({.layers = 12, .fetch_bytes = kLeast});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, tokens}}});
    const Step step = cluster.MakeStep({.step = 2, .rows = {0}});
    cluster.PushPlan(step);
    cluster.AwaitFetched(0, 0, pieces);
    cluster.AwaitTurns();
    EXPECT_EQ(cluster.LastFetched(0, 0), pieces);

    // Each of them is as it came, however long it lies there.
    EXPECT_EQ(ExpectPieces(cluster, step, 0, 1), 12u);

    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
    const Step next = cluster.MakeStep({.step = 3, .rows = {0}});
    cluster.PushPlan(next);
    cluster.AwaitFetched(0, 0, 12 + pieces);
    for (uint64_t used_up = 12; used_up < 12 + 3; ++used_up) {
      cluster.AwaitTurns();
      EXPECT_EQ(cluster.LastFetched(0, 0), used_up + pieces);
      cluster.RaiseCredit(0, 0, used_up + 1);
      cluster.AwaitFetched(0, 0, used_up + 1 + pieces);
    }
    cluster.Stop();
  }
}

// Two pieces of more than half a window take turns, and other lanes are served while a credit is
// awaited.
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

// A plan that comes during a step is begun when the step ends, not when its own first rows come.
TEST(KvStreamTest, PiecesOfTheNextStepFollowTheEndOfTheOneBefore) {
  UnitCluster cluster({.lanes = 2, .layers = 12, .fetch_bytes = 2 * kLeast});
  const uint32_t last = 11;
  cluster.Start();
  cluster.Run({.lane = 0, .step = 1, .prompts = {{0, 40}}});
  const Step others = cluster.MakeStep({.lane = 1, .step = 1, .prompts = {{1, 9}}});
  const Step step = cluster.MakeStep({.lane = 0, .step = 2, .prompts = {{0, 9}}});
  for (const Step* begun : {&others, &step}) {
    cluster.PushPlan(*begun);
    cluster.RunUnit(*begun, 0);
  }
  const Step next = cluster.MakeStep({.lane = 0, .step = 3, .rows = {0}});
  cluster.PushPlan(next);
  for (uint32_t layer = 1; layer <= last; ++layer) {
    cluster.RunUnit(step, layer);
  }
  // The node is not idle, and no step begins.
  for (uint32_t layer = 1; layer < last; ++layer) {
    cluster.RunUnit(others, layer);
  }

  EXPECT_GE(cluster.LastFetched(0, 0), 1u);

  ExpectPieces(cluster, next, 0, 1);
  cluster.Stop();
}

// Takes the pieces of a step as ExpectPieces() does, where the node has some spans of sequences.
uint64_t ExpectSpans(UnitCluster& cluster, const Step& step, uint32_t node, uint64_t first) {
  const plan::EpochConfig& config = cluster.config();
  const auto nodes = static_cast<uint32_t>(config.memory_nodes.size());
  std::vector<plan::FetchRun> runs;
  std::vector<uint32_t> sequences;
  std::vector<uint32_t> starts;
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    for (uint32_t span = 0; span * config.span_tokens <= step.positions[row]; ++span) {
      if ((step.sequences[row] + span) % nodes == node) {
        starts.push_back(span * config.span_tokens);
        sequences.push_back(step.sequences[row]);
        runs.push_back(plan::SplitBySpan(step.positions[row], 1, 0,
                                         {.first = starts.back(), .tokens = config.span_tokens})
                           .run);
      }
    }
  }
  std::vector<plan::FetchPiece> pieces;
  uint64_t next = first;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const uint32_t head_dim = config.layers[layer].head_dim;
    plan::PiecesOf(config.layers[layer], runs, plan::FetchLimitsOf(config), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      std::vector<BFloat16> wanted(2 * piece.elements(head_dim));
      size_t slot = 0;
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          const Extent part{.first_slot = starts[run], .tokens = runs[run].before};
          const uint32_t end = part.first_slot + part.tokens;
          std::vector<BFloat16> k(plan::FetchRun::WholeTiles(end) * head_dim);
          std::vector<BFloat16> v(k.size());
          cluster.CopyKv(sequences[run], layer, piece.heads.first + head, end, k.data(), v.data());
          BFloat16* const to = wanted.data() + slot * head_dim;
          kernels::LoadKv(head_dim, k.data(), v.data(), {&part, 1}, 0, part.tokens, to,
                          to + piece.elements(head_dim));
          slot += runs[run].slots();
        }
      }
      cluster.AwaitPiece(node, 0, next, wanted.size() * sizeof(BFloat16));
      EXPECT_EQ(std::memcmp(cluster.Fetched(node, 0, next), wanted.data(),
                            wanted.size() * sizeof(BFloat16)),
                0)
          << "step " << step.spec.step << " node " << node << " layer " << layer << " piece "
          << next;
      cluster.FillFetched(node, 0, next, kMine);
      cluster.RaiseCredit(node, 0, next++);
    }
  }
  return next - first;
}

// It does so for rows whose own tokens go to other nodes, too: windows of these steps are headers
// alone.
TEST(KvStreamTest, EachNodeSendsTheSpansThatItHas) {
  UnitCluster cluster({.memory_nodes = 2,
                       .partition = Partition::kTokenRange,
                       .span_tokens = 256,
                       .fetch_bytes = kLeast});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 300}, {1, 530}, {2, 5}}});
  std::vector<uint64_t> sent(2);
  for (uint64_t number = 2; number <= 6; ++number) {
    // The own tokens of sequences 0 and 1 are m1's, that of 2 is m0's.
    const Step step = cluster.MakeStep(
        {.step = number,
         .rows = number % 2 == 0 ? std::vector<uint32_t>{1, 0} : std::vector<uint32_t>{2, 1, 0}});
    cluster.PushPlan(step);
    for (uint32_t node = 0; node < 2; ++node) {
      sent[node] += ExpectSpans(cluster, step, node, sent[node] + 1);
    }
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
  }
  EXPECT_GE(sent[0], 10u);
  EXPECT_GE(sent[1], 10u);
  cluster.Stop();
}

// What a stream is measured by has no time in which it could not put.
TEST(KvStreamTest, WaitingForACreditIsNoStreaming) {
  UnitCluster cluster({.fetch_bytes = 2 * kLeast});
  cluster.Start();
  cluster.Run({.step = 1, .prompts = {{0, 700}}});
  const Step step = cluster.MakeStep({.step = 2, .rows = {0}});
  cluster.PushPlan(step);
  cluster.AwaitFetched(0, 0, 2);
  cluster.AwaitTurns();  // What was put has been counted.
  const telemetry::WorkMeter& meter = cluster.counters().meter;
  const double waited_before = meter.Seconds(telemetry::WorkKind::kWaitQuery);
  const Nanos start = RealClock().Now();
  while (RealClock().Now() - start < Millis(20)) {
    std::this_thread::yield();
  }
  const double waited = ToSeconds(RealClock().Now() - start);

  cluster.RaiseCredit(0, 0, 1);
  cluster.AwaitFetched(0, 0, 3);

  EXPECT_GE(meter.Seconds(telemetry::WorkKind::kWaitQuery) - waited_before, waited);
  cluster.Stop();
}

}  // namespace
}  // namespace lamina::memory_node

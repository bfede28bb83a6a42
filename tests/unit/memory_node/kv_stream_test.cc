// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends to a compute node that attends itself: every byte of every piece, and
// when it may leave.

#include "memory_node/kv_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "kernels/attention.h"
#include "kernels/int8_arena.h"
#include "plan/fetch_pieces.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"
#include "telemetry/work_meter.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

constexpr uint64_t kSlotBytes = 2 * 16 * 2;  // K and V of one head.
// Two windows for a lane and memory node: one head of the longest sequence fits.
constexpr uint64_t kLeast = 2 * UnitCluster::kContext * kSlotBytes;

// A step's rows whose sequences live on a node.
struct Runs {
  std::vector<plan::FetchSplit> splits;
  std::vector<plan::FetchRun> runs;  // What they fetch.
  std::vector<uint32_t> sequences;
};

// The first tokens of a sequence that have no activation, or no slot, and those whose activations
// are on the compute node.
struct FirstTokens {
  uint32_t bare = 0;
  uint32_t released = 0;
  plan::ResidentTokens resident;
};

// Kinds of slots are those of `tables`, or of the plan without them, behind the first tokens.
Runs RunsOf(const Step& step, uint32_t node, uint32_t nodes, const plan::EpochConfig& config,
            const plan::SlotTables* tables, const FirstTokens& first = {}) {
  Runs runs;
  for (size_t row = 0; row < step.plan.rows.size(); ++row) {
    if (nodes == 1 || step.sequences[row] % nodes == node) {
      const uint32_t before = step.positions[row];
      runs.splits.push_back(tables == nullptr
                                ? plan::SplitByShare(before, 1, step.plan.recomputed, first.bare,
                                                     first.released, first.resident)
                                : plan::SplitBySlots(before, 1,
                                                     *tables->Find(step.plan.rows[row].sequence),
                                                     plan::SlotKinds(config.activation_share)));
      runs.runs.push_back(runs.splits.back().run);
      runs.sequences.push_back(step.sequences[row]);
    }
  }
  return runs;
}

// The tokens of a run that come in one way, by their numbers.
std::vector<Extent> TokensOf(const plan::FetchSplit& split, bool activations) {
  std::vector<Extent> tokens;
  uint32_t first = 0;
  for (const plan::FetchStretch& stretch : split.stretches) {
    if (stretch.activations == activations && !stretch.here && !stretch.hidden) {
      tokens.push_back({.first_slot = first, .tokens = stretch.tokens});
    }
    first += stretch.tokens;
  }
  return tokens;
}

// A piece in its window.
struct Place {
  uint32_t node = 0;
  uint32_t lane = 0;
  uint64_t piece = 0;
};

void ExpectActivations(UnitCluster& cluster, const Place& at, const plan::FetchPiece& piece,
                       const Runs& runs, uint32_t layer) {
  const BFloat16* come = cluster.Fetched(at.node, at.lane, at.piece);
  for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
    for (const Extent& tokens : TokensOf(runs.splits[run], true)) {
      for (uint32_t token = 0; token < tokens.tokens; ++token) {
        for (uint32_t i = 0; i < cluster.config().activation_width; ++i) {
          ASSERT_EQ((come++)->bits, UnitCluster::Activation(runs.sequences[run],
                                                            tokens.first_slot + token, layer, i)
                                        .bits)
              << "run " << run << " token " << tokens.first_slot + token << " element " << i;
        }
      }
    }
  }
}

constexpr BFloat16 kMine = {.bits = 0xabcd};

// The first slots of each head are the compute node's to write: they are as it left them.
void ExpectBehindRecomputed(UnitCluster& cluster, const Place& at, const plan::FetchPiece& piece,
                            const Runs& runs, uint32_t layer) {
  const uint32_t head_dim = cluster.config().layers[layer].head_dim;
  const BFloat16* const come = cluster.Fetched(at.node, at.lane, at.piece);
  for (uint32_t head = 0; head < piece.heads.count; ++head) {
    const BFloat16* const slots[2] = {
        come + size_t{head} * piece.slots * head_dim,
        come + piece.elements(head_dim) + size_t{head} * piece.slots * head_dim};
    for (const BFloat16* plane : slots) {
      for (size_t i = 0; i < size_t{piece.filled} * head_dim; ++i) {
        ASSERT_EQ(plane[i].bits, kMine.bits) << "head " << head << " element " << i;
      }
    }
    size_t slot = piece.filled;
    for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
      const plan::FetchRun& tokens = runs.runs[run];
      if (tokens.slots() == 0) {
        continue;
      }
      std::vector<BFloat16> whole[2];
      std::vector<BFloat16> wanted[2];
      for (int plane = 0; plane < 2; ++plane) {
        whole[plane].resize(plan::FetchRun::WholeTiles(tokens.before + 1) * head_dim);
        wanted[plane].resize(tokens.slots() * head_dim);
      }
      cluster.CopyKv(runs.sequences[run], layer, head, tokens.before, whole[0].data(),
                     whole[1].data());
      kernels::LoadKv(head_dim, whole[0].data(), whole[1].data(), TokensOf(runs.splits[run], false),
                      0, tokens.fetched(), wanted[0].data(), wanted[1].data());
      for (int plane = 0; plane < 2; ++plane) {
        EXPECT_EQ(std::memcmp(slots[plane] + slot * head_dim, wanted[plane].data(),
                              wanted[plane].size() * sizeof(BFloat16)),
                  0)
            << "layer " << layer << " head " << head << " run " << run << " plane " << plane;
      }
      slot += tokens.slots();
    }
  }
}

// Takes the pieces of a step from `first` on, and gives each window back. A window has K and V of
// the piece's tokens and zeros: not a byte of another sequence. Returns how many pieces there were.
uint64_t ExpectPieces(UnitCluster& cluster, const Step& step, uint32_t node, uint64_t first,
                      const plan::SlotTables* tables = nullptr,
                      const FirstTokens& first_tokens = {}) {
  const plan::EpochConfig& config = cluster.config();
  const auto nodes =
      config.partition == Partition::kHead ? 1 : static_cast<uint32_t>(config.memory_nodes.size());
  const Runs runs = RunsOf(step, node, nodes, config, tables, first_tokens);
  std::vector<plan::FetchPiece> pieces;
  uint64_t next = first;
  for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
    const AttentionDescriptor part = plan::LayersOf(config, node)[layer];
    const uint32_t first_head = config.partition == Partition::kHead ? config.heads[node].first : 0;
    plan::PiecesOf(part, runs.runs, plan::FetchLimitsOf(config), pieces);
    for (const plan::FetchPiece& piece : pieces) {
      cluster.AwaitPiece(node, step.spec.lane, next,
                         plan::PieceBytes(piece, part.head_dim, config.activation_width));
      if (piece.activations()) {
        ExpectActivations(cluster, {node, step.spec.lane, next}, piece, runs, layer);
        cluster.FillFetched(node, step.spec.lane, next, kMine);
        cluster.RaiseCredit(node, step.spec.lane, next++);
        continue;
      }
      if (piece.filled > 0 || first_tokens.released > 0) {
        ExpectBehindRecomputed(cluster, {node, step.spec.lane, next}, piece, runs, layer);
        cluster.FillFetched(node, step.spec.lane, next, kMine);
        cluster.RaiseCredit(node, step.spec.lane, next++);
        continue;
      }
      std::vector<BFloat16> wanted(2 * piece.elements(part.head_dim));
      size_t slot = 0;
      for (uint32_t head = 0; head < piece.heads.count; ++head) {
        for (uint32_t run = piece.first_run; run < piece.runs_end; ++run) {
          BFloat16* const k = wanted.data() + slot * part.head_dim;
          cluster.CopyKv(runs.sequences[run], layer, first_head + piece.heads.first + head,
                         runs.runs[run].before, k, k + piece.elements(part.head_dim));
          slot += runs.runs[run].slots();
        }
      }
      EXPECT_EQ(std::memcmp(cluster.Fetched(node, step.spec.lane, next), wanted.data(),
                            wanted.size() * sizeof(BFloat16)),
                0)
          << "layer " << layer << " piece " << next;
      cluster.FillFetched(node, step.spec.lane, next, kMine);
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

// What is recomputed comes as activations and not as K and V, in windows of all sizes: in the last
// step all of it, and no tile of K and V.
TEST(KvStreamTest, RecomputedTokensComeAsActivations) {
  constexpr uint32_t kWidth = 40;
  // Windows with all heads of the longest sequence; then of several.
  for (const uint64_t bytes : {3 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.fetch_bytes = bytes, .activation_width = kWidth});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}}});
    uint64_t pieces = 0;
    for (uint64_t number = 2; number <= 5; ++number) {
      const Step step = cluster.MakeStep(
          {.step = number,
           .rows = {1, 0, 2},
           .recomputed = static_cast<uint32_t>(number) * 200 + plan::kRecomputeUnit - 1000});
      cluster.PushPlan(step);
      pieces += ExpectPieces(cluster, step, 0, pieces + 1);
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_GE(pieces, 16u);
    cluster.Stop();
  }
}

// Tokens that other paths stored come as K and V, and those behind them as activations, as far as
// there are so many.
TEST(KvStreamTest, BareTokensComeAsKAndV) {
  for (const uint32_t bare : {16u, 40u, 300u, 5000u}) {
    UnitCluster cluster({.fetch_bytes = 16 * kLeast, .activation_width = 40, .bare_tokens = bare});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}}});
    uint64_t pieces = 0;
    for (uint64_t number = 2; number <= 4; ++number) {
      const Step step = cluster.MakeStep(
          {.step = number, .rows = {1, 0, 2}, .recomputed = static_cast<uint32_t>(number) * 250});
      cluster.PushPlan(step);
      pieces += ExpectPieces(cluster, step, 0, pieces + 1, nullptr, {.bare = bare});
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    // With activations there are two pieces to a layer.
    EXPECT_EQ(pieces, (bare < 700 ? 2 : 1) * 3 * cluster.config().layers.size());
    cluster.Stop();
  }
}

// Nothing comes of them. Of those that still have slots half come as activations, or none.
TEST(KvStreamTest, ReleasedTokensDoNotCome) {
  constexpr uint32_t kReleased = 512;
  for (const uint32_t width : {0u, 40u}) {
    UnitCluster cluster({.fetch_bytes = 16 * kLeast, .activation_width = width});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{1, 700}}});
    Step step = cluster.MakeStep(
        {.step = 2, .rows = {1}, .recomputed = width > 0 ? plan::kRecomputeUnit / 2 : 0});
    step.plan.releases = {{.sequence = 2, .tokens = kReleased}};

    cluster.PushPlan(step);

    EXPECT_EQ(ExpectPieces(cluster, step, 0, 1, nullptr, {.released = kReleased}),
              (width > 0 ? 2 : 1) * cluster.config().layers.size());
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(step, layer);
    }
    cluster.Stop();
  }
}

// Nothing comes of tokens whose activations stay on the compute node, and not a byte into the slots
// in which it puts their K and V.
TEST(KvStreamTest, TokensWithActivationsThereDoNotCome) {
  using plan::ResidentTokens;
  for (const ResidentTokens& resident :
       {ResidentTokens{.first = 0, .tokens = 1000}, ResidentTokens{.first = 50, .tokens = 90},
        ResidentTokens{.first = 40, .tokens = 37}}) {
    for (const uint64_t bytes : {3 * kLeast, 16 * kLeast}) {
      UnitCluster cluster({.fetch_bytes = bytes,
                           .activation_width = 40,
                           .bare_tokens = resident.first > 0 ? 40u : 0,
                           .resident = resident});
      const uint32_t bare = resident.first > 0 ? 40 : 0;
      cluster.FillWindows(0, 0, kMine);
      cluster.Start();
      cluster.Run({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}}});
      uint64_t pieces = 0;
      for (uint64_t number = 2; number <= 5; ++number) {
        const Step step = cluster.MakeStep(
            {.step = number,
             .rows = {1, 0, 2},
             .recomputed = static_cast<uint32_t>(number) * 200 + plan::kRecomputeUnit - 1000});
        cluster.PushPlan(step);
        pieces += ExpectPieces(cluster, step, 0, pieces + 1, nullptr,
                               {.bare = bare, .resident = resident});
        for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
          cluster.RunUnit(step, layer);
        }
      }
      if (resident.tokens == 1000 && bytes > 3 * kLeast) {  // No piece of activations.
        EXPECT_EQ(pieces, 4 * cluster.config().layers.size());
      }
      cluster.Stop();
    }
  }
}

// Slots hold K and V or an activation: each token comes as what is there, however its slots lie,
// but for those whose activations are on the compute node, of which nothing comes.
TEST(KvStreamTest, TokensComeAsTheirSlotsHoldThem) {
  constexpr uint32_t kWidth = 40;
  for (const auto& [share, here] :
       {std::pair{1u, 0u}, {300u, 0u}, {700u, 0u}, {1024u, 0u}, {300u, 90u}, {1024u, 90u}}) {
    UnitCluster cluster({.fetch_bytes = 16 * kLeast,
                         .activation_width = kWidth,
                         .activation_share = share,
                         .resident = {.first = 20, .tokens = here}});
    cluster.FillWindows(0, 0, kMine);
    plan::SlotTables tables({.slots = UnitCluster::kSlots});
    cluster.Start();
    const Step prompts =
        cluster.MakeStep({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}, {3, 150}}});
    ASSERT_TRUE(tables.Apply(prompts.plan).ok());
    cluster.PushPlan(prompts);
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(prompts, layer);
    }
    uint64_t pieces = 0;
    for (uint64_t number = 2; number <= 5; ++number) {
      const Step step = cluster.MakeStep({.step = number, .rows = {1, 0, 3, 2}});
      ASSERT_TRUE(tables.Apply(step.plan).ok());
      cluster.PushPlan(step);
      pieces += ExpectPieces(cluster, step, 0, pieces + 1, &tables);
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_GE(pieces, share == 1 ? 8u : 16u);
    cluster.Stop();
  }
}

// What a piece of INT8 has: blocks quantised from K and V as they were sent, bf16 behind them, and
// zeros.
std::vector<std::byte> Int8PieceOf(UnitCluster& cluster, const plan::FetchPiece& piece,
                                   const Runs& runs, uint32_t layer) {
  const uint32_t head_dim = cluster.config().layers[layer].head_dim;
  const plan::FetchPlanes planes = plan::PlanesOf(piece, head_dim);
  std::vector<std::byte> wanted(planes.end);
  size_t int8_slot = 0;
  size_t slot = 0;
  for (uint32_t head = 0; head < piece.heads.count; ++head) {
    for (uint32_t i = piece.first_run; i < piece.runs_end; ++i) {
      const plan::FetchRun& run = runs.runs[i];
      std::vector<BFloat16> k(plan::FetchRun::WholeTiles(run.before) * head_dim);
      std::vector<BFloat16> v(k.size());
      cluster.CopyKv(runs.sequences[i], layer, piece.heads.first + head, run.before, k.data(),
                     v.data());
      const Extent closed{.first_slot = static_cast<uint32_t>(int8_slot),
                          .tokens = run.int8_slots()};
      for (uint32_t block = 0; block < run.int8_fetched(); block += kInt8BlockTokens) {
        kernels::CloseInt8Block(
            {.query_heads = 1, .kv_heads = 1, .head_dim = head_dim}, {.k = k.data(), .v = v.data()},
            block, {&closed, 1}, block,
            {.k = reinterpret_cast<uint8_t*>(wanted.data() + planes.int8_k),
             .v = reinterpret_cast<uint8_t*>(wanted.data() + planes.int8_v),
             .k_scales = reinterpret_cast<kernels::Int8Scale*>(wanted.data() + planes.k_scales),
             .v_scales = reinterpret_cast<kernels::Int8Scale*>(wanted.data() + planes.v_scales)});
      }
      const Extent open{.first_slot = run.int8_fetched(), .tokens = run.tail_fetched()};
      kernels::LoadKv(head_dim, k.data(), v.data(), {&open, 1}, 0, open.tokens,
                      reinterpret_cast<BFloat16*>(wanted.data() + planes.k) + slot * head_dim,
                      reinterpret_cast<BFloat16*>(wanted.data() + planes.v) + slot * head_dim);
      int8_slot += run.int8_slots();
      slot += run.tail_slots();
    }
  }
  return wanted;
}

TEST(KvStreamTest, ClosedBlocksComeAsInt8AndTheOpenOneAsItIs) {
  for (const uint64_t bytes : {kLeast, 16 * kLeast}) {
    UnitCluster cluster({.fetch_bytes = bytes, .int8_tails = 4});
    cluster.FillWindows(0, 0, kMine);
    cluster.Start();
    cluster.Run({.step = 1, .prompts = {{0, 62}, {1, 700}, {2, 16}}});
    uint64_t next = 1;
    std::vector<plan::FetchPiece> pieces;
    for (uint64_t number = 2; number <= 6; ++number) {  // Sequence 0 fills its first block.
      const Step step = cluster.MakeStep({.step = number, .rows = {1, 0, 2}});
      const Runs runs = RunsOf(step, 0, 1, cluster.config(), nullptr);
      cluster.PushPlan(step);
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        plan::PiecesOf(cluster.config().layers[layer], runs.runs,
                       plan::FetchLimitsOf(cluster.config()), pieces);
        for (const plan::FetchPiece& piece : pieces) {
          const std::vector<std::byte> wanted = Int8PieceOf(cluster, piece, runs, layer);
          cluster.AwaitPiece(0, 0, next, wanted.size());
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

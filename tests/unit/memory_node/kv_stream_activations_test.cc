// SPDX-License-Identifier: Apache-2.0
//
// What a memory node sends of tokens whose K and V are made again: activations in their place, or
// nothing, and not a byte of theirs.

#include <gtest/gtest.h>

#include <utility>

#include "memory_node/kv_stream.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"
#include "tests/unit/memory_node/fetched_pieces.h"
#include "tests/unit/memory_node/unit_cluster.h"

namespace lamina::memory_node {
namespace {

using Step = UnitCluster::Step;

// What is recomputed comes as activations and not as K and V, in windows of all sizes: in the last
// step all of it, and no tile of K and V.
TEST(KvStreamTest, RecomputedTokensComeAsActivations) {
  constexpr uint32_t kWidth = 40;
  // Windows with all heads of the longest sequence; then of several, which nodes write themselves.
  for (const uint64_t bytes : {3 * kLeast, 16 * kLeast}) {
    UnitCluster cluster({.fetch_bytes = bytes,
                         .activation_width = kWidth,
                         .transport = bytes == 3 * kLeast ? "fake://" : "shm://"});
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

// One node has the first of three heads and a third of each activation, the other one the rest of
// both, whether slots have both or one of them.
TEST(KvStreamTest, ActivationsAreSpreadAsHeadsAre) {
  for (const uint32_t share : {0u, 300u, 1024u}) {
    UnitCluster cluster({.memory_nodes = 2,
                         .partition = Partition::kHead,
                         .heads = {1, 2},
                         .fetch_bytes = 8 * kLeast,
                         .activation_width = 40,
                         .activation_share = share});
    plan::SlotTables tables({.slots = UnitCluster::kSlots, .holds_all = true});
    for (uint32_t node = 0; node < 2; ++node) {
      cluster.FillWindows(node, 0, kMine);
    }
    cluster.Start();
    const Step prompts =
        cluster.MakeStep({.step = 1, .prompts = {{0, 40}, {1, 700}, {2, 16}, {3, 150}}});
    ASSERT_TRUE(tables.Apply(prompts.plan).ok());
    cluster.PushPlan(prompts);
    for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
      cluster.RunUnit(prompts, layer);
    }
    uint64_t pieces[2] = {};
    for (uint64_t number = 2; number <= 4; ++number) {
      const Step step =
          cluster.MakeStep({.step = number,
                            .rows = {1, 0, 3, 2},
                            .recomputed = share > 0 ? 0 : static_cast<uint32_t>(number) * 250});
      ASSERT_TRUE(tables.Apply(step.plan).ok());
      cluster.PushPlan(step);
      for (uint32_t node = 0; node < 2; ++node) {
        pieces[node] +=
            ExpectPieces(cluster, step, node, pieces[node] + 1, share > 0 ? &tables : nullptr);
      }
      for (uint32_t layer = 0; layer < cluster.config().layers.size(); ++layer) {
        cluster.RunUnit(step, layer);
      }
    }
    EXPECT_EQ(pieces[0], pieces[1]) << "share " << share;
    EXPECT_GE(pieces[0], 2 * 3 * cluster.config().layers.size()) << "share " << share;
    cluster.Stop();
  }
}

}  // namespace
}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
//
// Tokens that stay on the compute node, against a plain list of what was stored.
#include "compute_node/resident_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "common/philox.h"
#include "kernels/k_tiles.h"
#include "tests/unit/compute_node/resident_steps.h"

namespace lamina::compute_node {
namespace {

constexpr uint32_t kTokensMax = 400;

class Resident final : public ResidentSteps {
 public:
  Resident(uint32_t lanes, uint32_t tokens)
      : ResidentSteps(lanes, &Element),
        arena_(*kernels::KvArena::Create(config().layers, tokens)),
        kv_(config(), &arena_) {}

  ResidentKv& kv() { return kv_; }

  // How many of the tokens before the sequence's run stay; each has the bits that were stored.
  uint32_t Kept(plan::SequenceId id, uint32_t before) {
    const uint32_t first = kv_.First(id, before);
    EXPECT_LE(first, before);
    std::vector<uint64_t> set(kTokensMax / 64 + 1);
    for (uint32_t token = first; token < before; ++token) {
      set[token / 64] |= uint64_t{1} << token % 64;
    }
    std::vector<Extent> slots;
    if (first < before) {
      kv_.AppendSlots(id, set, slots);
    }
    uint32_t token = first;
    for (const Extent& extent : slots) {
      for (uint32_t i = 0; i < extent.tokens; ++i) {
        ExpectToken(id, token++, extent.first_slot + i);
      }
    }
    EXPECT_EQ(token, before);
    return before - first;
  }

 private:
  RecentTokens& recent() override { return kv_; }

  static BFloat16 Element(plan::SequenceId id, uint32_t token, uint32_t layer, size_t at) {
    return {.bits = static_cast<uint16_t>(id * 7919 + token * 131 + layer * 17 + at)};
  }
  void ExpectToken(plan::SequenceId id, uint32_t token, uint32_t slot) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const kernels::KvView view = kv_.View(layer);
      for (uint32_t head = 0; head < kHeads; ++head) {
        const BFloat16* const k = view.k + head * view.head_stride;
        const BFloat16* const v = view.v + head * view.head_stride;
        for (uint32_t i = 0; i < kDim; ++i) {
          const size_t at = head * kDim + i;
          ASSERT_EQ(k[kernels::OffsetInTiles(slot, i, kDim)].bits,
                    Element(id, token, layer, kHeads * kDim + at).bits)
              << "K of sequence " << id << " token " << token;
          ASSERT_EQ(v[size_t{slot} * kDim + i].bits,
                    Element(id, token, layer, 2 * kHeads * kDim + at).bits)
              << "V of sequence " << id << " token " << token;
        }
      }
    }
  }

  kernels::KvArena arena_;
  ResidentKv kv_;
};

TEST(ResidentKvTest, AllTokensStayWhileThereIsRoom) {
  Resident resident(1, 64);
  resident.Step(0, {Tokens(1, 0, 20), Tokens(2, 0, 3)});
  EXPECT_EQ(resident.Kept(1, 0), 0u);
  resident.Run(0);
  for (uint32_t token = 0; token < 8; ++token) {
    resident.Step(0, {Tokens(1, 20 + token, 1), Tokens(2, 3 + token, 1)});
    EXPECT_EQ(resident.Kept(1, 20 + token), 20 + token);
    EXPECT_EQ(resident.Kept(2, 3 + token), 3 + token);
    resident.Run(0);
  }
}

TEST(ResidentKvTest, TheOldestOfWhoHasMostMakeRoom) {
  Resident resident(1, 64);
  resident.Step(0, {Tokens(1, 0, 64)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 64, 1), Tokens(2, 0, 33)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 65, 1), Tokens(2, 33, 1)});
  EXPECT_EQ(resident.Kept(1, 65), 17u);  // Tile 3 and the one that it began.
  EXPECT_EQ(resident.Kept(2, 33), 17u);  // The first of its three made room for the last.
}

TEST(ResidentKvTest, APromptThatIsLongerThanTheRoomKeepsItsEnd) {
  Resident resident(1, 32);
  resident.Step(0, {Tokens(1, 0, 100)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 100, 1)});
  EXPECT_EQ(resident.Kept(1, 100), 20u);  // From 80 on.
}

TEST(ResidentKvTest, WhatWasNotMadeHereIsNotHere) {
  Resident resident(1, 64);
  resident.Step(0, {Tokens(1, 37, 2)});  // Behind a prefix that was found.
  EXPECT_EQ(resident.Kept(1, 37), 0u);
  resident.Run(0);
  resident.Step(0, {Tokens(1, 39, 1)});
  EXPECT_EQ(resident.Kept(1, 39), 2u);
  resident.Run(0);
  resident.kv().Apply({.joins = {{.id = 1}}});
  resident.Step(0, {Tokens(1, 40, 1)});
  EXPECT_EQ(resident.Kept(1, 40), 0u);
}

TEST(ResidentKvTest, SequencesOfAnotherLanesStepKeepTheirs) {
  Resident resident(2, 64);
  resident.Step(0, {Tokens(1, 0, 60)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 60, 1)});  // They may be read from now on.
  resident.Step(1, {Tokens(2, 0, 40)});
  resident.Run(1);
  EXPECT_EQ(resident.Kept(1, 60), 60u);
  resident.Run(0);
  resident.Step(1, {Tokens(2, 40, 1)});
  EXPECT_EQ(resident.Kept(2, 40), 0u);
  resident.Run(1);
  // Lane 0's step has ended when its next one begins, without rows of the first sequence.
  resident.Step(0, {});
  resident.Step(1, {Tokens(2, 41, 20)});
  resident.Run(1);
  resident.Step(1, {Tokens(2, 61, 1)});
  EXPECT_EQ(resident.Kept(2, 61), 13u);  // From the first tile on that it had to begin since.
}

TEST(ResidentKvTest, ARunBehindAnotherOfItsSequenceMayStandInFront) {
  Resident resident(1, 128);
  resident.Step(0, {Tokens(1, 80, 17), Tokens(1, 0, 80)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 97, 1)});
  EXPECT_EQ(resident.Kept(1, 97), 97u);
}

TEST(ResidentKvTest, ASequenceThatHasMovedIsOfItsNewLanesStep) {
  Resident resident(2, 64);
  resident.Step(0, {Tokens(1, 0, 60)});
  resident.Run(0);
  resident.Step(1, {Tokens(1, 60, 1)});
  resident.Step(0, {Tokens(2, 0, 40)});  // Lane 0's last step had rows of the first one.
  resident.Run(0);
  EXPECT_EQ(resident.Kept(1, 60), 60u);
  resident.Run(1);
}

TEST(ResidentKvTest, WithoutAnArenaNothingStays) {
  const plan::EpochConfig config = ResidentSteps::Config(1);
  ResidentKv kv(config, nullptr);
  const std::vector<RowRun> runs = {Tokens(1, 5, 1)};
  kv.BeginStep(0, runs);
  EXPECT_EQ(kv.First(1, 5), 5u);
  kv.Store(0, 0, {});
  EXPECT_EQ(kv.tokens_max(), 0u);
}

// Any steps of any lanes: whatever is said to be here has the bits that were stored, for as long as
// the step runs, and the room is used.
TEST(ResidentKvTest, AnyHistoryKeepsTheBitsThatWereStored) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const auto lanes = static_cast<uint32_t>(1 + random() % 3);
    const auto tiles = static_cast<uint32_t>(1 + random() % 20);
    Resident resident(lanes, 16 * tiles);
    std::vector<std::map<plan::SequenceId, uint32_t>> before(lanes);  // Tokens of each sequence.
    std::vector<std::map<plan::SequenceId, uint32_t>> under_way(lanes);
    plan::SequenceId next = 1;
    uint64_t kept = 0;
    for (uint32_t step = 0; step < 300; ++step) {
      const auto lane = static_cast<uint32_t>(random() % lanes);
      const auto other = static_cast<uint32_t>(random() % lanes);
      for (const auto& [id, tokens] : under_way[lane]) {
        kept += resident.Kept(id, tokens);  // Others' steps have begun meanwhile.
      }
      if (!under_way[lane].empty()) {
        resident.Run(lane);
      }
      if (random() % 4 == 0 || before[lane].empty()) {
        before[lane][next++] = random() % 3 == 0 ? static_cast<uint32_t>(random() % 50) : 0;
      }
      // One that is in no step moves to another lane.
      if (random() % 4 == 0 && other != lane && !before[lane].empty()) {
        before[other].insert(before[lane].extract(before[lane].begin()));
      }
      if (random() % 8 == 0 && !before[lane].empty()) {
        const plan::SequenceId leaves = before[lane].begin()->first;
        before[lane].erase(leaves);
        resident.kv().Apply({.leaves = {{.id = leaves}}});
      }
      std::vector<RowRun> runs;
      under_way[lane].clear();
      for (auto& [id, tokens] : before[lane]) {
        const auto count = static_cast<uint32_t>(random() % 5 == 0 ? 1 + random() % 40 : 1);
        if (tokens + count < kTokensMax) {
          runs.push_back(Tokens(id, tokens, count));
          under_way[lane][id] = tokens;
          tokens += count;
        }
      }
      resident.Step(lane, runs);
    }
    EXPECT_GT(kept, 300u) << "nothing stays";
  }
}

}  // namespace
}  // namespace lamina::compute_node

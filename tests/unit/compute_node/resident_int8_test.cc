// SPDX-License-Identifier: Apache-2.0
//
// Tokens that stay on the compute node where K and V are INT8, against what a memory node makes of
// the same K and V.
#include "compute_node/resident_int8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "common/philox.h"
#include "kernels/attention.h"
#include "kernels/k_tiles.h"
#include "plan/token_sets.h"
#include "tests/unit/compute_node/resident_steps.h"

namespace lamina::compute_node {
namespace {

constexpr uint32_t kTokensMax = 600;
constexpr uint32_t kBlock = kInt8BlockTokens;
const AttentionDescriptor kOneHead{
    .query_heads = 1, .kv_heads = 1, .head_dim = ResidentSteps::kDim};

class Resident final : public ResidentSteps {
 public:
  Resident(uint32_t lanes, uint32_t tails, uint32_t blocks)
      : ResidentSteps(lanes, &Element),
        memory_{.tails = *kernels::KvArena::Create(config().layers, tails * kBlock),
                .blocks = *kernels::Int8Arena::Create(config().layers, blocks * kBlock)},
        kv_(config(), &memory_) {}

  ResidentInt8& kv() { return kv_; }

  // How many of the tokens before the sequence's row stay. Some of these are copied to a piece,
  // where they have the bits that memory nodes would send.
  uint32_t Kept(plan::SequenceId id, uint32_t before) {
    const uint32_t first = kv_.First(id, before);
    EXPECT_LE(first, before);
    EXPECT_TRUE(first == before || first % kBlock == 0) << first;
    std::vector<uint64_t> set(kTokensMax / 64 + 1);
    for (uint32_t token = first; token < before; ++token) {
      if ((token * 7 + id) % 4 != 0) {
        set[token / 64] |= uint64_t{1} << token % 64;
      }
    }
    for (uint32_t layer = 0; layer < kLayers && plan::CountTokens(set) > 0; ++layer) {
      ExpectFilled(id, before, layer, set);
    }
    return before - first;
  }

 private:
  RecentTokens& recent() override { return kv_; }

  static BFloat16 Element(plan::SequenceId id, uint32_t token, uint32_t layer, size_t at) {
    const auto number = static_cast<uint32_t>(id * 7919 + token * 131 + layer * 17 + at * 7);
    return ToBFloat16(static_cast<float>(number % 1000) / 100.0f - 5.0f);
  }

  // K and V of one head of a block's tokens, in slots from 0 on, and INT8 of them.
  struct Block {
    kernels::KvArena bf16 = *kernels::KvArena::Create({&kOneHead, 1}, kBlock);
    kernels::Int8Arena int8 = *kernels::Int8Arena::Create({&kOneHead, 1}, kBlock);
  };
  static Block Make(plan::SequenceId id, uint32_t block, uint32_t layer, uint32_t head) {
    Block made;
    for (uint32_t t = 0; t < kBlock; ++t) {
      for (uint32_t i = 0; i < kDim; ++i) {
        const size_t at = (kHeads + head) * kDim + i;
        made.bf16.k(0)[kernels::OffsetInTiles(t, i, kDim)] =
            Element(id, block * kBlock + t, layer, at);
        made.bf16.v(0)[size_t{t} * kDim + i] =
            Element(id, block * kBlock + t, layer, at + kHeads * kDim);
      }
    }
    const Extent all{.first_slot = 0, .tokens = kBlock};
    kernels::CloseInt8Block(kOneHead, made.bf16.View(0), 0, {&all, 1}, 0, made.int8.View(0));
    return made;
  }

  // The tokens of the set go behind some slots of others' in a piece of the second head, or both.
  void ExpectFilled(plan::SequenceId id, uint32_t before, uint32_t layer,
                    const std::vector<uint64_t>& set) {
    const plan::FetchRun row{.before = before, .tokens = 1};
    const plan::FetchRun run = plan::ChosenRun(row, std::vector<uint64_t>(set.size()),
                                               kv_.WordOf(row, set), /*int8=*/true);
    EXPECT_EQ(run.kept, plan::CountTokens(set));
    EXPECT_EQ(run.fetched(), 0u);
    const HeadRange heads =
        before % 2 == 0 ? HeadRange{.first = 1, .count = 1} : HeadRange{.first = 0, .count = 2};
    const ResidentInt8::Place at{.int8 = 32, .scales = kBlock, .open = 16};
    const plan::FetchPiece piece{.heads = {.first = 0, .count = heads.count},
                                 .slots = at.open + run.tail_slots(),
                                 .int8_slots = at.int8 + run.int8_slots(),
                                 .scale_slots = at.scales + run.scale_slots()};
    std::vector<std::byte> data(plan::PlanesOf(piece, kDim).end);
    const Int8Piece planes = Int8PieceOf(PartOf(config().layers[layer], heads), piece, data.data());
    const RowRun rows{.sequence = id, .first_token = before, .tokens = 1};
    kv_.Fill(layer, heads, {.rows = rows, .kept = set}, planes, at);
    for (uint32_t head = 0; head < heads.count; ++head) {
      ExpectHead(rows, layer, heads.first + head, set, {planes, head, at});
    }
  }
  struct Filled {
    const Int8Piece& planes;
    uint32_t head = 0;  // Among the piece's.
    ResidentInt8::Place next;
  };
  static void ExpectHead(const RowRun& rows, uint32_t layer, uint32_t head,
                         const std::vector<uint64_t>& set, Filled found) {
    const kernels::Int8View int8 = Int8HeadOf(found.planes.int8, found.head, kDim);
    const BFloat16* const k = found.planes.k + found.head * found.planes.head_stride;
    const BFloat16* const v = found.planes.v + found.head * found.planes.head_stride;
    for (uint32_t block = 0; block * kBlock < rows.first_token; ++block) {
      if (set[block] == 0) {
        continue;
      }
      Block want = Make(rows.sequence, block, layer, head);
      const kernels::Int8View wanted = want.int8.View(0);
      const bool closed = (block + 1) * kBlock <= rows.first_token;
      for (uint32_t t = 0; t < kBlock; ++t) {
        if ((set[block] >> t & 1) == 0) {
          continue;
        }
        const uint32_t slot = closed ? found.next.int8++ : found.next.open++;
        for (uint32_t i = 0; i < kDim; ++i) {
          if (closed) {
            ASSERT_EQ(int8.k[kernels::OffsetInInt8Tiles(slot, i, kDim)],
                      wanted.k[kernels::OffsetInInt8Tiles(t, i, kDim)])
                << "K of block " << block << " token " << t;
            ASSERT_EQ(int8.v[slot * kDim + i], wanted.v[t * kDim + i])
                << "V of block " << block << " token " << t;
          } else {
            ASSERT_EQ(k[kernels::OffsetInTiles(slot, i, kDim)].bits,
                      want.bf16.k(0)[kernels::OffsetInTiles(t, i, kDim)].bits)
                << "K of open token " << t;
            ASSERT_EQ(v[slot * kDim + i].bits, want.bf16.v(0)[size_t{t} * kDim + i].bits)
                << "V of open token " << t;
          }
        }
        if (closed) {
          ASSERT_EQ(
              std::memcmp(int8.v_scales + slot, wanted.v_scales + t, sizeof(kernels::Int8Scale)),
              0);
        }
      }
      if (closed) {
        ASSERT_EQ(std::memcmp(int8.k_scales + found.next.scales, wanted.k_scales,
                              kBlock * sizeof(kernels::Int8Scale)),
                  0)
            << "scales of K of block " << block;
        found.next.scales += kBlock;
      }
    }
  }

  Int8Residents memory_;
  ResidentInt8 kv_;
};

TEST(ResidentInt8Test, ClosedBlocksAndTheOpenOneStayWhileThereIsRoom) {
  Resident resident(1, 2, 8);
  resident.Step(0, {Tokens(1, 0, 150), Tokens(2, 0, 3)});
  resident.Run(0);
  for (uint32_t token = 0; token < 70; ++token) {  // Both fill a block.
    resident.Step(0, {Tokens(1, 150 + token, 1), Tokens(2, 3 + token, 1)});
    EXPECT_EQ(resident.Kept(1, 150 + token), 150 + token);
    resident.Run(0);
    EXPECT_EQ(resident.Kept(2, 3 + token), 3 + token) << "the row attends behind its own K and V";
  }
}

TEST(ResidentInt8Test, TheOldestBlocksOfWhoHasMostMakeRoom) {
  Resident resident(1, 2, 3);
  resident.Step(0, {Tokens(1, 0, 200)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 200, 1), Tokens(2, 0, 65)});
  EXPECT_EQ(resident.Kept(1, 200), 200u - 64);
  resident.Run(0);
  resident.Step(0, {Tokens(1, 201, 1), Tokens(2, 65, 1)});
  EXPECT_EQ(resident.Kept(1, 201), 201u - 64);
  EXPECT_EQ(resident.Kept(2, 65), 65u);
}

TEST(ResidentInt8Test, APromptThatIsLongerThanTheRoomKeepsItsEnd) {
  Resident resident(1, 1, 1);
  resident.Step(0, {Tokens(1, 0, 200)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 200, 1)});
  EXPECT_EQ(resident.Kept(1, 200), 72u);  // From 128 on.
}

// Scales of K are of all tokens of a block.
TEST(ResidentInt8Test, ABlockThatWasNotMadeHereAsAWholeIsNotHere) {
  Resident resident(1, 1, 4);
  resident.Step(0, {Tokens(1, 37, 2)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 39, 1)});
  EXPECT_EQ(resident.Kept(1, 39), 0u);
  resident.Run(0);
  resident.Step(0, {Tokens(1, 40, 25)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 65, 1)});
  EXPECT_EQ(resident.Kept(1, 65), 1u) << "the next one is";
  resident.Run(0);
  resident.kv().Apply({.joins = {{.id = 1}}});
  resident.Step(0, {Tokens(1, 66, 1)});
  EXPECT_EQ(resident.Kept(1, 66), 0u);
}

// Another path of the epoch, or nobody, has had rows of the sequence in between.
TEST(ResidentInt8Test, WhoHasGoneOnElsewhereBeginsAnew) {
  Resident resident(1, 1, 4);
  resident.Step(0, {Tokens(1, 0, 130)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 131, 1)});
  EXPECT_EQ(resident.Kept(1, 131), 0u);
  resident.Run(0);
  resident.Step(0, {Tokens(1, 132, 61)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 193, 1)});
  EXPECT_EQ(resident.Kept(1, 193), 1u);
}

// Their blocks close while they attend.
TEST(ResidentInt8Test, ConsecutiveRowsFindNothingAndStay) {
  Resident resident(1, 1, 4);
  resident.Step(0, {Tokens(1, 0, 100)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 100, 30)});
  EXPECT_EQ(resident.Kept(1, 100), 0u);
  resident.Run(0);
  resident.Step(0, {Tokens(1, 130, 1)});
  EXPECT_EQ(resident.Kept(1, 130), 130u);
}

TEST(ResidentInt8Test, NothingStaysOfASequenceWithoutATail) {
  Resident resident(1, 1, 4);
  resident.Step(0, {Tokens(1, 0, 10), Tokens(2, 0, 70)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 10, 1), Tokens(2, 70, 1)});
  EXPECT_EQ(resident.Kept(1, 10), 10u);
  EXPECT_EQ(resident.Kept(2, 70), 0u);
  resident.Run(0);
  resident.kv().Apply({.leaves = {{.id = 1}}});
  resident.Step(0, {Tokens(2, 71, 58)});
  resident.Run(0);
  resident.Step(0, {Tokens(2, 129, 1)});
  EXPECT_EQ(resident.Kept(2, 129), 1u) << "of the blocks that have one from their first token on";
}

TEST(ResidentInt8Test, SequencesOfAnotherLanesStepKeepTheirs) {
  Resident resident(2, 2, 2);
  resident.Step(0, {Tokens(1, 0, 130)});
  resident.Run(0);
  resident.Step(0, {Tokens(1, 130, 1)});  // They may be read from now on.
  resident.Step(1, {Tokens(2, 0, 70)});
  resident.Run(1);
  EXPECT_EQ(resident.Kept(1, 130), 130u);
  resident.Run(0);
  resident.Step(1, {Tokens(2, 70, 1)});
  EXPECT_EQ(resident.Kept(2, 70), 6u);  // Its open block.
}

TEST(ResidentInt8Test, WithoutMemoryNothingStays) {
  const plan::EpochConfig config = ResidentSteps::Config(1);
  ResidentInt8 kv(config, nullptr);
  const std::vector<RowRun> runs = {Tokens(1, 0, 70)};
  kv.BeginStep(0, runs);
  kv.Store(0, 0, {});
  EXPECT_EQ(kv.First(1, 70), 70u);
}

// Any steps of any lanes: whatever is said to be here has the bits that memory nodes would send,
// for as long as the step runs, and the room is used.
TEST(ResidentInt8Test, AnyHistoryHasTheBitsOfMemoryNodes) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Prng random(seed);
    const auto lanes = static_cast<uint32_t>(1 + random() % 3);
    const auto tails = static_cast<uint32_t>(2 + random() % 5);
    Resident resident(lanes, tails, static_cast<uint32_t>(1 + random() % 9));
    std::vector<std::map<plan::SequenceId, uint32_t>> before(lanes);  // Tokens of each sequence.
    std::vector<std::map<plan::SequenceId, uint32_t>> under_way(lanes);
    plan::SequenceId next = 1;
    uint64_t kept = 0;
    for (uint32_t step = 0; step < 300; ++step) {
      const auto lane = static_cast<uint32_t>(random() % lanes);
      const auto other = static_cast<uint32_t>(random() % lanes);
      if (!under_way[lane].empty()) {
        resident.Run(lane);
      }
      for (const auto& [id, tokens] : under_way[lane]) {
        kept += resident.Kept(id, tokens);  // Others' steps have begun meanwhile.
      }
      if (random() % 8 == 0 || before[lane].empty()) {
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
        const auto count = static_cast<uint32_t>(random() % 5 == 0 ? 1 + random() % 100 : 1);
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

// SPDX-License-Identifier: Apache-2.0
#include "plan/fetch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "plan/slot_kinds.h"

namespace lamina::plan {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SlotKindsTest, WithoutAShareEverySlotHasKAndV) {
  const SlotKinds kinds;
  EXPECT_FALSE(kinds.HoldsActivation(0));
  EXPECT_EQ(kinds.IndexOf(1000), 1000u);
  EXPECT_EQ(kinds.ActivationsOf(1000), 0u);
  EXPECT_EQ(kinds.KvOf(1000), 1000u);
}

TEST(SlotKindsTest, HalfOfTheBlocksTakeTurns) {
  const SlotKinds kinds(SlotKinds::kUnit / 2);
  EXPECT_FALSE(kinds.HoldsActivation(15));
  EXPECT_TRUE(kinds.HoldsActivation(16));
  EXPECT_TRUE(kinds.HoldsActivation(31));
  EXPECT_FALSE(kinds.HoldsActivation(32));
  EXPECT_EQ(kinds.IndexOf(34), 18u);
  EXPECT_EQ(kinds.IndexOf(50), 18u);
  EXPECT_EQ(kinds.ActivationsOf(22), 6u);
}

// Others have K and V alone, and no activations.
TEST(SlotKindsTest, KAndVLieBehindThoseOfOthers) {
  const SlotKinds half(SlotKinds::kUnit / 2, /*others=*/96);
  EXPECT_EQ(half.IndexOf(3), 96u + 3);
  EXPECT_EQ(half.IndexOf(18), 2u);
  EXPECT_EQ(half.IndexOf(34), 96u + 18);
  EXPECT_EQ(half.KvOf(64), 32u);
  EXPECT_EQ(SlotKinds(0, 96).IndexOf(34), 96u + 34);
}

// Every slot has a place of its own among those of its kind, without gaps.
TEST(SlotKindsTest, SlotsOfAKindAreNumberedInOrder) {
  for (const uint32_t share : {0u, 1u, 100u, 333u, 512u, 700u, 1023u, 1024u}) {
    const SlotKinds kinds(share);
    uint32_t of_kind[2] = {0, 0};
    for (uint32_t slot = 0; slot < SlotKinds::kBlockSlots * 1100; ++slot) {
      const bool activation = kinds.HoldsActivation(slot);
      ASSERT_EQ(kinds.IndexOf(slot), of_kind[activation]) << "share " << share << " slot " << slot;
      ++of_kind[activation];
      if (slot % 37 == 0) {
        ASSERT_EQ(kinds.ActivationsOf(slot + 1), of_kind[1]);
        ASSERT_EQ(kinds.KvOf(slot + 1), of_kind[0]);
      }
    }
    EXPECT_EQ(of_kind[1] / SlotKinds::kBlockSlots, 1100 * share / SlotKinds::kUnit);
  }
}

// Slots that follow each other have the share, up to a block: what HybridServe asks of a request.
TEST(SlotKindsTest, RunsOfSlotsHaveTheShareUpToABlock) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Prng random(seed);
    const SlotKinds kinds(static_cast<uint32_t>(random() % (SlotKinds::kUnit + 1)));
    const auto first = static_cast<uint32_t>(random() % 100'000);
    const auto tokens = static_cast<uint32_t>(1 + random() % 5000);
    const double activations = kinds.ActivationsOf(first + tokens) - kinds.ActivationsOf(first);
    const double wanted = tokens * (kinds.share() / static_cast<double>(SlotKinds::kUnit));
    EXPECT_LE(std::abs(activations - wanted), 2 * SlotKinds::kBlockSlots) << "seed " << seed;
  }
}

// Extents begin with a tile where there is room (core/kv_directory.h).
TEST(SlotKindsTest, RequestsOfTwoTilesHaveBothKinds) {
  const SlotKinds kinds(SlotKinds::kUnit / 2);
  for (uint32_t first = 0; first < 1000; first += kFetchTile) {
    EXPECT_EQ(kinds.ActivationsOf(first + 2 * kFetchTile) - kinds.ActivationsOf(first), kFetchTile)
        << "first slot " << first;
  }
}

TEST(FetchSplitTest, AShareOfTheTokensComesAsActivationsInWholeTiles) {
  EXPECT_EQ(SplitByShare(100, 1, 0).run.recomputed, 0u);
  const FetchSplit half = SplitByShare(100, 1, kRecomputeUnit / 2);
  EXPECT_EQ(half.run.recomputed, 48u);
  EXPECT_EQ(half.run.slots(), 64u);
  EXPECT_THAT(half.stretches, ElementsAre(FetchStretch{.tokens = 48, .activations = true},
                                          FetchStretch{.tokens = 52}));
  EXPECT_EQ(SplitByShare(UINT32_MAX - 16, 1, kRecomputeUnit - 1).run.recomputed % 16, 0u);
  EXPECT_THAT(SplitByShare(0, 1, 512).stretches, IsEmpty());
  const FetchSlots slots = SlotsOf(half, std::vector<Extent>{{5, 40}, {100, 100}}, SlotKinds());
  EXPECT_THAT(slots.activations, ElementsAre(Extent{5, 40}, Extent{100, 8}));
  EXPECT_THAT(slots.kv, ElementsAre(Extent{108, 52}));
}

// Nothing comes as K and V: own tokens lie behind those that are made again.
TEST(FetchSplitTest, AllTokensComeAsActivationsWithoutATileOfKAndV) {
  for (const uint32_t before : {1u, 40u, 47u, 48u, 96u, 1001u}) {
    for (const uint32_t tokens : {1u, 3u, 40u}) {
      const FetchSplit all = SplitByShare(before, tokens, kRecomputeUnit);
      EXPECT_THAT(all.stretches, ElementsAre(FetchStretch{.tokens = before, .activations = true}));
      EXPECT_EQ(all.run.recomputed, before);
      EXPECT_EQ(all.run.slots(), 0u);
      EXPECT_EQ(all.run.filled_slots(), FetchRun::WholeTiles(before + tokens));
    }
  }
  EXPECT_EQ(SplitByShare(UINT32_MAX - 16, 1, kRecomputeUnit).run.recomputed, UINT32_MAX - 16);
  EXPECT_THAT(SplitByShare(0, 1, kRecomputeUnit).stretches, IsEmpty());
  EXPECT_EQ(SplitByShare(0, 1, kRecomputeUnit).run.slots(), 16u);
  // With a bare token the others are cut, since two kinds may take a tile more than the sequence.
  EXPECT_EQ(SplitByShare(40, 1, kRecomputeUnit, 1).run.recomputed, 32u);
}

// Nothing comes of tokens whose activations stay, and they are the first ones to be made again.
TEST(FetchSplitTest, TokensWithActivationsHereDoNotCome) {
  const ResidentTokens resident{.first = 40, .tokens = 70};
  const FetchSplit half = SplitByShare(200, 1, kRecomputeUnit / 2, 16, 0, resident);
  EXPECT_THAT(
      half.stretches,
      ElementsAre(FetchStretch{.tokens = 16}, FetchStretch{.tokens = 24, .activations = true},
                  FetchStretch{.tokens = 64, .activations = true, .here = true},
                  FetchStretch{.tokens = 6}, FetchStretch{.tokens = 8, .activations = true},
                  FetchStretch{.tokens = 82}));
  EXPECT_EQ(half.run.remade, 64u);
  EXPECT_EQ(half.run.recomputed, 32u);
  EXPECT_EQ(half.run.fetched(), 104u);
  EXPECT_EQ(half.run.filled_slots(), 96u);
  const FetchSlots slots = SlotsOf(half, std::vector<Extent>{{5, 50}, {100, 160}}, SlotKinds());
  EXPECT_THAT(slots.activations, ElementsAre(Extent{21, 24}, Extent{160, 8}));
  EXPECT_THAT(slots.kv, ElementsAre(Extent{5, 16}, Extent{154, 6}, Extent{168, 82}));

  // Fewer than stay: the first ones of these alone.
  EXPECT_THAT(SplitByShare(200, 1, kRecomputeUnit / 4, 16, 0, resident).stretches,
              ElementsAre(FetchStretch{.tokens = 40},
                          FetchStretch{.tokens = 48, .activations = true, .here = true},
                          FetchStretch{.tokens = 112}));
  // All of them, cut nowhere.
  const FetchSplit all = SplitByShare(41, 3, kRecomputeUnit, 0, 0, {.first = 3, .tokens = 5});
  EXPECT_THAT(all.stretches,
              ElementsAre(FetchStretch{.tokens = 3, .activations = true},
                          FetchStretch{.tokens = 5, .activations = true, .here = true},
                          FetchStretch{.tokens = 33, .activations = true}));
  EXPECT_EQ(all.run.slots(), 0u);
  EXPECT_EQ(all.run.filled_slots(), 48u);
}

TEST(FetchSplitTest, WhateverStaysTheTokensAreCoveredAndWindowsAreAsLarge) {
  Prng random(/*seed=*/7);
  const auto below = [&random](uint32_t end) { return static_cast<uint32_t>(random.Below(end)); };
  for (int round = 0; round < 2000; ++round) {
    const uint32_t before = below(200);
    const uint32_t share = below(5) == 0 ? kRecomputeUnit : below(kRecomputeUnit + 1);
    const uint32_t bare = below(2) * below(250);
    const ResidentTokens resident{.first = bare + below(100), .tokens = below(200)};
    const FetchSplit split = SplitByShare(before, 2, share, bare, 0, resident);
    uint32_t token = 0;
    uint32_t made = 0;
    for (const FetchStretch& stretch : split.stretches) {
      const uint32_t end = token + stretch.tokens;
      EXPECT_TRUE(!stretch.activations || token >= bare);
      EXPECT_TRUE(!stretch.here || (stretch.activations && token >= resident.first &&
                                    end <= resident.first + resident.tokens));
      made += stretch.activations ? stretch.tokens : 0;
      token = end;
    }
    EXPECT_EQ(token, before);
    EXPECT_EQ(made, split.run.made());
    EXPECT_LE(made, before * share / kRecomputeUnit);
    if (share < kRecomputeUnit) {
      EXPECT_GT(made + 2 * kFetchTile,
                std::min(before * share / kRecomputeUnit, before - std::min(before, bare)));
    }
    EXPECT_EQ(split.run.filled_slots() + split.run.slots(), FetchRun::WholeTiles(before + 2));
  }
}

TEST(FetchSplitTest, BareTokensComeAsKAndVAndThoseBehindThemAsActivations) {
  const FetchSplit half = SplitByShare(200, 1, kRecomputeUnit / 2, 32);
  EXPECT_THAT(half.stretches, ElementsAre(FetchStretch{.tokens = 32},
                                          FetchStretch{.tokens = 96, .activations = true},
                                          FetchStretch{.tokens = 72}));
  EXPECT_EQ(half.run.recomputed, 96u);
  // As many as the share says, as far as there are so many.
  EXPECT_EQ(SplitByShare(200, 1, kRecomputeUnit / 2, 150).run.recomputed, 48u);
  EXPECT_EQ(SplitByShare(200, 1, kRecomputeUnit, 37).run.recomputed, 160u);
  for (const uint32_t bare : {190u, 200u, 1000u}) {
    EXPECT_THAT(SplitByShare(200, 1, kRecomputeUnit, bare).stretches,
                ElementsAre(FetchStretch{.tokens = 200}));
  }
  const FetchSlots slots = SlotsOf(half, std::vector<Extent>{{5, 40}, {100, 160}}, SlotKinds());
  EXPECT_THAT(slots.kv, ElementsAre(Extent{5, 32}, Extent{188, 72}));
  EXPECT_THAT(slots.activations, ElementsAre(Extent{37, 8}, Extent{100, 88}));
}

// All layers have windows, shorter than the context: of what they have left behind nothing comes
// and nothing is made again, and the share is that of the others.
TEST(FetchSplitTest, ReleasedTokensDoNotComeAndAreNeitherCountedNorMadeAgain) {
  const FetchSplit half = SplitByShare(1000, 1, kRecomputeUnit / 2, 0, 768);
  EXPECT_THAT(half.stretches, ElementsAre(FetchStretch{.tokens = 768, .hidden = true},
                                          FetchStretch{.tokens = 112, .activations = true},
                                          FetchStretch{.tokens = 120}));
  EXPECT_EQ(half.run.recomputed, 112u);
  EXPECT_EQ(half.run.fetched(), 120u);
  EXPECT_EQ(half.run.slots(), 128u);
  const FetchSlots slots =
      SlotsOf(half, std::vector<Extent>{{0, 768}, {400, 32}, {5000, 300}}, SlotKinds());
  EXPECT_THAT(slots.kv, ElementsAre(Extent{5080, 120}));
  EXPECT_THAT(slots.activations, ElementsAre(Extent{400, 32}, Extent{5000, 80}));

  EXPECT_EQ(SplitByShare(1000, 1, kRecomputeUnit, 0, 768).run.recomputed, 224u);
  for (const uint32_t released : {1000u, 1024u}) {
    EXPECT_THAT(SplitByShare(1000, 1, kRecomputeUnit, 0, released).stretches,
                ElementsAre(FetchStretch{.tokens = 1000, .hidden = true}));
  }
}

// Nothing comes of them: the compute node puts K and V of whole tiles in front of those that do.
TEST(FetchSplitTest, TokensThatAreMadeFromTheirNumbersDoNotCome) {
  const FetchSplit half = SplitByTokens(100, 1, kRecomputeUnit / 2, 0);
  EXPECT_THAT(half.stretches,
              ElementsAre(FetchStretch{.tokens = 48, .here = true}, FetchStretch{.tokens = 52}));
  EXPECT_EQ(half.run.kept, 48u);
  EXPECT_EQ(half.run.made(), 0u);
  EXPECT_EQ(half.run.fetched(), 52u);
  EXPECT_EQ(half.run.filled_slots(), 48u);
  const FetchSlots slots = SlotsOf(half, std::vector<Extent>{{5, 40}, {100, 100}}, SlotKinds());
  EXPECT_THAT(slots.activations, IsEmpty());
  EXPECT_THAT(slots.kv, ElementsAre(Extent{108, 52}));
  for (uint32_t before = 0; before < 200; ++before) {
    for (const uint32_t share : {0u, 1u, 133u, 512u, 1000u, kRecomputeUnit}) {
      const FetchSplit split = SplitByTokens(before, 3, share, 0);
      EXPECT_EQ(split.run.kept, before * share / kRecomputeUnit / kFetchTile * kFetchTile);
      EXPECT_EQ(split.run.kept, MadeFromTokens(before, share, 0));
      EXPECT_EQ(split.run.kept + split.run.fetched(), before);
      // A window has room for all that it has to have room for without.
      EXPECT_EQ(split.run.filled_slots() + split.run.slots(), FetchRun::WholeTiles(before + 3));
    }
  }
  EXPECT_EQ(MadeFromTokens(UINT32_MAX, kRecomputeUnit, 0), UINT32_MAX / kFetchTile * kFetchTile);
}

// Where K and V are INT8 whole closed blocks are made.
TEST(FetchSplitTest, Int8IsMadeInWholeBlocks) {
  const FetchSplit half = SplitByTokens(300, 1, kRecomputeUnit / 2, 0, KvForm::kInt8);
  EXPECT_THAT(half.stretches,
              ElementsAre(FetchStretch{.tokens = 128, .here = true}, FetchStretch{.tokens = 172}));
  for (uint32_t before = 0; before < 400; ++before) {
    for (const uint32_t share : {0u, 1u, 133u, 512u, 1000u, kRecomputeUnit}) {
      const FetchRun run = SplitByTokens(before, 3, share, 0, KvForm::kInt8).run;
      EXPECT_EQ(run.kept, MadeFromTokens(before, share, 0, KvForm::kInt8));
      EXPECT_EQ(run.kept, before * share / kRecomputeUnit / kInt8BlockTokens * kInt8BlockTokens);
      EXPECT_EQ(run.kept + run.int8_fetched() + run.tail_fetched(), before);
      EXPECT_EQ(run.filled_slots(), run.kept);
    }
  }
  // Released tokens have slots in pieces, and none behind them are made.
  const FetchSplit released = SplitByTokens(1000, 1, kRecomputeUnit, 256, KvForm::kInt8);
  EXPECT_THAT(released.stretches, ElementsAre(FetchStretch{.tokens = 1000}));
}

// Those behind released tokens cannot be made without these.
TEST(FetchSplitTest, BehindReleasedTokensNoneAreMadeFromTheirNumbers) {
  const FetchSplit split = SplitByTokens(1000, 1, kRecomputeUnit, 256);
  EXPECT_THAT(split.stretches, ElementsAre(FetchStretch{.tokens = 256, .hidden = true},
                                           FetchStretch{.tokens = 744}));
  EXPECT_EQ(split.run.kept, 0u);
  EXPECT_EQ(split.run.hidden, 256u);
}

TEST(FetchSplitTest, BareTokensBehindReleasedOnesComeAsKAndV) {
  EXPECT_THAT(
      SplitByShare(1000, 1, kRecomputeUnit / 2, 800, 768).stretches,
      ElementsAre(FetchStretch{.tokens = 768, .hidden = true}, FetchStretch{.tokens = 32},
                  FetchStretch{.tokens = 112, .activations = true}, FetchStretch{.tokens = 88}));
  // Those that are released themselves change nothing.
  EXPECT_EQ(SplitByShare(1000, 1, kRecomputeUnit / 2, 300, 768).stretches,
            SplitByShare(1000, 1, kRecomputeUnit / 2, 0, 768).stretches);
}

// Nothing is released where a layer has no window, however short the windows of the others are.
TEST(FetchSplitTest, WithoutReleasedTokensTheShareIsThatOfAll) {
  for (const uint32_t before : {0u, 15u, 40u, 1000u}) {
    for (const uint32_t share : {0u, 100u, kRecomputeUnit / 2, kRecomputeUnit}) {
      const FetchSplit split = SplitByShare(before, 1, share, 0, 0);
      EXPECT_EQ(split.run.recomputed,
                share == kRecomputeUnit ? before : before * share / kRecomputeUnit / 16 * 16);
    }
  }
}

// A run of 4 rows over the border of the second and the third span of 256 tokens.
TEST(FetchSplitTest, OfASpanAreTheTokensThatLieInIt) {
  const auto split = [](uint32_t released, uint32_t span) {
    return SplitBySpan(510, 4, released, {.first = span * 256, .tokens = 256});
  };
  EXPECT_THAT(split(0, 0).stretches, ElementsAre(FetchStretch{.tokens = 256}));
  EXPECT_EQ(split(0, 0).run.tokens, 0u);
  EXPECT_EQ(split(0, 0).run.slots(), 256u);
  EXPECT_EQ(split(0, 1).run.before, 254u);
  EXPECT_EQ(split(0, 1).run.tokens, 2u);
  EXPECT_EQ(split(0, 1).run.slots(), 256u);
  EXPECT_THAT(split(0, 2).stretches, IsEmpty());
  EXPECT_EQ(split(0, 2).run.tokens, 2u);
  EXPECT_EQ(split(0, 2).run.slots(), 16u);
  EXPECT_EQ(split(0, 3).run.slots(), 0u);

  EXPECT_EQ(split(300, 0).run.slots(), 0u);
  EXPECT_THAT(split(300, 0).stretches, ElementsAre(FetchStretch{.tokens = 256, .hidden = true}));
  EXPECT_EQ(split(300, 1).run.hidden, 44u);
  EXPECT_EQ(split(300, 1).run.fetched(), 210u);
  EXPECT_THAT(SlotsOf(split(300, 1), std::vector<Extent>{{0, 44}, {900, 212}}, SlotKinds()).kv,
              ElementsAre(Extent{900, 210}));
}

// What comes is spread over the spans, as much of each as there is; what stays is used wherever it
// lies, and tokens that are made from their numbers are the first ones of the run.
TEST(FetchSplitTest, OfASpanTheRunsShareIsMadeAgain) {
  const TokenSpan first{.first = 0, .tokens = 256};
  const TokenSpan second{.first = 256, .tokens = 256};
  for (const TokenSpan& span : {first, second}) {
    const FetchSplit half = SplitBySpan(512, 1, 0, span, kRecomputeUnit / 2);
    EXPECT_THAT(half.stretches, ElementsAre(FetchStretch{.tokens = 128, .activations = true},
                                            FetchStretch{.tokens = 128}));
    EXPECT_EQ(half.run.recomputed, 128u);
  }
  // The run makes 256: 96 have their activations here, in both spans; 160 of the other 416 come.
  const ResidentTokens resident{.first = 192, .tokens = 96};
  EXPECT_THAT(
      SplitBySpan(512, 1, 0, first, kRecomputeUnit / 2, 0, resident).stretches,
      ElementsAre(FetchStretch{.tokens = 64, .activations = true}, FetchStretch{.tokens = 128},
                  FetchStretch{.tokens = 64, .activations = true, .here = true}));
  EXPECT_THAT(
      SplitBySpan(512, 1, 0, second, kRecomputeUnit / 2, 0, resident).stretches,
      ElementsAre(FetchStretch{.tokens = 32, .activations = true, .here = true},
                  FetchStretch{.tokens = 96, .activations = true}, FetchStretch{.tokens = 128}));
  // All of a span's are not cut to tiles.
  const FetchSplit all = SplitBySpan(290, 3, 0, second, kRecomputeUnit);
  EXPECT_THAT(all.stretches, ElementsAre(FetchStretch{.tokens = 34, .activations = true}));
  EXPECT_EQ(all.run.tokens, 3u);
  EXPECT_EQ(all.run.slots(), 0u);
  EXPECT_EQ(all.run.filled_slots(), 48u);

  EXPECT_THAT(SplitTokensBySpan(400, 1, 800, 0, first).stretches,
              ElementsAre(FetchStretch{.tokens = 256, .here = true}));
  EXPECT_THAT(SplitTokensBySpan(400, 1, 800, 0, second).stretches,
              ElementsAre(FetchStretch{.tokens = 48, .here = true}, FetchStretch{.tokens = 96}));
  EXPECT_EQ(SplitTokensBySpan(400, 1, 800, 0, second).run.kept, 48u);
  EXPECT_EQ(SplitTokensBySpan(400, 1, 800, 256, first).run.hidden, 256u);
  EXPECT_EQ(SplitTokensBySpan(400, 1, 800, 256, second).run.kept, 0u);
}

// From a token on they are kept, in whichever spans they lie.
TEST(FetchSplitTest, OfASpanWhatIsKeptDoesNotCome) {
  const TokenSpan first{.first = 0, .tokens = 256};
  const TokenSpan second{.first = 256, .tokens = 256};
  EXPECT_THAT(SplitKeptBySpan(300, 2, 250, first).stretches,
              ElementsAre(FetchStretch{.tokens = 250}, FetchStretch{.tokens = 6, .here = true}));
  const FetchSplit behind = SplitKeptBySpan(300, 2, 250, second);
  EXPECT_THAT(behind.stretches, ElementsAre(FetchStretch{.tokens = 44, .here = true}));
  EXPECT_EQ(behind.run.before, 44u);
  EXPECT_EQ(behind.run.kept, 44u);
  EXPECT_EQ(behind.run.slots(), 16u);
  EXPECT_EQ(behind.run.filled_slots(), 48u);
  // None is, or there is none; own tokens of a run are of both spans.
  const FetchSplit none = SplitKeptBySpan(254, 4, 254, first);
  EXPECT_THAT(none.stretches, ElementsAre(FetchStretch{.tokens = 254}));
  EXPECT_EQ(none.run.fetched(), 254u);
  EXPECT_EQ(none.run.tokens, 2u);
  EXPECT_THAT(SplitKeptBySpan(254, 4, 254, second).stretches, IsEmpty());
  EXPECT_EQ(SplitKeptBySpan(254, 4, 254, second).run.tokens, 2u);
}

// All spans together have about as many whole tiles as the run, and each has room in a window of a
// span.
TEST(FetchSplitTest, SpansTogetherMakeWhatTheRunMakes) {
  constexpr uint32_t kSpan = 64;
  constexpr uint32_t kOwn = 3;
  Prng random(/*seed=*/11);
  const auto below = [&random](uint32_t end) { return static_cast<uint32_t>(random.Below(end)); };
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    const uint32_t before = below(500);
    const uint32_t share = below(5) == 0 ? kRecomputeUnit : below(kRecomputeUnit + 1);
    const uint32_t released = below(3) == 0 ? below(500) / 16 * 16 : 0;
    const uint32_t bare = below(2) * below(300);
    const ResidentTokens resident{.first = below(300), .tokens = below(2) * below(300)};
    const uint32_t hidden = std::min(released, before);
    const uint32_t wanted = (before - hidden) * share / kRecomputeUnit;
    uint32_t token = 0;
    uint32_t own = 0;
    uint32_t made = 0;
    uint32_t seen = 0;
    for (uint32_t start = 0; start < before + kOwn; start += kSpan) {
      const FetchSplit split =
          SplitBySpan(before, kOwn, released, {start, kSpan}, share, bare, resident);
      ASSERT_EQ(token, std::min(start, before));
      for (const FetchStretch& stretch : split.stretches) {
        const uint32_t end = token + stretch.tokens;
        ASSERT_EQ(stretch.hidden, token < hidden);
        ASSERT_TRUE(!stretch.activations || token >= std::max(hidden, std::min(bare, before)));
        ASSERT_TRUE(!stretch.here || (stretch.activations && token >= resident.first &&
                                      end <= resident.first + resident.tokens));
        token = end;
      }
      own += split.run.tokens;
      made += split.run.made();
      seen += split.run.before;
      ASSERT_LE(split.run.filled_slots() + split.run.slots(), kSpan);
    }
    EXPECT_EQ(token, before);
    EXPECT_EQ(own, kOwn);
    EXPECT_EQ(seen, before);
    EXPECT_LE(made, wanted);
    if (bare == 0 && released == 0 && resident.tokens == 0) {
      // The last span may have no whole tile.
      EXPECT_GE(made + kFetchTile, wanted / kFetchTile * kFetchTile);
      EXPECT_EQ(made == before, wanted == before);
    }
  }
}

TEST(FetchSplitTest, SlotsSayWhatTheyHold) {
  const SlotKinds kinds(SlotKinds::kUnit / 2);
  const SlotTables::Sequence sequence{.extents = {{60, 10}, {200, 60}}, .tokens = 70};
  const FetchSplit split = SplitBySlots(69, 1, sequence, kinds);
  EXPECT_THAT(
      split.stretches,
      ElementsAre(FetchStretch{.tokens = 4, .activations = true}, FetchStretch{.tokens = 14},
                  FetchStretch{.tokens = 16, .activations = true}, FetchStretch{.tokens = 16},
                  FetchStretch{.tokens = 16, .activations = true}, FetchStretch{.tokens = 3}));
  EXPECT_EQ(split.run.recomputed, 36u);
  // Blocks of one kind lie next to each other among their like.
  const FetchSlots slots = SlotsOf(split, sequence.extents, kinds);
  EXPECT_THAT(slots.kv, ElementsAre(Extent{32, 6}, Extent{104, 27}));
  EXPECT_THAT(slots.activations, ElementsAre(Extent{28, 4}, Extent{96, 32}));
}

// Nothing comes of those whose activations stay; a place for a token of K and V is not read.
TEST(FetchSplitTest, ActivationsOfSlotsThatAreHereDoNotCome) {
  const SlotKinds kinds(SlotKinds::kUnit / 2);
  SlotTables::Sequence sequence{.extents = {{60, 10}, {200, 60}}, .tokens = 70};
  sequence.resident = {.first = 2, .tokens = 20};
  const FetchSplit split = SplitBySlots(69, 1, sequence, kinds);
  EXPECT_THAT(
      split.stretches,
      ElementsAre(FetchStretch{.tokens = 2, .activations = true},
                  FetchStretch{.tokens = 2, .activations = true, .here = true},
                  FetchStretch{.tokens = 14},
                  FetchStretch{.tokens = 4, .activations = true, .here = true},
                  FetchStretch{.tokens = 12, .activations = true}, FetchStretch{.tokens = 16},
                  FetchStretch{.tokens = 16, .activations = true}, FetchStretch{.tokens = 3}));
  EXPECT_EQ(split.run.recomputed, 30u);
  EXPECT_EQ(split.run.remade, 6u);
  EXPECT_EQ(split.run.fetched(), 33u);
  const FetchSlots slots = SlotsOf(split, sequence.extents, kinds);
  EXPECT_THAT(slots.kv, ElementsAre(Extent{32, 6}, Extent{104, 27}));
  EXPECT_THAT(slots.activations, ElementsAre(Extent{28, 2}, Extent{100, 28}));
  // All activations stay on the compute node.
  sequence.resident = {.first = 0, .tokens = UINT32_MAX};
  EXPECT_EQ(SplitBySlots(69, 1, sequence, kinds).run.recomputed, 0u);
  EXPECT_EQ(SplitBySlots(69, 1, sequence, kinds).run.remade, 36u);
}

// Tokens that have given up their slots are sent neither as K and V nor as activations.
TEST(FetchSplitTest, TokensWithoutSlotsDoNotCome) {
  const SlotKinds kinds(SlotKinds::kUnit);
  // The second extent touches what stands for the released tokens.
  const SlotTables::Sequence sequence{.extents = {{0, 300}}, .tokens = 300, .released = 256};
  EXPECT_THAT(SplitBySlots(290, 1, sequence, kinds).stretches,
              ElementsAre(FetchStretch{.tokens = 256, .hidden = true},
                          FetchStretch{.tokens = 34, .activations = true}));
  SlotTables::Sequence stays = sequence;
  stays.resident = {.first = 100, .tokens = 170};
  EXPECT_THAT(SplitBySlots(290, 1, stays, kinds).stretches,
              ElementsAre(FetchStretch{.tokens = 256, .hidden = true},
                          FetchStretch{.tokens = 14, .activations = true, .here = true},
                          FetchStretch{.tokens = 20, .activations = true}));
}

// Token by token over random sequences: what it comes as, and from where, or that it is here.
TEST(FetchSplitTest, AnySequenceIsSplitAsItsSlotsSay) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Prng random(seed);
    const SlotKinds kinds(static_cast<uint32_t>(random() % (SlotKinds::kUnit + 1)));
    SlotTables::Sequence sequence;
    std::vector<uint32_t> slots;
    for (uint32_t next = 0; slots.size() < 400;) {
      next += static_cast<uint32_t>(random() % 3);
      const Extent extent{.first_slot = next, .tokens = static_cast<uint32_t>(1 + random() % 90)};
      sequence.extents.push_back(extent);
      for (uint32_t i = 0; i < extent.tokens; ++i) {
        slots.push_back(next++);
      }
    }
    sequence.tokens = static_cast<uint32_t>(slots.size());
    sequence.resident = {.first = static_cast<uint32_t>(random() % 300),
                         .tokens = static_cast<uint32_t>(random() % 2 * (random() % 300))};
    const uint32_t kept_end = sequence.resident.first + sequence.resident.tokens;
    const auto before = static_cast<uint32_t>(random() % (slots.size() + 1));
    const FetchSplit split = SplitBySlots(before, 1, sequence, kinds);
    const FetchSlots where = SlotsOf(split, sequence.extents, kinds);
    std::vector<uint32_t> of_kind[2];
    for (const auto& [list, activations] : {std::pair{where.kv, 0}, {where.activations, 1}}) {
      for (const Extent& extent : list) {
        for (uint32_t i = 0; i < extent.tokens; ++i) {
          of_kind[activations].push_back(extent.first_slot + i);
        }
      }
    }
    size_t seen[2] = {0, 0};
    uint32_t here = 0;
    uint32_t token = 0;
    for (const FetchStretch& stretch : split.stretches) {
      for (uint32_t i = 0; i < stretch.tokens; ++i, ++token) {
        ASSERT_EQ(kinds.HoldsActivation(slots[token]), stretch.activations) << "seed " << seed;
        const bool stays = token >= sequence.resident.first && token < kept_end;
        ASSERT_EQ(stretch.here, stretch.activations && stays) << "seed " << seed;
        if (stretch.here) {
          ++here;
          continue;
        }
        ASSERT_EQ(of_kind[stretch.activations].at(seen[stretch.activations]++),
                  kinds.IndexOf(slots[token]))
            << "seed " << seed << " token " << token;
      }
    }
    EXPECT_EQ(token, before);
    EXPECT_EQ(split.run.recomputed, seen[1]);
    EXPECT_EQ(split.run.remade, here);
  }
}

// Each span as if it were a sequence of its own, wherever its slots lie.
TEST(FetchSplitTest, SpansAreSplitAsTheirSlotsSay) {
  constexpr uint32_t kSpan = 64;
  constexpr uint32_t kTokens = 4 * kSpan;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Prng random(seed);
    const auto below = [&random](uint32_t end) { return static_cast<uint32_t>(random.Below(end)); };
    const SlotKinds kinds(below(SlotKinds::kUnit + 1));
    const uint32_t before = below(kTokens);
    SlotTables::Sequence cut{.tokens = kTokens};
    cut.released = std::min(below(3) * 16, before);
    cut.resident = {.first = below(200), .tokens = below(2) * below(200)};
    SlotTables::Sequence whole = cut;
    for (uint32_t index = 0; index < 4; ++index) {
      const Extent extent{.first_slot = below(5000), .tokens = kSpan};
      cut.spans.push_back({.index = index, .extents = {extent}, .tokens = kSpan});
      whole.extents.push_back(extent);
    }
    std::vector<FetchStretch> tokens;  // One for each.
    for (const SlotTables::Span& span : cut.spans) {
      const FetchSplit split = SplitSlotsBySpan(
          before, 1, cut, kinds, {.first = span.index * kSpan, .tokens = kSpan}, span.extents);
      EXPECT_EQ(split.run.tokens, before / kSpan == span.index ? 1u : 0u);
      for (FetchStretch stretch : split.stretches) {
        const uint32_t count = std::exchange(stretch.tokens, 1u);
        tokens.insert(tokens.end(), count, stretch);
      }
    }
    std::vector<FetchStretch> wanted;
    for (FetchStretch stretch : SplitBySlots(before, 1, whole, kinds).stretches) {
      const uint32_t count = std::exchange(stretch.tokens, 1u);
      wanted.insert(wanted.end(), count, stretch);
    }
    EXPECT_EQ(tokens, wanted) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lamina::plan

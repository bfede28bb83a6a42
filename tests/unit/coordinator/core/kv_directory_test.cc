// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/kv_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "common/philox.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;

KvDirectoryOptions Options(uint32_t slots) {
  return {.slots = {slots}, .soft_reservation_min = 64, .soft_reservation_max = 256};
}

// How many tokens of sequences 1 to `sequences` have slots that have their place in a tile.
uint32_t TokensInPlace(const KvDirectory& kv, plan::SequenceId sequences) {
  constexpr uint32_t kTile = 16;
  uint32_t in_place = 0;
  for (plan::SequenceId id = 1; id <= sequences; ++id) {
    uint32_t token = 0;
    for (const Extent& extent : kv.ExtentsOf(id)) {
      in_place += extent.first_slot % kTile == token % kTile ? extent.tokens : 0;
      token += extent.tokens;
    }
  }
  return in_place;
}

TEST(KvDirectoryTest, TokensOfASequenceAreConsecutive) {
  KvDirectory kv(Options(1024));
  kv.Open(1, 0);

  EXPECT_THAT(*kv.Append(1, 100), ElementsAre(Extent{0, 100}));
  EXPECT_THAT(*kv.Append(1, 1), ElementsAre(Extent{100, 1}));

  EXPECT_THAT(kv.ExtentsOf(1), ElementsAre(Extent{0, 101}));
  EXPECT_EQ(kv.TokensOf(1), 101u);
}

TEST(KvDirectoryTest, SoftReservationKeepsOthersFromTheTail) {
  KvDirectory kv(Options(4096));
  kv.Open(1, 0);
  kv.Open(2, 0);
  ASSERT_TRUE(kv.Append(1, 100).ok());
  EXPECT_GE(kv.Stats(0).slots_reserved, 64u);

  ASSERT_TRUE(kv.Append(2, 100).ok());
  ASSERT_TRUE(kv.Append(1, 200).ok());

  EXPECT_EQ(kv.ExtentsOf(1).size(), 1u);
  EXPECT_EQ(kv.ExtentsOf(2)[0].first_slot % 16, 0u);
}

TEST(KvDirectoryTest, ReservedSlotsCountAsFree) {
  KvDirectory kv(Options(1024));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 24).ok());

  EXPECT_EQ(kv.SlotsFree(0), 1000u);
}

TEST(KvDirectoryTest, ReservationsAreRevokedOnlyWhenNoUnreservedSlotIsLeft) {
  KvDirectory kv(Options(512));
  kv.Open(1, 0);
  kv.Open(2, 0);
  ASSERT_TRUE(kv.Append(1, 100).ok());
  const uint32_t unreserved = kv.SlotsFree(0) - kv.Stats(0).slots_reserved;

  ASSERT_TRUE(kv.Append(2, unreserved).ok());
  EXPECT_EQ(kv.ReservationsRevoked(), 0u);
  ASSERT_TRUE(kv.Append(2, 1).ok());

  EXPECT_EQ(kv.ReservationsRevoked(), 1u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, TheLargestReservationIsRevokedFirstThenTheOldest) {
  KvDirectoryOptions options{
      .slots = {40}, .soft_reservation_min = 1, .soft_reservation_max = 8, .alignment = 1};
  KvDirectory kv(options);
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    kv.Open(id, 0);
    ASSERT_TRUE(kv.Append(id, 2).ok());  // Each with 8 behind it: the pool is divided up.
  }
  ASSERT_TRUE(kv.Append(1, 1).ok());  // 7 behind the first.
  kv.Open(5, 0);

  // Behind the second's two and the three that it keeps.
  EXPECT_THAT(*kv.Append(5, 1), ElementsAre(Extent{15, 1}));
}

TEST(KvDirectoryTest, WhoeverLosesAReservationKeepsHalfOfItAtItsTail) {
  KvDirectory kv(Options(512));
  kv.Open(1, 0);
  kv.Open(2, 0);
  ASSERT_TRUE(kv.Append(1, 100).ok());
  const uint32_t unreserved = kv.SlotsFree(0) - kv.Stats(0).slots_reserved;
  ASSERT_TRUE(kv.Append(2, unreserved).ok());

  EXPECT_THAT(*kv.Append(2, 1), ElementsAre(Extent{240, 1}));

  EXPECT_THAT(*kv.Append(1, 140), ElementsAre(Extent{100, 140}));
  EXPECT_THAT(*kv.Append(1, 1), ElementsAre(Extent{304, 1})) << "half of what the second got";
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, RowsThatFillThePoolGetLongExtentsAndWholeTiles) {
  constexpr uint32_t kRows = 10;
  KvDirectory kv(Options(7281));
  std::vector<OpenSpan*> rows;
  for (plan::SequenceId id = 1; id <= kRows; ++id) {
    rows.push_back(kv.Open(id, 0));
    ASSERT_TRUE(kv.Append(id, 600).ok());
  }
  for (uint32_t row = 0; kv.SlotsFree(0) > 0; row = (row + 1) % kRows) {
    ASSERT_TRUE(kv.AppendOne(*rows[row]).has_value());
  }

  EXPECT_GE(kv.Stats(0).mean_extent_tokens, 128.0);
  EXPECT_GE(TokensInPlace(kv, kRows), 7281u * 95 / 100);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, ALongRequestTakesAWholeReservation) {
  KvDirectory kv(Options(512));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 16).ok());  // 256 are reserved behind it.
  kv.Open(2, 0);

  ASSERT_TRUE(kv.Append(2, 496).ok());

  EXPECT_THAT(kv.ExtentsOf(2), ElementsAre(Extent{272, 240}, Extent{16, 256}));
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, AReservationCountsWithWhatIsLeftOfIt) {
  KvDirectory kv(Options(512));
  OpenSpan* first = kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 16).ok());  // 256 are reserved behind it.
  kv.Open(2, 0);
  ASSERT_TRUE(kv.Append(2, 16).ok());  // And 224.
  for (uint32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(kv.AppendOne(*first), 16 + i);
  }
  kv.Open(3, 0);
  ASSERT_TRUE(kv.Append(3, 1).ok());

  EXPECT_EQ(kv.ReservationsRevoked(), 1u);
  EXPECT_GE(kv.ExtentsOf(3)[0].first_slot, 288u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, AppendOneFindsNoSlotWhereNoneIsFree) {
  KvDirectory kv(Options(2));
  OpenSpan* span = kv.Open(1, 0);
  EXPECT_EQ(kv.AppendOne(*span), 0u);
  EXPECT_EQ(kv.AppendOne(*span), 1u);
  EXPECT_EQ(kv.AppendOne(*span), std::nullopt);
  EXPECT_EQ(kv.TokensOf(1), 2u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, AppendFailsWithResourceExhaustedAndChangesNothing) {
  KvDirectory kv(Options(128));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 100).ok());

  const auto refused = kv.Append(1, 29);

  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.status().message(), testing::HasSubstr("29 slots asked for, 28 free"));
  EXPECT_EQ(kv.TokensOf(1), 100u);
  EXPECT_TRUE(kv.Append(1, 28).ok());
  EXPECT_EQ(kv.SlotsFree(0), 0u);
}

TEST(KvDirectoryTest, ForksShareThePrefixAndDivergeIntoSlotsOfTheirOwn) {
  KvDirectory kv(Options(4096));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 50).ok());
  const uint32_t free_before = kv.SlotsFree(0);

  EXPECT_THAT(kv.Fork(1, 2, 50), ElementsAre(Extent{0, 50}));
  EXPECT_EQ(kv.SlotsFree(0), free_before);
  const auto parent = kv.Append(1, 1);
  const auto child = kv.Append(2, 1);

  EXPECT_NE(parent->front(), child->front());
  EXPECT_EQ(child->front().first_slot % 16, 50u % 16) << "the rest of it would not lie in tiles";
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, SharedSlotsAreFreedByTheLastHolder) {
  KvDirectory kv(Options(4096));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 50).ok());
  kv.Fork(1, 2, 30);

  kv.Release(1, 7);
  EXPECT_EQ(kv.SlotsQuarantined(0), 20u);
  kv.Release(2, 8);
  EXPECT_EQ(kv.SlotsQuarantined(0), 50u);
  kv.Recycle(7);
  kv.Recycle(8);

  EXPECT_EQ(kv.SlotsFree(0), 4096u);
  EXPECT_EQ(kv.Stats(0).slots_held, 0u);
}

// Tickets of lanes come back in any order, and the first holder's nodes may still use the slots.
TEST(KvDirectoryTest, SharedSlotsAreNotFreeBeforeTheTicketsOfAllHoldersAreRecycled) {
  KvDirectory kv(Options(4096));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 50).ok());
  kv.Fork(1, 2, 30);
  ASSERT_TRUE(kv.Append(2, 5).ok());

  kv.Release(1, 7);
  kv.Release(2, 8);
  kv.Recycle(8);
  EXPECT_EQ(kv.SlotsFree(0), 4096u - 50u);
  EXPECT_EQ(kv.SlotsQuarantined(0), 50u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Recycle(7);

  EXPECT_EQ(kv.SlotsFree(0), 4096u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, ReleasedSlotsAreNotFreeBeforeTheirTicketIsRecycled) {
  KvDirectory kv(Options(100));
  kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 60).ok());

  kv.Release(1, 3);
  EXPECT_EQ(kv.SlotsFree(0), 40u);
  kv.Recycle(4);
  EXPECT_EQ(kv.SlotsFree(0), 40u);
  kv.Recycle(3);

  EXPECT_EQ(kv.SlotsFree(0), 100u);
  EXPECT_FALSE(kv.IsOpen(1));
}

TEST(KvDirectoryTest, LastReleasedSlotsAreUsedFirst) {
  KvDirectory kv(Options(8192));
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    kv.Open(id, 0);
    ASSERT_TRUE(kv.Append(id, 512).ok());
  }
  const Extent middle = kv.ExtentsOf(2)[0];

  kv.Release(2, 1);
  kv.Recycle(1);
  kv.Open(4, 0);

  EXPECT_EQ(kv.Append(4, 100)->front().first_slot, middle.first_slot);
}

TEST(KvDirectoryTest, MeanExtentStaysLongUnderChurnOfGrowingSequences) {
  KvDirectory kv(Options(64 * 1024));
  Prng random(1);
  plan::SequenceId next = 1;
  std::vector<plan::SequenceId> open;
  for (int step = 0; step < 20'000; ++step) {
    if (open.size() < 64) {
      open.push_back(next);
      kv.Open(next++, 0);
      ASSERT_TRUE(kv.Append(open.back(), 1 + static_cast<uint32_t>(random.Below(400))).ok());
    }
    for (const plan::SequenceId id : open) {
      ASSERT_TRUE(kv.Append(id, 1).ok());
    }
    const size_t leaver = random.Below(open.size());
    if (kv.TokensOf(open[leaver]) > 100 && random.Chance(0.2)) {
      kv.Release(open[leaver], step);
      kv.Recycle(step);
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(leaver));
    }
  }

  EXPECT_GE(kv.Stats(0).mean_extent_tokens, 128.0);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, KeptSlotsOutliveWhoGotThemAndAreFreeAtOnce) {
  KvDirectory kv(Options(1024));
  OpenSpan* const maker = kv.Open(1, 0);
  ASSERT_TRUE(kv.Append(1, 100).ok());
  std::vector<OpenSpan*> kept(2);
  kv.Keep(*maker, 0, 16, absl::MakeSpan(kept));
  OpenSpan* const first = kept[0];
  OpenSpan* const second = kept[1];
  EXPECT_EQ(kv.SpansKept(), 2u);
  EXPECT_THAT(KvDirectory::ExtentsOf(*second), ElementsAre(Extent{16, 16}));
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();

  kv.Release(1, 1);
  EXPECT_EQ(kv.SlotsQuarantined(0), 68u);
  kv.ReleaseKept(second);
  EXPECT_EQ(kv.SlotsQuarantined(0), 84u) << "its maker's ticket is out";
  kv.Recycle(1);
  EXPECT_EQ(kv.SlotsFree(0), 1008u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();

  OpenSpan* const found = kv.Open(2, 0);
  EXPECT_THAT(kv.Share(*first, 0, 16, *found), ElementsAre(Extent{0, 16}));
  EXPECT_EQ(kv.TokensOf(2), 16u);
  kv.ReleaseKept(first);
  EXPECT_EQ(kv.SlotsFree(0), 1008u);
  EXPECT_EQ(kv.SpansKept(), 0u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.Release(2, 2);
  kv.Recycle(2);
  EXPECT_EQ(kv.SlotsFree(0), 1024u);
}

TEST(KvDirectoryTest, ClaimedSlotsAreTakenFromTheFreeOrShared) {
  KvDirectory kv(Options(256));
  OpenSpan* const first = kv.ClaimKept(0, {{32, 16}});
  OpenSpan* const both = kv.ClaimKept(0, {{40, 16}, {0, 8}});
  EXPECT_EQ(kv.SlotsFree(0), 256u - 32u);
  EXPECT_EQ(KvDirectory::TokensOf(*both), 24u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
  kv.ReleaseKept(first);
  EXPECT_EQ(kv.SlotsFree(0), 256u - 24u);
  kv.ReleaseKept(both);
  EXPECT_EQ(kv.SlotsFree(0), 256u);
  EXPECT_TRUE(kv.Audit().ok()) << kv.Audit();
}

TEST(KvDirectoryTest, RandomCallsKeepEveryInvariant) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    KvDirectory kv({.slots = {1 + static_cast<uint32_t>(random.Below(300)), 97},
                    .soft_reservation_min = static_cast<uint32_t>(random.Below(5)),
                    .soft_reservation_max = 5 + static_cast<uint32_t>(random.Below(20)),
                    .alignment = 1 + static_cast<uint32_t>(random.Below(16))});
    std::vector<plan::SequenceId> open;
    std::vector<OpenSpan*> kept;
    plan::SequenceId next = 1;
    for (uint64_t step = 1; step <= 200; ++step) {
      const uint64_t choice = random.Below(12);
      const size_t pick = open.empty() ? 0 : random.Below(open.size());
      if (choice < 2 || open.empty()) {
        kv.Open(next, static_cast<uint32_t>(random.Below(2)));
        open.push_back(next++);
      } else if (choice < 7) {
        const auto tokens = static_cast<uint32_t>(random.Below(random.Chance(0.5) ? 2 : 60));
        const uint32_t free = kv.SlotsFree(kv.NodeOf(open[pick]));
        EXPECT_EQ(kv.Append(open[pick], tokens).ok(), tokens <= free);
      } else if (choice == 7) {
        kv.Fork(open[pick], next, static_cast<uint32_t>(random.Below(kv.TokensOf(open[pick]) + 1)));
        open.push_back(next++);
      } else if (choice == 8 && kv.TokensOf(open[pick]) > 0) {
        const auto first = static_cast<uint32_t>(random.Below(kv.TokensOf(open[pick])));
        const uint32_t rest = kv.TokensOf(open[pick]) - first;
        const uint32_t tokens = std::min(1 + static_cast<uint32_t>(random.Below(16)), rest);
        std::vector<OpenSpan*> made(1 + random.Below(rest / tokens));
        kv.Keep(*kv.Get(open[pick]), first, tokens, absl::MakeSpan(made));
        for (const OpenSpan* span : made) {
          EXPECT_EQ(KvDirectory::TokensOf(*span), tokens);
        }
        kept.insert(kept.end(), made.begin(), made.end());
      } else if (choice == 9 && !kept.empty()) {
        const size_t drop = random.Below(kept.size());
        kv.ReleaseKept(kept[drop]);
        kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(drop));
      } else {
        kv.Release(open[pick], step / 7);
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
      }
      if (random.Chance(0.3)) {
        kv.Recycle(random.Below(step / 7 + 1));
      }
      ASSERT_TRUE(kv.Audit().ok()) << "seed " << seed << " step " << step << ": " << kv.Audit();
    }
  }
}

TEST(KvDirectoryTest, MillionsOfSlotsCostNothing) {
  KvDirectory kv(Options(500'000'000));
  for (plan::SequenceId id = 1; id <= 100; ++id) {
    kv.Open(id, 0);
    ASSERT_TRUE(kv.Append(id, 4'000'000).ok());
    kv.Fork(id, 1000 + id, 3'000'000);
  }
  for (plan::SequenceId id = 1; id <= 100; ++id) {
    kv.Release(id, id);
    kv.Release(1000 + id, id);
    kv.Recycle(id);
  }
  EXPECT_EQ(kv.SlotsFree(0), 500'000'000u);
}

}  // namespace
}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/slot_references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "common/philox.h"

namespace lamina::core {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SlotReferencesTest, SlotsHeldOnceAreReleasedAtOnce) {
  SlotReferences references;
  std::vector<Extent> released;

  references.Drop({5, 10}, released);

  EXPECT_THAT(released, ElementsAre(Extent{5, 10}));
}

TEST(SlotReferencesTest, SharedSlotsAreReleasedByTheLastHolder) {
  SlotReferences references;
  references.Add({0, 10});
  references.Add({0, 4});
  EXPECT_EQ(references.CountAt(3), 3u);
  EXPECT_EQ(references.CountAt(4), 2u);
  EXPECT_EQ(references.CountAt(10), 1u);

  std::vector<Extent> released;
  references.Drop({0, 10}, released);
  EXPECT_THAT(released, IsEmpty());
  references.Drop({0, 10}, released);
  EXPECT_THAT(released, ElementsAre(Extent{4, 6}));
  references.Drop({0, 4}, released);
  EXPECT_THAT(released, ElementsAre(Extent{4, 6}, Extent{0, 4}));
}

TEST(SlotReferencesTest, AHolderOfMoreThanTheSharedPartReleasesTheRest) {
  SlotReferences references;
  references.Add({8, 8});

  std::vector<Extent> released;
  references.Drop({0, 32}, released);

  EXPECT_THAT(released, ElementsAre(Extent{0, 8}, Extent{16, 16}));
}

TEST(SlotReferencesTest, SlotsAddedOneBehindTheOtherAreDroppedTogetherOrApart) {
  SlotReferences references;
  for (uint32_t block = 0; block < 4; ++block) {
    references.Add({16 * block, 16});
  }

  std::vector<Extent> released;
  references.Drop({16, 16}, released);
  EXPECT_THAT(released, IsEmpty());
  EXPECT_EQ(references.CountAt(15), 2u);
  EXPECT_EQ(references.CountAt(16), 1u);
  EXPECT_EQ(references.CountAt(31), 1u);
  EXPECT_EQ(references.CountAt(32), 2u);
  references.Drop({0, 64}, released);
  EXPECT_THAT(released, ElementsAre(Extent{16, 16}));
  references.Drop({32, 32}, released);
  EXPECT_THAT(released, ElementsAre(Extent{16, 16}, Extent{32, 32}));
}

// Against a count for each slot.
TEST(SlotReferencesTest, RandomCallsCountAsSlotBySlot) {
  constexpr uint32_t kSlots = 48;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng random(seed);
    SlotReferences references;
    std::vector<uint32_t> counts(kSlots);
    std::vector<Extent> held;
    for (int step = 0; step < 100; ++step) {
      if (held.empty() || random.Chance(0.6)) {
        const auto first = static_cast<uint32_t>(random.Below(kSlots));
        const Extent extent{first, 1 + static_cast<uint32_t>(random.Below(kSlots - first))};
        held.push_back(extent);
        for (uint32_t slot = first; slot < first + extent.tokens;) {
          // What nobody holds is not added.
          const uint32_t begin = slot;
          const bool is_held = counts[slot] > 0;
          while (slot < first + extent.tokens && (counts[slot] > 0) == is_held) {
            ++counts[slot++];
          }
          if (is_held) {
            references.Add({begin, slot - begin});
          }
        }
      } else {
        const size_t pick = random.Below(held.size());
        const Extent extent = held[pick];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
        std::vector<Extent> expected;
        for (uint32_t slot = extent.first_slot; slot < extent.first_slot + extent.tokens; ++slot) {
          if (--counts[slot] > 0) {
            continue;
          }
          if (!expected.empty() && expected.back().first_slot + expected.back().tokens == slot) {
            ++expected.back().tokens;
          } else {
            expected.push_back({slot, 1});
          }
        }
        std::vector<Extent> released;
        references.Drop(extent, released);
        ASSERT_EQ(released, expected) << "seed " << seed << " step " << step;
      }
      for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if (counts[slot] > 0) {
          ASSERT_EQ(references.CountAt(slot), counts[slot]) << "seed " << seed << " slot " << slot;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lamina::core

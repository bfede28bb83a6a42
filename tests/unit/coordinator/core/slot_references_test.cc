// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/slot_references.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lamina::core

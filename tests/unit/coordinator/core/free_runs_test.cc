// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/free_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "common/philox.h"

namespace lamina::core {
namespace {

TEST(FreeRunsTest, NeighboursCoalesceOnBothSides) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 10});

  runs.Add({10, 10});

  ASSERT_EQ(runs.runs().size(), 1u);
  EXPECT_EQ(runs.Longest(), (Extent{0, 30}));
}

TEST(FreeRunsTest, LastFreedComesFirstAmongThoseThatFit) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 5});
  runs.Add({40, 2});

  EXPECT_EQ(runs.LastFreed(1), (Extent{40, 2}));
  EXPECT_EQ(runs.LastFreed(3), (Extent{20, 5}));
  EXPECT_EQ(runs.LastFreed(11), std::nullopt);
}

TEST(FreeRunsTest, WhatIsLeftOfARunKeepsItsAge) {
  FreeRuns runs;
  runs.Add({0, 10});
  runs.Add({20, 10});

  runs.Remove({20, 4});

  EXPECT_EQ(runs.LastFreed(1), (Extent{24, 6}));
}

TEST(FreeRunsTest, RemovingTheMiddleLeavesBothEnds) {
  FreeRuns runs;
  runs.Add({0, 30});

  runs.Remove({10, 10});

  EXPECT_EQ(runs.StartingAt(0), (Extent{0, 10}));
  EXPECT_EQ(runs.StartingAt(20), (Extent{20, 10}));
  EXPECT_EQ(runs.LastFreed(1), (Extent{20, 10}));
}

TEST(FreeRunsTest, LongestNearPrefersLengthThenTheLowerAddress) {
  FreeRuns runs;
  runs.Add({0, 4});
  runs.Add({10, 8});
  runs.Add({30, 8});

  EXPECT_EQ(runs.LongestNear(25, 1), (Extent{10, 8}));
  EXPECT_EQ(runs.LongestNear(25, 9), std::nullopt);
}

TEST(FreeRunsTest, FromTheFrontIsTakenWhatIsThere) {
  FreeRuns runs;
  runs.Add({10, 10});
  runs.Add({30, 12});

  EXPECT_EQ(runs.TakeFrom(9, 1), 0u);
  EXPECT_EQ(runs.TakeFrom(11, 1), 0u);
  EXPECT_EQ(runs.TakeFrom(30, 5), 5u);
  EXPECT_EQ(runs.Longest(), (Extent{10, 10}));
  EXPECT_EQ(runs.TakeFrom(35, 99), 7u);
  EXPECT_EQ(runs.TakeFrom(10, 1), 1u);
  EXPECT_EQ(runs.Longest(), (Extent{11, 9}));
  EXPECT_EQ(runs.runs().size(), 1u);
}

// What the three orders have to say, of a plain list of runs.
class PlainRuns {
 public:
  void Add(Extent extent) {
    std::erase_if(runs_, [&](const Plain& run) {
      const bool before = run.first + run.tokens == extent.first_slot;
      const bool behind = extent.first_slot + extent.tokens == run.first;
      extent.first_slot = before ? run.first : extent.first_slot;
      extent.tokens += before || behind ? run.tokens : 0;
      return before || behind;
    });
    runs_.push_back({extent.first_slot, extent.tokens, ++last_});
  }
  void Remove(Extent extent) {
    const auto run = std::find_if(runs_.begin(), runs_.end(), [&](const Plain& one) {
      return one.first <= extent.first_slot && extent.first_slot < one.first + one.tokens;
    });
    const Plain from = *run;
    runs_.erase(run);
    const uint32_t end = extent.first_slot + extent.tokens;
    const bool both = from.first < extent.first_slot && end < from.first + from.tokens;
    if (end < from.first + from.tokens) {
      runs_.push_back({end, from.first + from.tokens - end, from.freed});
    }
    if (from.first < extent.first_slot) {
      runs_.push_back({from.first, extent.first_slot - from.first, both ? --oldest_ : from.freed});
    }
  }
  std::optional<Extent> StartingAt(uint32_t slot) const {
    return Best([&](const Plain& run) { return run.first == slot; },
                [](const Plain&, const Plain&) { return false; });
  }
  std::optional<Extent> Longest() const {
    return Best([](const Plain&) { return true; },
                [](const Plain& a, const Plain& b) {
                  return std::pair(a.tokens, a.first) > std::pair(b.tokens, b.first);
                });
  }
  // What FreeRuns chooses while it looks at all runs.
  std::optional<Extent> LongestNear(uint32_t least) const {
    return Best([&](const Plain& run) { return run.tokens >= least; },
                [](const Plain& a, const Plain& b) {
                  return a.tokens != b.tokens ? a.tokens > b.tokens : a.first < b.first;
                });
  }
  std::optional<Extent> LastFreed(uint32_t least) const {
    return Best([&](const Plain& run) { return run.tokens >= least; },
                [](const Plain& a, const Plain& b) { return a.freed > b.freed; });
  }
  bool Has(uint32_t slot) const {
    return std::any_of(runs_.begin(), runs_.end(), [&](const Plain& run) {
      return run.first <= slot && slot < run.first + run.tokens;
    });
  }
  size_t size() const { return runs_.size(); }

 private:
  struct Plain {
    uint32_t first = 0;
    uint32_t tokens = 0;
    int64_t freed = 0;
  };
  template <typename Which, typename Better>
  std::optional<Extent> Best(const Which& which, const Better& better) const {
    const Plain* best = nullptr;
    for (const Plain& run : runs_) {
      best = which(run) && (best == nullptr || better(run, *best)) ? &run : best;
    }
    return best == nullptr ? std::nullopt : std::optional(Extent{best->first, best->tokens});
  }

  std::vector<Plain> runs_;
  int64_t last_ = 0;
  int64_t oldest_ = 0;
};

TEST(FreeRunsTest, RandomCallsAnswerAsAPlainListDoes) {
  constexpr uint32_t kSlots = 24;  // At most 12 runs; those looked at are 8 on either side.
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Prng random(seed);
    FreeRuns runs;
    PlainRuns plain;
    for (int step = 0; step < 200; ++step) {
      const auto slot = static_cast<uint32_t>(random.Below(kSlots));
      const bool free = plain.Has(slot);
      uint32_t end = slot + 1;  // As far as slots are alike.
      while (end < kSlots && plain.Has(end) == free) {
        ++end;
      }
      const uint32_t tokens = 1 + static_cast<uint32_t>(random.Below(end - slot));
      if (!free) {
        runs.Add({slot, tokens});
        plain.Add({slot, tokens});
      } else if (plain.StartingAt(slot).has_value()) {
        ASSERT_EQ(runs.TakeFrom(slot, tokens), tokens);
        plain.Remove({slot, tokens});
      } else {
        ASSERT_EQ(runs.TakeFrom(slot, tokens), 0u);
        runs.Remove({slot, tokens});
        plain.Remove({slot, tokens});
      }
      ASSERT_EQ(runs.runs().size(), plain.size());
      if (random.Chance(0.5)) {
        ASSERT_EQ(runs.Longest(), plain.Longest()) << "seed " << seed << " step " << step;
      }
      const auto least = static_cast<uint32_t>(random.Below(6));
      if (plain.size() <= 8) {
        ASSERT_EQ(runs.LastFreed(least), plain.LastFreed(least));
        ASSERT_EQ(runs.LongestNear(slot, least), plain.LongestNear(least));
      }
      ASSERT_EQ(runs.StartingAt(slot), plain.StartingAt(slot));
    }
  }
}

TEST(FreeRunsTest, EmptyHasNoRun) {
  FreeRuns runs;
  EXPECT_TRUE(runs.empty());
  EXPECT_EQ(runs.Longest(), std::nullopt);
  EXPECT_EQ(runs.LastFreed(0), std::nullopt);
  EXPECT_EQ(runs.StartingAt(0), std::nullopt);
}

}  // namespace
}  // namespace lamina::core

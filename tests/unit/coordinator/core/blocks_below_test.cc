// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/blocks_below.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/cached_block.h"

namespace lamina::core {
namespace {

// Against an ordered map, with few different tokens, so that many blocks differ in the last alone.
TEST(BlocksBelowTest, EachIsFoundByItsTokensWhateverOthersCameAndWent) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    BlocksBelow below;
    std::map<std::vector<TokenId>, std::unique_ptr<CachedBlock>> expected;
    for (int step = 0; step < 200; ++step) {
      std::vector<TokenId> tokens(3);
      for (TokenId& token : tokens) {
        token = static_cast<TokenId>(random.Below(3)) - 1;
      }
      const auto there = expected.find(tokens);
      ASSERT_EQ(below.Find(tokens), there == expected.end() ? nullptr : there->second.get());
      if (there == expected.end()) {
        auto block = std::make_unique<CachedBlock>();
        block->tokens.assign(tokens.begin(), tokens.end());
        below.Insert(*block);
        expected.emplace(tokens, std::move(block));
      } else {
        below.Erase(*there->second);
        expected.erase(there);
      }
      ASSERT_EQ(below.size(), expected.size());
      ASSERT_EQ(below.empty(), expected.empty());
      if (!expected.empty()) {
        ASSERT_EQ(below.first(), expected.begin()->second.get()) << "seed " << seed;
      }
    }
    while (!below.empty()) {
      below.Erase(*below.first());
    }
    EXPECT_EQ(below.Find(std::vector<TokenId>(3)), nullptr);
  }
}

}  // namespace
}  // namespace lamina::core

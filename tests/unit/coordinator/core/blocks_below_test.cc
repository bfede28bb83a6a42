// SPDX-License-Identifier: Apache-2.0

#include "coordinator/core/blocks_below.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/cached_block.h"

namespace lamina::core {
namespace {

// Against an ordered map, with few different tokens, so that many blocks differ in the last alone,
// or in the node.
TEST(BlocksBelowTest, EachIsFoundByItsTokensAndNodeWhateverOthersCameAndWent) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Prng random(seed);
    BlocksBelow below;
    std::map<std::pair<std::vector<TokenId>, uint32_t>, std::unique_ptr<CachedBlock>> expected;
    const auto nodes = static_cast<uint32_t>(1 + seed % 3);
    for (int step = 0; step < 200; ++step) {
      std::vector<TokenId> tokens(3);
      for (TokenId& token : tokens) {
        token = static_cast<TokenId>(random.Below(3)) - 1;
      }
      const auto node = static_cast<uint32_t>(random.Below(nodes));
      const auto there = expected.find({tokens, node});
      ASSERT_EQ(below.Find(tokens, node), there == expected.end() ? nullptr : there->second.get());
      if (there == expected.end()) {
        auto block = std::make_unique<CachedBlock>();
        block->tokens.assign(tokens.begin(), tokens.end());
        block->node = node;
        below.Insert(*block);
        expected.emplace(std::pair(tokens, node), std::move(block));
      } else {
        below.Erase(*there->second);
        expected.erase(there);
      }
      ASSERT_EQ(below.size(), expected.size());
      ASSERT_EQ(below.empty(), expected.empty());
      if (!expected.empty()) {
        ASSERT_EQ(below.first(), expected.begin()->second.get()) << "seed " << seed;
      }
      std::vector<const CachedBlock*> with_tokens;
      for (auto it = expected.lower_bound({tokens, 0});
           it != expected.end() && it->first.first == tokens; ++it) {
        with_tokens.push_back(it->second.get());
      }
      std::vector<const CachedBlock*> visited;
      below.Visit(tokens, [&](const CachedBlock& block) { visited.push_back(&block); });
      ASSERT_EQ(visited, with_tokens);
      ASSERT_EQ(below.FindAny(tokens), with_tokens.empty() ? nullptr : with_tokens.front());
    }
    while (!below.empty()) {
      below.Erase(*below.first());
    }
    EXPECT_EQ(below.Find(std::vector<TokenId>(3), 0), nullptr);
  }
}

}  // namespace
}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
//
// Conversations whose every turn begins with all that was said before.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/integration/cluster_test_util.h"

namespace lamina::test_support {

struct Conversations {
  std::vector<size_t> first_prompts;  // Tokens of each one's first prompt.
  uint32_t turns = 3;
  uint32_t greedy_tokens = 9;  // An answer of the first turn has so many; each turn adds one.
  uint32_t sampled_tokens =
      16;  // Every second conversation is sampled, and its answers have these.
};

// All at once, turn by turn. Results: [turns][conversations].
inline std::vector<std::vector<GenerateResult>> Converse(LocalCluster& cluster,
                                                         const Conversations& wanted) {
  std::vector<std::vector<GenerateResult>> turns;
  std::vector<std::vector<TokenId>> said;
  for (const size_t tokens : wanted.first_prompts) {
    said.push_back(RandomPrompt(tokens, tokens));
  }
  for (uint32_t turn = 0; turn < wanted.turns; ++turn) {
    std::vector<coordinator::GenerateSpec> specs;
    for (size_t i = 0; i < said.size(); ++i) {
      specs.push_back(i % 2 == 0 ? Greedy(said[i], wanted.greedy_tokens + turn)
                                 : Sampled(said[i], wanted.sampled_tokens, i + turn));
    }
    turns.push_back(cluster.GenerateMany(specs));
    for (size_t i = 0; i < said.size(); ++i) {
      EXPECT_TRUE(turns.back()[i].status.ok()) << turns.back()[i].status;
      const std::vector<TokenId>& answer = turns.back()[i].choices[0].tokens;
      said[i].insert(said[i].end(), answer.begin(), answer.end());
      const std::vector<TokenId> more = RandomPrompt(3 + 20 * i, 100 + i);
      said[i].insert(said[i].end(), more.begin(), more.end());
    }
  }
  return turns;
}

}  // namespace lamina::test_support

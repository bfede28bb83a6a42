// SPDX-License-Identifier: Apache-2.0
//
// The hit rate of the prefix cache over a trace of conversations, replayed through the scheduler,
// compared with that of a plain LRU over the blocks that nobody uses.

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/philox.h"
#include "coordinator/core/prefix_cache.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using Tokens = std::vector<TokenId>;

struct Turn {
  Tokens prompt;
  uint32_t answer = 0;  // Tokens.
};

// What the fixture's nodes answer.
void Answer(Tokens& tokens, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(100 + tokens.size()));
  }
}

// Conversations under a few system prompts: who has spoken lately is likely to speak again, and
// long ones begin anew.
std::vector<Turn> MakeTrace(uint64_t seed, uint32_t longest) {
  Prng random(seed);
  const auto words = [&random](uint32_t count) {
    Tokens tokens;
    for (uint32_t i = 0; i < count; ++i) {
      tokens.push_back(static_cast<TokenId>(random.Below(50)));
    }
    return tokens;
  };
  std::vector<Tokens> systems;
  for (int i = 0; i < 4; ++i) {
    systems.push_back(words(40 + static_cast<uint32_t>(random.Below(60))));
  }
  std::vector<Tokens> conversations(60);
  std::vector<Turn> trace;
  for (int i = 0; i < 400; ++i) {
    const double where = random.Uniform();
    const auto pick = static_cast<size_t>(where * where * where * 60);
    std::rotate(conversations.begin(), conversations.begin() + static_cast<std::ptrdiff_t>(pick),
                conversations.begin() + static_cast<std::ptrdiff_t>(pick) + 1);
    Tokens& tokens = conversations[0];
    const auto answer = static_cast<uint32_t>(8 + random.Below(25));
    const Tokens said = words(static_cast<uint32_t>(5 + random.Below(40)));
    if (tokens.empty() || tokens.size() + said.size() + answer > longest) {
      tokens = systems[random.Below(systems.size())];
    }
    tokens.insert(tokens.end(), said.begin(), said.end());
    trace.push_back({.prompt = tokens, .answer = answer});
    Answer(tokens, answer);
  }
  return trace;
}

// One request after the other, in so many slots: of the blocks that it does not use, and that none
// lies below, the one goes first whose last use is oldest.
class PlainLru {
 public:
  explicit PlainLru(uint32_t slots) : slots_(slots) {}

  // Returns how many tokens of the prompt were there.
  uint32_t Serve(const Turn& turn) {
    Tokens tokens = turn.prompt;
    Answer(tokens, turn.answer);
    const std::vector<size_t> way = WayOf(tokens);
    const auto prompt = static_cast<uint32_t>(turn.prompt.size());
    uint32_t found = 0;
    while ((found + 1) * kCachedBlockTokens < prompt && blocks_[way[found]].there) {
      ++found;
    }
    const std::vector<size_t> used(way.begin(), way.begin() + found);
    // The last token is never stored. The slots behind the prompt are taken one by one.
    const auto stored = static_cast<uint32_t>(tokens.size()) - 1;
    for (uint32_t taken = std::min(prompt + 1, slots_); taken <= stored; ++taken) {
      Evict(used, taken - found * kCachedBlockTokens);
    }
    ++clock_;
    for (uint32_t depth = 0; depth < stored / kCachedBlockTokens; ++depth) {
      Block& block = blocks_[way[depth]];
      count_ += block.there ? 0 : 1;
      block.there = true;
      block.last_use = clock_;
    }
    return found * kCachedBlockTokens;
  }

 private:
  struct Block {
    size_t above = 0;
    bool there = false;
    uint64_t last_use = 0;
  };

  // The blocks of these tokens, each known by the one above it and its own tokens.
  std::vector<size_t> WayOf(const Tokens& tokens) {
    std::vector<size_t> way;
    size_t above = 0;
    for (size_t end = kCachedBlockTokens; end <= tokens.size(); end += kCachedBlockTokens) {
      const auto last = tokens.begin() + static_cast<std::ptrdiff_t>(end);
      const auto [known, fresh] =
          ids_.emplace(std::pair(above, Tokens(last - kCachedBlockTokens, last)), blocks_.size());
      if (fresh) {
        blocks_.push_back({.above = above});
      }
      above = known->second;
      way.push_back(above);
    }
    return way;
  }

  void Evict(const std::vector<size_t>& used, uint32_t wanted) {
    while (slots_ - count_ * kCachedBlockTokens < wanted) {
      std::vector<bool> stays(blocks_.size());
      for (const size_t block : used) {
        stays[block] = true;
      }
      for (const Block& block : blocks_) {
        if (block.there) {
          stays[block.above] = true;
        }
      }
      size_t oldest = 0;
      for (size_t i = 1; i < blocks_.size(); ++i) {
        if (blocks_[i].there && !stays[i] &&
            (oldest == 0 || blocks_[i].last_use < blocks_[oldest].last_use)) {
          oldest = i;
        }
      }
      ASSERT_NE(oldest, 0u);
      blocks_[oldest].there = false;
      --count_;
    }
  }

  const uint32_t slots_;
  uint64_t clock_ = 0;
  uint32_t count_ = 0;
  std::vector<Block> blocks_{1};  // The first stands above all.
  std::map<std::pair<size_t, Tokens>, size_t> ids_;
};

class PrefixHitRateTest : public SchedulerTest {
 protected:
  static constexpr uint32_t kLongest = 400;

  static uint64_t TokensOf(const std::vector<Turn>& trace) {
    uint64_t tokens = 0;
    for (const Turn& turn : trace) {
      tokens += turn.prompt.size();
    }
    return tokens;
  }
  static uint64_t FoundByLru(const std::vector<Turn>& trace, uint32_t slots) {
    PlainLru lru(slots);
    uint64_t found = 0;
    for (const Turn& turn : trace) {
      found += lru.Serve(turn);
    }
    return found;
  }

  // One after the other; what each finds.
  std::vector<uint32_t> Replay(const std::vector<Turn>& trace, uint32_t nodes, uint32_t slots) {
    SchedulerOptions options = SmallOptions(slots);
    options.sequence_tokens_max = kLongest + 1;
    options.scratch_tokens = kLongest + 1;
    options.prompt_rows_max = 16;
    options.prefix_cache = true;
    options.memory_nodes.resize(nodes, options.memory_nodes[0]);
    for (uint32_t node = 0; node < nodes; ++node) {
      options.memory_nodes[node].name = std::string(1, static_cast<char>('a' + node));
    }
    Make(options);
    std::vector<uint32_t> found;
    plan::SequenceId id = 0;
    for (const Turn& turn : trace) {
      SequenceRequest request{.id = ++id, .prompt = turn.prompt};
      request.tokens_max = static_cast<uint32_t>(turn.prompt.size()) + turn.answer;
      EXPECT_TRUE(scheduler_->Submit(request).ok());
      events_ = {};
      RunUntilIdle();
      found.push_back(events_.tokens.at(0).cached_tokens);
    }
    return found;
  }
};

TEST_F(PrefixHitRateTest, OnOneNodeEachRequestFindsWhatAnLruOverUnusedBlocksHas) {
  const std::vector<Turn> trace = MakeTrace(1, kLongest);
  for (const uint32_t slots : {500u, 1500u, 4000u, 20'000u}) {
    PlainLru lru(slots);
    const std::vector<uint32_t> found = Replay(trace, 1, slots);
    uint64_t sum = 0;
    for (size_t i = 0; i < trace.size(); ++i) {
      ASSERT_EQ(found[i], lru.Serve(trace[i])) << "request " << i << ", " << slots << " slots";
      sum += found[i];
    }
    const double rate = static_cast<double>(sum) / static_cast<double>(TokensOf(trace));
    std::cout << slots << " slots: " << rate << " of the prompts' tokens are found\n";
    EXPECT_GT(rate, 0.1);
  }
}

// Who comes goes where its prefix is, as far as the nodes are as busy as each other.
TEST_F(PrefixHitRateTest, OnTwoNodesTheRateIsWithinFivePointsOfAnLruOverBoth) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<Turn> trace = MakeTrace(seed, kLongest);
    for (const uint32_t slots : {2000u, 4000u, 20'000u}) {
      uint64_t sum = 0;
      for (const uint32_t found : Replay(trace, 2, slots / 2)) {
        sum += found;
      }
      const auto all = static_cast<double>(TokensOf(trace));
      const double rate = static_cast<double>(sum) / all;
      const double lru = static_cast<double>(FoundByLru(trace, slots)) / all;
      std::cout << slots << " slots: " << rate << " on two nodes, " << lru
                << " by an LRU over both\n";
      EXPECT_NEAR(rate, lru, 0.05);
    }
  }
}

}  // namespace
}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
//
// What is kept of K and V, who finds it, and what goes first.

#include "coordinator/core/prefix_cache.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/philox.h"
#include "tests/unit/coordinator/core/parts_fixture.h"

namespace lamina::core {
namespace {

class PrefixCacheTest : public PartsTest {
 protected:
  PrefixCacheTest() { MakeNodes({1000, 1000}, 2, 0, {}, /*keeps_prefixes=*/true); }

  // A block of 16 equal tokens for each letter, and `rest` tokens behind them.
  Sequence& Submit(const std::string& blocks, uint32_t rest, const std::string& salt = "") {
    const plan::SequenceId id = ++ids_;
    SequenceRequest request{.id = id, .cache_salt = salt};
    for (const char block : blocks) {
      request.prompt.insert(request.prompt.end(), kCachedBlockTokens, block);
    }
    request.prompt.insert(request.prompt.end(), rest, 1);
    request.tokens_max = static_cast<uint32_t>(request.prompt.size()) + 100;
    life_.Submit(request);
    return *life_.Find(id);
  }

  // Joins as Admission has it. Returns how many tokens it found.
  uint32_t Join(Sequence& sequence, uint32_t node = 0) { return JoinOn(sequence, {node}); }
  // Its spans are on these nodes, those behind on the last one.
  uint32_t JoinOn(Sequence& sequence, const std::vector<uint32_t>& nodes, bool shares = true) {
    const plan::SequenceId id = sequence.request.id;
    life_.Begin(sequence, /*lane=*/0, nodes.front());
    kv_.Open(id);
    for (size_t span = 0; kv_.TokensOf(id) < sequence.join_tokens; ++span) {
      sequence.node = nodes[std::min(span, nodes.size() - 1)];
      kv_.BeginSpan(id, sequence.node);
      if (span == 0) {
        cache_.Join(sequence, sequence.node, shares);
      } else {
        cache_.JoinNextSpan(sequence);
      }
      const uint32_t left = sequence.join_tokens - kv_.TokensOf(id);
      EXPECT_TRUE(kv_.Append(id, std::min(left, kv_.RoomInSpan(id))).ok());
    }
    cache_.Announce(sequence);
    life_.Settle(sequence);
    return sequence.cached_tokens;
  }
  uint32_t JoinNew(const std::string& blocks, uint32_t rest, const std::string& salt = "") {
    return Join(Submit(blocks, rest, salt));
  }
  // So many of its answer's tokens are there; each but the last has been an input.
  void Decode(Sequence& sequence, uint32_t tokens = 1) {
    sequence.committed.push_back(2);
    sequence.planned_tokens = sequence.join_tokens + 1;
    life_.Decode(sequence);
    for (uint32_t i = 1; i < tokens; ++i) {
      if (kv_.RoomInSpan(*sequence.held) == 0) {
        kv_.BeginSpan(sequence.request.id, sequence.node);
      }
      EXPECT_TRUE(kv_.AppendOne(*sequence.held).has_value());
      lanes_.Grow(sequence, sequence.node, 1, kv_);
      sequence.committed.push_back(2);
      ++sequence.planned_tokens;
    }
  }
  void Serve(const std::string& blocks, uint32_t rest) {
    Sequence& sequence = Submit(blocks, rest);
    Join(sequence);
    Decode(sequence);
    life_.End(sequence);
    Recycle();
  }
  void Recycle() { borders_.Pass(0, borders_.Seal(0)); }
  uint32_t FoundBy(const std::string& blocks, uint32_t rest, const std::string& salt = "") {
    Sequence& sequence = Submit(blocks, rest, salt);
    const uint32_t tokens = cache_.Find(sequence, 0).tokens;
    life_.End(sequence);
    return tokens;
  }

  plan::SequenceId ids_ = 0;
};

TEST_F(PrefixCacheTest, WhatIsStoredIsFoundAndTheLastTokenIsAlwaysComputed) {
  EXPECT_EQ(JoinNew("abc", 5), 0u);
  Decode(*life_.Find(1));
  EXPECT_EQ(FoundBy("abc", 5), 48u);
  EXPECT_EQ(FoundBy("abc", 0), 32u);
  EXPECT_EQ(FoundBy("abd", 1), 32u);
  EXPECT_EQ(FoundBy("ac", 1), 16u);
  EXPECT_EQ(FoundBy("b", 7), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
  life_.End(*life_.Find(1));
  Recycle();
  EXPECT_EQ(cache_.UnusedOn(0), 48u);
  EXPECT_EQ(FoundBy("abc", 5), 48u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, AnswersAreKeptUpToTheLastTokenThatWasAnInput) {
  Sequence& sequence = Submit("a", 0);
  Join(sequence);
  Decode(sequence, 16);
  life_.End(sequence);  // The 16th was never an input.
  EXPECT_EQ(cache_.blocks(), 1u);
  Sequence& longer = Submit("a", 0);
  Join(longer);
  Decode(longer, 17);
  life_.End(longer);
  EXPECT_EQ(cache_.blocks(), 2u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, FoundSlotsAreSharedAndNeverWrittenAgain) {
  Serve("ab", 4);
  const uint32_t kept = cache_.Save().front().slots.front().first_slot;
  Sequence& next = Submit("ab", 9);
  EXPECT_EQ(Join(next), 32u);
  EXPECT_EQ(kv_.directory().ExtentsOf(next.request.id).front().first_slot, kept);
  EXPECT_EQ(kv_.TokensOf(next.request.id), 41u);
  EXPECT_EQ(cache_.UnusedOn(0), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, ABlockThatBeginsInThePromptAndEndsInTheAnswerIsFoundByBoth) {
  Sequence& sequence = Submit("a", 10);
  Join(sequence);
  Decode(sequence, 23);  // Tokens 1, ten times, and 2: 22 of these were inputs.
  life_.End(sequence);
  EXPECT_EQ(cache_.blocks(), 3u);
  Sequence& next = Submit("a", 10);
  next.request.prompt.insert(next.request.prompt.end(), 23, 2);
  EXPECT_EQ(cache_.Find(next, 0).tokens, 48u);
  next.request.prompt[16 + 15] = 3;
  EXPECT_EQ(cache_.Find(next, 0).tokens, 16u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, OnAllNodesIsAsOnEachNode) {
  for (const uint32_t node : {1u, 0u}) {
    Sequence& sequence = Submit(node == 0 ? "ab" : "a", 4);
    Join(sequence, node);
    Decode(sequence);
  }
  for (const char* blocks : {"abc", "a", "c", ""}) {
    Sequence& sequence = Submit(blocks, 1);
    const std::vector<PrefixCache::Found> found = cache_.FindOnNodes(sequence);
    ASSERT_EQ(found.size(), 2u);
    for (const uint32_t node : {0u, 1u}) {
      EXPECT_EQ(found[node], cache_.Find(sequence, node)) << blocks << " on " << node;
    }
    life_.End(sequence);
  }
}

TEST_F(PrefixCacheTest, PendingBlocksAreSeenAndGoWithTheirMaker) {
  Sequence& maker = Submit("abc", 3);
  Join(maker);
  Sequence& other = Submit("abd", 3);
  EXPECT_EQ(cache_.Find(other, 0).tokens, 0u);
  EXPECT_EQ(cache_.Find(other, 0).pending, 32u);
  EXPECT_EQ(cache_.Find(other, 1).pending, 0u);
  EXPECT_EQ(Join(other), 0u);  // It did not wait, and makes its own.
  EXPECT_TRUE(Audit().ok()) << Audit();
  life_.End(maker);
  EXPECT_EQ(cache_.blocks(), 0u);
  Decode(other);
  EXPECT_EQ(cache_.blocks(), 3u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, SaltsNodesAndScoresAreApart) {
  Sequence& sequence = Submit("ab", 1, "mine");
  Join(sequence);
  Decode(sequence);
  EXPECT_EQ(FoundBy("ab", 1, "mine"), 32u);
  EXPECT_EQ(FoundBy("ab", 1), 0u);
  EXPECT_EQ(FoundBy("ab", 1, "others"), 0u);
  Sequence& score = Submit("ab", 1, "mine");
  EXPECT_EQ(cache_.Find(score, 1).tokens, 0u);
  score.request.score = true;
  EXPECT_EQ(cache_.Find(score, 0).tokens, 0u);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirstFromItsEnd) {
  Serve("ab", 1);
  Serve("acd", 1);
  Serve("ab", 1);  // Used again.
  const uint32_t all = 1000;
  cache_.MakeRoom(0, all - 48);
  EXPECT_EQ(FoundBy("acd", 1), 32u);
  EXPECT_EQ(FoundBy("ab", 1), 32u);
  cache_.MakeRoom(0, all - 32);
  EXPECT_EQ(FoundBy("acd", 1), 16u);
  EXPECT_EQ(FoundBy("ab", 1), 32u);
  cache_.MakeRoom(0, all);
  EXPECT_EQ(cache_.blocks(), 0u);
  EXPECT_EQ(kv_.directory().SlotsFree(0), all);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, RoomForANewcomerIsNotMadeFromWhatItFinds) {
  Serve("ab", 1);  // The oldest.
  Serve("cd", 1);
  Sequence& next = Submit("ab", 20);
  cache_.MakeRoomFor(next, 0, 1000 - 32);
  EXPECT_EQ(cache_.Find(next, 0).tokens, 32u);
  EXPECT_EQ(FoundBy("cd", 1), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(PrefixCacheTest, WhoJoinsAgainIsNoNewSequenceThatAsks) {
  Serve("a", 4);
  Sequence& sequence = Submit("ab", 4);
  EXPECT_EQ(Join(sequence), 16u);
  Decode(sequence);
  life_.Preempt(sequence);
  borders_.Begin(0, 1);
  const StepBorder border = borders_.Seal(0);
  life_.WaitAgain(border.draining);
  borders_.Pass(0, border);

  EXPECT_EQ(Join(sequence), 32u) << "its own, and one token more";

  EXPECT_EQ(cache_.stats().tokens_asked, 20u + 36 + 37);
  EXPECT_EQ(cache_.stats().tokens_found, 16u + 32);
  EXPECT_EQ(cache_.stats().first_asked, 20u + 36);
  EXPECT_EQ(cache_.stats().first_found, 16u);
}

TEST_F(PrefixCacheTest, BlocksInUseAreNeverDropped) {
  Sequence& sequence = Submit("abc", 1);
  Join(sequence);
  Decode(sequence);
  cache_.MakeRoom(0, 1000);
  EXPECT_EQ(cache_.blocks(), 3u);
}

// A plain model: blocks by their path, looked through in full.
class PlainCache {
 public:
  struct Block {
    int users = 0;
    uint64_t last_used = 0;
  };
  uint32_t Find(const std::string& path) const {
    uint32_t depth = 0;
    while (depth < path.size() && blocks_.contains(path.substr(0, depth + 1))) {
      ++depth;
    }
    return depth;
  }
  void Use(const std::string& path) {
    for (size_t depth = 1; depth <= path.size(); ++depth) {
      ++blocks_[path.substr(0, depth)].users;
    }
  }
  void Leave(const std::string& path) {
    ++clock_;
    for (size_t depth = 1; depth <= path.size(); ++depth) {
      Block& block = blocks_.at(path.substr(0, depth));
      --block.users;
      block.last_used = clock_;
    }
  }
  // Drops the least recently used block that nobody uses and none lies below.
  void DropOne() {
    auto oldest = blocks_.end();
    for (auto it = blocks_.begin(); it != blocks_.end(); ++it) {
      const auto below = std::next(it);
      const bool leaf = below == blocks_.end() || !below->first.starts_with(it->first);
      if (leaf && it->second.users == 0 &&
          (oldest == blocks_.end() || it->second.last_used < oldest->second.last_used)) {
        oldest = it;
      }
    }
    if (oldest != blocks_.end()) {
      blocks_.erase(oldest);
    }
  }
  size_t size() const { return blocks_.size(); }

 private:
  std::map<std::string, Block> blocks_;
  uint64_t clock_ = 0;
};

// One after the other, each decoded before the next joins, so that nothing is pending for long. Cut
// or not, on one node that is the same.
TEST_F(PrefixCacheTest, RandomHistoriesAreThoseOfAPlainModel) {
  for (uint64_t seed = 1; seed <= 75; ++seed) {
    const uint32_t span_tokens = std::vector<uint32_t>{0, 32, 16}[seed % 3];
    MakeNodes({20000}, 2, span_tokens, {}, /*keeps_prefixes=*/true);
    PlainCache plain;
    Prng random(seed);
    std::map<plan::SequenceId, std::string> running;
    for (int turn = 0; turn < 200; ++turn) {
      if (running.size() < 6 && random.Chance(0.6)) {
        std::string path;
        for (uint64_t left = 1 + random.Below(6); left > 0; --left) {
          path += static_cast<char>('a' + random.Below(3));
        }
        Sequence& sequence = Submit(path, 1);
        ASSERT_EQ(Join(sequence), 16 * plain.Find(path)) << "seed " << seed << " turn " << turn;
        Decode(sequence);
        plain.Use(path);
        running[sequence.request.id] = path;
      } else if (!running.empty() && random.Chance(0.7)) {
        auto leaving = running.begin();
        std::advance(leaving, random.Below(running.size()));
        life_.End(*life_.Find(leaving->first));
        plain.Leave(leaving->second);
        running.erase(leaving);
        Recycle();
      } else {
        const size_t before = cache_.blocks();
        if (cache_.UnusedOn(0) > 0) {
          cache_.MakeRoom(0, kv_.directory().SlotsFree(0) + 1);
          plain.DropOne();
          ASSERT_EQ(cache_.blocks() + 1, before);
        }
      }
      ASSERT_EQ(cache_.blocks(), plain.size()) << "seed " << seed << " turn " << turn;
      ASSERT_TRUE(Audit().ok()) << Audit();
    }
    for (const auto& [id, path] : running) {
      life_.End(*life_.Find(id));
    }
    Recycle();
  }
}

// Spans of two blocks, on three nodes.
class CutPrefixCacheTest : public PrefixCacheTest {
 protected:
  CutPrefixCacheTest() { Make(); }
  void Make() { MakeNodes({1000, 1000, 1000}, 2, /*span_tokens=*/32, {}, /*keeps_prefixes=*/true); }

  void ServeOn(const std::string& blocks, const std::vector<uint32_t>& nodes) {
    Sequence& sequence = Submit(blocks, 1);
    JoinOn(sequence, nodes);
    Decode(sequence);
    life_.End(sequence);
    Recycle();
  }
  // What a sequence finds on each node.
  std::vector<uint32_t> TokensOnNodes(const std::string& blocks) {
    Sequence& sequence = Submit(blocks, 1);
    std::vector<uint32_t> tokens;
    for (const PrefixCache::Found& found : cache_.FindOnNodes(sequence)) {
      tokens.push_back(found.tokens);
    }
    life_.End(sequence);
    return tokens;
  }
  void ExpectAllFree() {
    for (const uint32_t node : {0u, 1u, 2u}) {
      EXPECT_EQ(cache_.UnusedOn(node), 0u) << node;
      EXPECT_EQ(kv_.directory().SlotsFree(node), 1000u) << node;
    }
  }
};

TEST_F(CutPrefixCacheTest, EachSpanIsFoundAndSharedWhereItLies) {
  Sequence& first = Submit("abcde", 1);
  JoinOn(first, {0, 1, 2});
  Decode(first);
  Sequence& next = Submit("abcdz", 1);
  EXPECT_EQ(JoinOn(next, {0, 1, 2}), 64u);
  for (const uint32_t span : {0u, 1u}) {
    EXPECT_EQ(kv_.directory().ExtentsOf(HeldSpan(next.request.id, span)).front(),
              kv_.directory().ExtentsOf(HeldSpan(first.request.id, span)).front());
  }
  EXPECT_TRUE(Audit().ok()) << Audit();
  life_.End(first);
  Decode(next);
  EXPECT_EQ(cache_.blocks(), 6u);
  EXPECT_TRUE(Audit().ok()) << Audit();
  life_.End(next);
  Recycle();
  EXPECT_EQ(TokensOnNodes("abcde"), (std::vector<uint32_t>{32, 32, 16}));
  EXPECT_EQ(TokensOnNodes("abcd"), (std::vector<uint32_t>{32, 32, 0}));
  EXPECT_EQ(TokensOnNodes("ab"), (std::vector<uint32_t>{32, 0, 0}));
  EXPECT_EQ(TokensOnNodes("b"), (std::vector<uint32_t>{0, 0, 0}));
}

TEST_F(CutPrefixCacheTest, WhoGoesElsewhereEndsItsWayAndBeginsAnotherOne) {
  ServeOn("abcde", {0, 1, 2});
  Sequence& other = Submit("abcde", 1);
  EXPECT_EQ(JoinOn(other, {0, 2, 1}), 32u);
  EXPECT_TRUE(Audit().ok()) << Audit();
  Decode(other);
  EXPECT_EQ(cache_.blocks(), 5u + 3);
  life_.End(other);
  Recycle();
  EXPECT_TRUE(Audit().ok()) << Audit();
  for (const std::vector<uint32_t>& nodes :
       {std::vector<uint32_t>{0, 1, 2}, std::vector<uint32_t>{0, 2, 1}}) {
    Sequence& again = Submit("abcde", 1);
    EXPECT_EQ(JoinOn(again, nodes), 80u);
    life_.End(again);
    Recycle();
  }
  Sequence& apart = Submit("abcde", 1);
  EXPECT_EQ(JoinOn(apart, {1, 1, 2}), 0u) << "its first span is found on another node";
}

// What is pending goes on in other spans, on other nodes.
TEST_F(CutPrefixCacheTest, PendingTokensAreCountedOverSpans) {
  Sequence& maker = Submit("abcde", 1);
  JoinOn(maker, {0, 1, 2});
  Sequence& other = Submit("abcdx", 1);
  EXPECT_EQ(cache_.Find(other, 0).pending, 64u);
  EXPECT_EQ(cache_.Find(other, 1).pending, 0u);
  life_.End(maker);
  EXPECT_EQ(cache_.blocks(), 0u);
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(CutPrefixCacheTest, WhatIsDroppedTakesAlongWhatIsBelowItElsewhere) {
  ServeOn("abcde", {0, 1, 2});
  ServeOn("ab", {0});
  cache_.MakeRoom(1, 1000);
  EXPECT_EQ(TokensOnNodes("abcde"), (std::vector<uint32_t>{32, 0, 0}));
  EXPECT_EQ(kv_.directory().SlotsFree(2), 1000u) << "what was behind it";
  cache_.MakeRoom(0, 1000);
  EXPECT_EQ(cache_.blocks(), 0u);
  ServeOn("abcdef", {0, 1, 0});
  cache_.MakeRoom(0, 1000 - 48);
  EXPECT_EQ(TokensOnNodes("abcdef"), (std::vector<uint32_t>{48, 32, 0})) << "from the end";
  cache_.MakeRoom(0, 1000 - 16);
  EXPECT_EQ(TokensOnNodes("abcdef"), (std::vector<uint32_t>{16, 0, 0}));
  EXPECT_TRUE(Audit().ok()) << Audit();
  cache_.Forget(0);
  ExpectAllFree();
}

TEST_F(CutPrefixCacheTest, RoomForANewcomerIsNotMadeFromTheSpansThatItFinds) {
  ServeOn("abcd", {0, 1});  // The oldest.
  ServeOn("efgh", {0, 1});
  Sequence& next = Submit("abcd", 20);
  cache_.MakeRoomForSpans(next, std::vector<uint32_t>{0, 1, 1}, 64,
                          std::vector<uint64_t>{1000 - 32, 1000 - 32, 0});
  EXPECT_EQ(TokensOnNodes("abcd"), (std::vector<uint32_t>{32, 32, 0}));
  EXPECT_EQ(TokensOnNodes("efgh"), (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

// Who computes anew what is there keeps nobody from dropping it, and leaves what is behind it.
TEST_F(CutPrefixCacheTest, BlocksWithSlotsOfOthersAreNotUsedByWhoDoesNotShareThem) {
  ServeOn("abcd", {0, 1});
  Sequence& apart = Submit("abcdef", 1);
  EXPECT_EQ(JoinOn(apart, {0, 1, 2}, /*shares=*/false), 0u);
  Decode(apart);
  EXPECT_EQ(cache_.UnusedOn(0), 32u);
  EXPECT_EQ(cache_.UnusedOn(1), 32u);
  EXPECT_TRUE(Audit().ok()) << Audit();
  life_.End(apart);
  Recycle();
  EXPECT_EQ(cache_.blocks(), 6u);
  EXPECT_EQ(TokensOnNodes("abcdef"), (std::vector<uint32_t>{32, 32, 32}));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

TEST_F(CutPrefixCacheTest, OverAnEpochWaysAreKeptUpToTheFirstNodeThatIsLost) {
  ServeOn("abcdef", {0, 1, 2});
  ServeOn("ghijkl", {1, 2, 0});
  const std::vector<PrefixCache::Saved> blocks = cache_.Save();
  Make();
  cache_.Restore(blocks, {1, 0, std::nullopt});
  EXPECT_TRUE(Audit().ok()) << Audit();
  EXPECT_EQ(TokensOnNodes("abcdef"), (std::vector<uint32_t>{32, 32, 0}));
  EXPECT_EQ(TokensOnNodes("ghijkl"), (std::vector<uint32_t>{32, 0, 0}));
  cache_.Forget(1);
  EXPECT_EQ(TokensOnNodes("abcdef"), (std::vector<uint32_t>{0, 0, 0}));
  EXPECT_EQ(TokensOnNodes("ghijkl"), (std::vector<uint32_t>{32, 0, 0}));
  EXPECT_TRUE(Audit().ok()) << Audit();
}

// The longest way over these nodes, among the blocks as they would be saved.
uint32_t FoundAmong(const std::vector<PrefixCache::Saved>& blocks, const std::string& path,
                    const std::vector<uint32_t>& nodes) {
  uint64_t above = 0;
  uint32_t depth = 0;
  while (depth < path.size()) {
    const auto next = std::find_if(blocks.begin(), blocks.end(), [&](const auto& block) {
      return block.parent == above && block.tokens[0] == path[depth] &&
             block.node == nodes[std::min<size_t>(depth / 2, nodes.size() - 1)];
    });
    if (next == blocks.end()) {
      break;
    }
    above = next->id;
    ++depth;
  }
  return depth * kCachedBlockTokens;
}

TEST_F(CutPrefixCacheTest, RandomWaysOverNodesAreFoundAndDropped) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Make();
    Prng random(seed);
    std::vector<plan::SequenceId> running;
    for (int turn = 0; turn < 150; ++turn) {
      if (running.size() < 5 && random.Chance(0.6)) {
        std::string path;
        for (uint64_t left = 1 + random.Below(7); left > 0; --left) {
          path += static_cast<char>('a' + random.Below(2));
        }
        std::vector<uint32_t> nodes(4);
        for (uint32_t& node : nodes) {
          node = static_cast<uint32_t>(random.Below(3));
        }
        for (const uint32_t node : {0u, 1u, 2u}) {
          cache_.MakeRoom(node, 500);
        }
        const bool shares = random.Chance(0.8);
        const uint32_t expected = shares ? FoundAmong(cache_.Save(), path, nodes) : 0;
        Sequence& sequence = Submit(path, 1);
        ASSERT_EQ(JoinOn(sequence, nodes, shares), expected) << "seed " << seed << " " << turn;
        Decode(sequence);
        running.push_back(sequence.request.id);
      } else if (!running.empty() && random.Chance(0.7)) {
        const size_t leaving = random.Below(running.size());
        life_.End(*life_.Find(running[leaving]));
        running.erase(running.begin() + static_cast<ptrdiff_t>(leaving));
        Recycle();
      } else {
        const auto node = static_cast<uint32_t>(random.Below(3));
        cache_.MakeRoom(node, kv_.directory().SlotsFree(node) + 1 + random.Below(40));
      }
      ASSERT_TRUE(Audit().ok()) << Audit() << " seed " << seed << " turn " << turn;
    }
    for (const plan::SequenceId id : running) {
      life_.End(*life_.Find(id));
    }
    Recycle();
    for (const uint32_t node : {2u, 0u, 1u}) {
      cache_.MakeRoom(node, 1000);
      EXPECT_EQ(cache_.UnusedOn(node), 0u);
    }
    EXPECT_EQ(cache_.blocks(), 0u);
    ExpectAllFree();
  }
}

}  // namespace
}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
//
// What the scheduler plans for sequences that are cut over memory nodes, of which some are lost.

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

using testing::SizeIs;

constexpr uint32_t kSpan = 16;

class SchedulerLossTest : public SchedulerTest {
 protected:
  // Nodes "0", "1", ... with so many slots each.
  static SchedulerOptions Cut(uint32_t nodes, uint32_t slots) {
    SchedulerOptions options = SmallOptions();
    options.prefix_cache = true;
    options.span_tokens = kSpan;
    options.rows_max = 8;
    options.plan_ahead = 1;
    options.memory_nodes.clear();
    for (uint32_t i = 0; i < nodes; ++i) {
      options.memory_nodes.push_back({.name = absl::StrCat(i),
                                      .slots = slots,
                                      .arena = i + 1,
                                      .bandwidth_bytes_per_second = 1});
    }
    return options;
  }

  // Sequences that are not cut, with K and V in INT8.
  static SchedulerOptions Int8(uint32_t nodes, uint32_t slots) {
    SchedulerOptions options = Cut(nodes, slots);
    options.span_tokens = 0;
    options.kv = KvForm::kInt8;
    options.int8_tails = options.running_max;
    options.sequence_tokens_max = 200;
    return options;
  }
  // One that finds nothing of the others.
  void SubmitApart(plan::SequenceId id, uint32_t prompt, uint32_t tokens_max) {
    SequenceRequest request = Request(id, prompt, tokens_max);
    request.cache_salt = absl::StrCat(id);
    EXPECT_TRUE(scheduler_->Submit(std::move(request)).ok());
  }

  // Plans, and remembers where tokens lie and which are computed.
  void PlanAndLook() {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SequenceJoin& join : plan.joins) {
        slots_[join.id].clear();
      }
      for (const plan::SlotAllocation& allocation : plan.allocations) {
        for (uint32_t i = 0; i < allocation.extent.tokens; ++i) {
          slots_[allocation.sequence].emplace_back(allocation.memory_node,
                                                   allocation.extent.first_slot + i);
        }
      }
      for (const plan::PrefillChunk& chunk : plan.chunks) {
        for (uint32_t i = 0; i < chunk.tokens; ++i) {
          in_chunks_[chunk.sequence].insert(chunk.first_token + i);
        }
      }
      for (const plan::DecodeRow& row : plan.rows) {
        if (row.position < joins_[row.sequence].tokens.size()) {
          in_rows_[row.sequence].insert(row.position);
        }
      }
    }
  }
  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      PlanAndLook();
      StepDone();
    }
  }
  void RunAll() {
    for (int i = 0; scheduler_->HasWork() && i < 1000; ++i) {
      Steps(1);
    }
    EXPECT_FALSE(scheduler_->HasWork());
  }

  // The nodes of these names come back empty.
  void Lose(SchedulerOptions& options, const std::set<std::string>& names) {
    in_flight_.clear();
    in_chunks_.clear();
    in_rows_.clear();
    for (MemoryNodeShare& node : options.memory_nodes) {
      node.arena = names.contains(node.name) ? 0 : node.arena;
    }
    scheduler_->StartEpoch(++epoch_, options.memory_nodes, {names.begin(), names.end()}, events_);
    std::vector<uint64_t> arenas;
    for (MemoryNodeShare& node : options.memory_nodes) {
      node.arena = node.arena == 0 ? 100 * epoch_ + arenas.size() : node.arena;
      arenas.push_back(node.arena);
    }
    scheduler_->SetArenas(arenas);
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  }

  std::set<uint32_t> Computed(plan::SequenceId id) {
    std::set<uint32_t> computed = in_chunks_[id];
    computed.insert(in_rows_[id].begin(), in_rows_[id].end());
    return computed;
  }

  uint64_t epoch_ = 0;
  std::map<plan::SequenceId, std::vector<std::pair<uint32_t, uint32_t>>> slots_;
  std::map<plan::SequenceId, std::set<uint32_t>> in_chunks_;
  std::map<plan::SequenceId, std::set<uint32_t>> in_rows_;
};

TEST_F(SchedulerLossTest, WhatLayOnALostNodeIsComputedAgainAndNothingElse) {
  SchedulerOptions options = Cut(3, 64);
  Make(options);
  ASSERT_TRUE(Submit(1, 70, 100).ok());
  Steps(8);
  const size_t committed = IndicesOf(1).size();
  ASSERT_GT(committed, 1u);
  const auto before = slots_[1];
  const uint32_t lost = before[20].first;
  const auto missed = [&] {
    const PrefixCacheStats cache = scheduler_->Stats().prefix_cache;
    return cache.tokens_asked - cache.tokens_found;
  };
  EXPECT_EQ(missed(), 70u);
  Lose(options, {absl::StrCat(lost)});
  RunAll();

  const uint32_t stored = static_cast<uint32_t>(70 + committed) - 1;
  for (uint32_t token = 0; token < stored; ++token) {
    const bool missing = before[token].first == lost;
    EXPECT_EQ(Computed(1).contains(token), missing) << token;
    if (!missing) {
      EXPECT_EQ(slots_[1][token], before[token]) << token;
    }
  }
  EXPECT_TRUE(Computed(1).contains(stored)) << "the next token is sampled from it";
  EXPECT_EQ(IndicesOf(1).size(), 30u);
  EXPECT_EQ(missed(), 70 + Computed(1).size());
  EXPECT_EQ(scheduler_->Stats().prefix_cache.first_found, 0u) << "what it had itself is no hit";
}

TEST_F(SchedulerLossTest, AHoleAtTheBeginningIsAChunkAndThoseBehindItAreRows) {
  SchedulerOptions options = Cut(4, 128);
  Make(options);
  ASSERT_TRUE(Submit(1, 60, 70).ok());  // Each of its spans is on another node.
  Steps(4);
  ASSERT_GT(IndicesOf(1).size(), 0u);
  Lose(options, {absl::StrCat(slots_[1][0].first), absl::StrCat(slots_[1][32].first)});
  RunAll();
  EXPECT_THAT(in_chunks_[1], SizeIs(16));
  EXPECT_EQ(*in_chunks_[1].rbegin(), 15u);
  for (uint32_t token = 32; token < 48; ++token) {
    EXPECT_TRUE(in_rows_[1].contains(token)) << token;
  }
  EXPECT_THAT(in_rows_[1], SizeIs(17));
  EXPECT_EQ(IndicesOf(1).size(), 10u);
}

// The second loss comes while the first one's tokens are computed: those that are stored stay.
TEST_F(SchedulerLossTest, WhatHasBeenFilledIsKeptToo) {
  SchedulerOptions options = Cut(3, 128);
  Make(options);
  ASSERT_TRUE(Submit(1, 90, 110).ok());
  Steps(6);
  const auto before = slots_[1];
  const uint32_t lost = before[16].first;
  Lose(options, {absl::StrCat(lost)});
  Steps(2);  // They have eight rows each.
  const std::set<uint32_t> filled = in_rows_[1];
  ASSERT_THAT(filled, SizeIs(16));
  const auto between = slots_[1];
  Lose(options, {});
  RunAll();
  for (const uint32_t token : filled) {
    EXPECT_FALSE(Computed(1).contains(token)) << token;
    EXPECT_EQ(slots_[1][token], between[token]) << token;
  }
  EXPECT_EQ(IndicesOf(1).size(), 20u);
}

// Two sequences fill two nodes of three; there is room for the first one alone.
TEST_F(SchedulerLossTest, PartsOfWhoWaitsGiveWayToWhoIsServedFirst) {
  SchedulerOptions options = Cut(3, 80);
  Make(options);
  SubmitApart(1, 90, 100);
  SubmitApart(2, 90, 100);
  Steps(7);
  ASSERT_GT(IndicesOf(1).size(), 0u);
  ASSERT_GT(IndicesOf(2).size(), 0u);
  const std::string lost = options.memory_nodes.back().name;
  options.memory_nodes.pop_back();
  Lose(options, {lost});
  RunAll();
  EXPECT_EQ(IndicesOf(1).size(), 10u);
  EXPECT_EQ(IndicesOf(2).size(), 10u);
  EXPECT_LT(Computed(1).size(), 90u);
  EXPECT_GT(Computed(2).size(), Computed(1).size());
}

// An arena that is another one than was said holds nothing.
TEST_F(SchedulerLossTest, ANodeThatTakesANewArenaHasNothing) {
  SchedulerOptions options = Cut(2, 128);
  Make(options);
  ASSERT_TRUE(Submit(1, 60, 70).ok());
  Steps(4);
  in_flight_.clear();
  in_rows_.clear();
  in_chunks_.clear();
  scheduler_->StartEpoch(++epoch_, options.memory_nodes, {}, events_);
  scheduler_->SetArenas({77, 78});
  EXPECT_EQ(scheduler_->kv().SpansKept(), 0u);
  RunAll();
  EXPECT_GE(Computed(1).size(), 60u);
}

TEST_F(SchedulerLossTest, NothingIsKeptWhereThatIsOffOrPromptsHaveLanesOfTheirOwn) {
  for (const bool off : {true, false}) {
    SchedulerOptions options = Cut(2, 128);
    options.prefix_cache = !off;
    Make(options);
    events_ = {};
    ASSERT_TRUE(Submit(1, 60, 70).ok());
    Steps(4);
    in_flight_.clear();
    scheduler_->StartEpoch(++epoch_, options.memory_nodes, {}, events_,
                           {.replicas = off ? 0u : 1u, .each = 1});
    EXPECT_EQ(scheduler_->kv().SpansKept(), 0u);
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
  }
}

// Who has lost nothing goes on at once: prompts of the others come behind it, whatever the queue
// is.
TEST_F(SchedulerLossTest, WhoHasLostNothingJoinsFirst) {
  SchedulerOptions options = Cut(2, 600);
  options.span_tokens = 0;
  options.scratch_tokens = 128;
  options.rows_max = 64;
  Make(options);
  constexpr plan::SequenceId kCount = 6;
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    SubmitApart(id, 90, 120);
  }
  std::map<plan::SequenceId, uint32_t> node;
  for (int i = 0; i < 100 && IndicesOf(kCount).empty(); ++i) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SequenceJoin& join : plan.joins) {
        node[join.id] = join.memory_node;
      }
    }
    StepDone();
  }
  ASSERT_THAT(node, SizeIs(kCount));
  std::set<plan::SequenceId> stay;
  for (const auto& [id, lives_on] : node) {
    ASSERT_FALSE(IndicesOf(id).empty()) << id;
    if (lives_on == 0) {
      stay.insert(id);
    }
  }
  ASSERT_GT(stay.size(), 1u);
  ASSERT_LT(stay.size(), kCount);
  ASSERT_FALSE(stay.contains(kCount) && stay.contains(1)) << "then the queue tells nothing";

  Lose(options, {"1"});
  std::set<plan::SequenceId> joined;
  for (const plan::StepPlan& plan : Plan()) {
    EXPECT_TRUE(plan.chunks.empty());
    for (const plan::SequenceJoin& join : plan.joins) {
      joined.insert(join.id);
    }
  }
  EXPECT_EQ(joined, stay);
  const size_t before = events_.tokens.size();
  ASSERT_TRUE(StepDone());
  EXPECT_EQ(events_.tokens.size(), before + stay.size()) << "each has its next token";
  RunAll();
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    EXPECT_THAT(IndicesOf(id), SizeIs(30)) << id;
  }
}

// Steps that are planned ahead have no prompt before each survivor has its next token.
TEST_F(SchedulerLossTest, PromptsWaitUntilSurvivorsHaveTheirNextToken) {
  SchedulerOptions options = Cut(2, 600);
  options.span_tokens = 0;
  options.lanes = 2;
  options.plan_ahead = 2;
  Make(options);
  constexpr plan::SequenceId kCount = 4;
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    SubmitApart(id, 50, 100);
  }
  std::map<plan::SequenceId, uint32_t> node;
  for (int i = 0; i < 30; ++i) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SequenceJoin& join : plan.joins) {
        node[join.id] = join.memory_node;
      }
    }
    StepDone();
  }
  std::map<plan::SequenceId, size_t> before;
  for (const auto& [id, lives_on] : node) {
    ASSERT_FALSE(IndicesOf(id).empty()) << id;
    if (lives_on == 0) {
      before[id] = IndicesOf(id).size();
    }
  }
  ASSERT_GT(before.size(), 1u);
  ASSERT_LT(before.size(), kCount);

  Lose(options, {"1"});
  bool chunks = false;
  for (int i = 0; i < 20 && !chunks; ++i) {
    for (const plan::StepPlan& plan : Plan()) {
      chunks |= !plan.chunks.empty();
    }
    for (const auto& [id, tokens] : before) {
      EXPECT_TRUE(!chunks || IndicesOf(id).size() > tokens) << id;
    }
    StepDone();
  }
  EXPECT_TRUE(chunks);
  RunAll();
}

// A survivor whose path has no lane waits until others of its path have one to spare. That takes
// somebody of the queue to ask for it, so that survivors with answers to go on with keep nobody
// waiting.
TEST_F(SchedulerLossTest, ASurvivorWithoutALaneKeepsNobodyWaiting) {
  SchedulerOptions options = Cut(2, 600);
  options.span_tokens = 0;
  options.lanes = 2;
  Make(options);
  using plan::AttentionPath;
  std::map<plan::SequenceId, AttentionPath> paths;
  for (plan::SequenceId id = 1; id <= 10; ++id) {
    paths[id] = id <= 4 || id > 8 ? AttentionPath::kRemote : AttentionPath::kFetch;
    SequenceRequest request = Request(id, 20 + static_cast<uint32_t>(id), 128);
    request.cache_salt = absl::StrCat(id);
    request.path = paths[id];
    ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  }
  Steps(16);
  std::map<plan::SequenceId, size_t> before;
  std::map<AttentionPath, int> stay;
  const uint32_t lost = slots_[1][0].first;  // The first in service order.
  for (const auto& [id, path] : paths) {
    before[id] = IndicesOf(id).size();
    ASSERT_GT(before[id], 0u) << id;
    stay[path] += slots_[id][0].first != lost;
  }
  ASSERT_GE(stay[AttentionPath::kRemote], 3) << "two for lanes, one behind those of the other path";
  ASSERT_GE(stay[AttentionPath::kFetch], 1);
  Lose(options, {absl::StrCat(lost)});
  PlanAndLook();
  int joined = 0;
  for (const auto& [id, path] : paths) {
    joined += !Computed(id).empty();
  }
  EXPECT_EQ(joined, stay[AttentionPath::kRemote]) << "the second path has no lane";
  Steps(40);
  for (const auto& [id, tokens] : before) {
    EXPECT_GT(IndicesOf(id).size(), tokens) << id;
  }
  EXPECT_TRUE(scheduler_->HasWork()) << "nobody has ended";
  RunAll();
}

// They take room for the tokens to come from the last one in service order, who is computed again,
// and not from the next.
TEST_F(SchedulerLossTest, SurvivorsTakeRoomFromTheLastOfThem) {
  SchedulerOptions options = Cut(1, 262);
  options.span_tokens = 0;
  options.admission_headroom = 16;
  Make(options);
  constexpr plan::SequenceId kCount = 4;
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    SubmitApart(id, 20, 100);
  }
  for (int i = 0; i < 200 && IndicesOf(kCount).size() < 40; ++i) {
    Steps(1);
  }
  ASSERT_GE(IndicesOf(kCount).size(), 40u);
  ASSERT_EQ(scheduler_->Stats().preemptions, 0u);
  Lose(options, {});
  Steps(1);
  for (plan::SequenceId id = 1; id < kCount; ++id) {
    EXPECT_THAT(Computed(id), SizeIs(1)) << id;
  }
  EXPECT_TRUE(Computed(kCount).empty()) << "there is no room for it";
  RunAll();
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    EXPECT_THAT(IndicesOf(id), SizeIs(80)) << id;
  }
}

// Another epoch ends before survivors of the last one have their token.
TEST_F(SchedulerLossTest, NothingIsComputedAgainWhereEpochsFollowEachOther) {
  for (const KvForm form : {KvForm::kBF16, KvForm::kInt8}) {
    SchedulerOptions options = Int8(1, 600);
    options.kv = form;
    options.int8_tails = form == KvForm::kInt8 ? options.running_max : 0;
    Make(options);
    events_ = {};
    SubmitApart(1, 25, 80);
    SubmitApart(2, 77, 130);
    Steps(12);
    std::map<plan::SequenceId, uint32_t> stored = {{1, 25}, {2, 77}};
    for (auto& [id, tokens] : stored) {
      ASSERT_FALSE(IndicesOf(id).empty()) << id;
      tokens += static_cast<uint32_t>(IndicesOf(id).size()) - 1;
    }
    Lose(options, {});
    PlanAndLook();
    Lose(options, {});
    PlanAndLook();
    for (const auto& [id, tokens] : stored) {
      EXPECT_EQ(Computed(id), std::set<uint32_t>{tokens}) << id;
    }
    StepDone();
    RunAll();
  }
}

// Whose node has stayed computes the one token that was to come, whatever lies behind its last
// whole block.
TEST_F(SchedulerLossTest, NothingOfASurvivorIsComputedAgain) {
  SchedulerOptions options = Cut(2, 600);
  options.span_tokens = 0;
  Make(options);
  constexpr plan::SequenceId kCount = 4;
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    SubmitApart(id, 30 + 5 * static_cast<uint32_t>(id), 100);
  }
  Steps(25);
  std::map<plan::SequenceId, uint32_t> stored;
  for (plan::SequenceId id = 1; id <= kCount; ++id) {
    ASSERT_FALSE(IndicesOf(id).empty()) << id;
    stored[id] = static_cast<uint32_t>(30 + 5 * id + IndicesOf(id).size()) - 1;
  }
  const auto before = slots_;
  Lose(options, {"1"});
  RunAll();
  uint32_t survivors = 0;
  for (const auto& [id, tokens] : stored) {
    if (before.at(id)[0].first == 0) {
      ++survivors;
      for (uint32_t token = 0; token < tokens; ++token) {
        EXPECT_FALSE(Computed(id).contains(token)) << id << ": " << token;
        EXPECT_EQ(slots_[id][token], before.at(id)[token]) << id << ": " << token;
      }
    }
    EXPECT_THAT(IndicesOf(id), SizeIs(70 - 5 * id)) << id;
  }
  EXPECT_GT(survivors, 0u);
  EXPECT_LT(survivors, kCount);
}

// Open blocks lie in tails, and slots of whole blocks stay as they are.
TEST_F(SchedulerLossTest, NothingOfASurvivorInInt8IsComputedAgain) {
  SchedulerOptions options = Int8(2, 600);
  Make(options);
  std::map<plan::SequenceId, uint32_t> stored;
  for (plan::SequenceId id = 1; id <= 4; ++id) {
    const auto tokens = static_cast<uint32_t>(30 * id);
    SubmitApart(id, tokens, tokens + 60);
    stored[id] = tokens - 1;
  }
  Steps(25);
  const auto before = slots_;
  for (auto& [id, tokens] : stored) {
    ASSERT_FALSE(IndicesOf(id).empty()) << id;
    tokens += static_cast<uint32_t>(IndicesOf(id).size());
  }
  Lose(options, {});
  RunAll();
  for (const auto& [id, tokens] : stored) {
    EXPECT_EQ(Computed(id), std::set<uint32_t>{tokens}) << id;
    for (uint32_t token = 0; token < tokens - tokens % kInt8BlockTokens; ++token) {
      EXPECT_EQ(slots_[id][token], before.at(id)[token]) << id << ": " << token;
    }
    EXPECT_THAT(IndicesOf(id), SizeIs(60)) << id;
  }
}

// It goes to the other one's node, which is faster now and has the same prompt. That node may apply
// its join first, and give it the tail which the other one goes on from.
TEST_F(SchedulerLossTest, WhoseTailIsOnAnotherNodeWaitsForTheTokenOfWhoGoesOnFromIts) {
  SchedulerOptions options = Int8(2, 600);
  options.memory_nodes[0].bandwidth_bytes_per_second = 100;
  Make(options);
  ASSERT_TRUE(Submit(1, 70, 120).ok());
  Steps(5);
  scheduler_->SetBandwidths({1, 100});
  ASSERT_TRUE(Submit(2, 70, 120).ok());
  Steps(10);
  for (const plan::SequenceId id : {1, 2}) {
    ASSERT_FALSE(IndicesOf(id).empty()) << id;
    ASSERT_EQ(slots_[id][0].first, id - 1) << "they are on nodes of their own";
  }
  Lose(options, {});
  PlanAndLook();
  EXPECT_THAT(Computed(1), SizeIs(1));
  EXPECT_TRUE(Computed(2).empty());
  StepDone();
  RunAll();
  EXPECT_EQ(slots_[2][0].first, 0u);
  for (const plan::SequenceId id : {1, 2}) {
    EXPECT_THAT(IndicesOf(id), SizeIs(50)) << id;
  }
}

// Steps under way may have filled the block of one, whose rows then wait for the others' tokens.
TEST_F(SchedulerLossTest, RowsOfALostOpenBlockWaitForTheOtherSurvivors) {
  SchedulerOptions options = Int8(1, 600);
  options.plan_ahead = 2;
  Make(options);
  constexpr plan::SequenceId kLost = 1;
  for (plan::SequenceId id = 1; id <= 3; ++id) {
    SubmitApart(id, 20 + 10 * static_cast<uint32_t>(id), 120);
  }
  for (int i = 0; i < 100 && 30 + IndicesOf(kLost).size() < kInt8BlockTokens; ++i) {
    Steps(1);
  }
  ASSERT_EQ(30 + IndicesOf(kLost).size(), kInt8BlockTokens)
      << "all but one of its tokens are known";
  std::map<plan::SequenceId, size_t> before;
  for (const plan::SequenceId id : {2, 3}) {
    before[id] = IndicesOf(id).size();
    ASSERT_GT(before[id], 0u) << id;
  }
  Lose(options, {});
  for (int i = 0; i < 10 && in_rows_[kLost].empty() && in_chunks_[kLost].empty(); ++i) {
    PlanAndLook();
    const bool begun = !Computed(kLost).empty();
    for (const auto& [id, tokens] : before) {
      EXPECT_TRUE(!begun || IndicesOf(id).size() > tokens) << id;
    }
    StepDone();
  }
  RunAll();
  EXPECT_EQ(Computed(kLost).size(), kInt8BlockTokens);
  for (const auto& [id, tokens] : before) {
    EXPECT_THAT(Computed(id), SizeIs(1)) << id;
  }
}

// A prompt goes on behind the chunks that were stored when the epoch ended.
TEST_F(SchedulerLossTest, StoredChunksOfAPromptAreNotComputedAgain) {
  SchedulerOptions options = Cut(1, 600);
  options.span_tokens = 0;
  options.sequence_tokens_max = 400;
  options.chunk_tokens = 23;
  options.scratch_tokens = 512;
  Make(options);
  ASSERT_TRUE(Submit(1, 300, 320).ok());
  Steps(3);
  const std::set<uint32_t> computed = Computed(1);
  ASSERT_GT(computed.size(), 23u);
  ASSERT_LT(computed.size(), 300u);
  Lose(options, {});
  RunAll();
  for (const uint32_t token : computed) {
    EXPECT_FALSE(Computed(1).contains(token)) << token;
  }
  EXPECT_EQ(Computed(1).size() + computed.size(), 300u);
  EXPECT_THAT(IndicesOf(1), SizeIs(20));
}

}  // namespace
}  // namespace lamina::core

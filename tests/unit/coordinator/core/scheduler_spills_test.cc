// SPDX-License-Identifier: Apache-2.0
//
// Sequences that go to the spill tier of their memory node and come back.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "common/kv_form.h"
#include "coordinator/core/out_of_slots.h"
#include "tests/unit/coordinator/core/scheduler_fixture.h"

namespace lamina::core {
namespace {

class SchedulerSpillsTest : public SchedulerTest {};

// The second of two sequences that grow beyond all slots goes to the tier at some 80 tokens. What
// it computes when it is back is its last token, which was never an input.
TEST_F(SchedulerSpillsTest, NothingOfASpilledSequenceIsComputedAgain) {
  for (const KvForm form : {KvForm::kBF16, KvForm::kInt8}) {
    SchedulerOptions options = SmallOptions(/*slots=*/160);
    options.kv = form;
    options.int8_tails = form == KvForm::kInt8 ? options.running_max : 0;
    options.strategies.out_of_slots = MakeSpillLast;
    options.memory_nodes[0].spill = {
        .blocks = 16,
        .rates = {.write_bytes_per_second = 10, .read_bytes_per_second = 10, .bytes_per_token = 1}};
    Make(options);
    events_ = {};
    ASSERT_TRUE(Submit(1, 40, 120).ok());
    ASSERT_TRUE(Submit(2, 41, 120).ok());
    std::map<plan::SequenceId, uint32_t> back;  // And how many tokens they joined with.
    uint32_t written = 0;
    uint32_t computed = 0;
    for (int i = 0; scheduler_->HasWork() && i < 1000; ++i) {
      for (const plan::StepPlan& plan : Plan()) {
        for (const plan::SpillOut& spill : plan.spills_out) {
          written = spill.tokens;
          scheduler_->OnSpilled({.spill = spill.spill, .ok = true});
        }
        for (const plan::SpillIn& spill : plan.spills_in) {
          back[spill.sequence] = static_cast<uint32_t>(joins_[spill.sequence].tokens.size());
          EXPECT_EQ(spill.tokens, written);
          EXPECT_EQ(spill.tokens + 1, back[spill.sequence]);
          scheduler_->OnSpilled({.spill = spill.spill, .ok = true});
        }
        for (const plan::DecodeRow& row : plan.rows) {
          computed += back.contains(row.sequence) && row.position < back[row.sequence] ? 1 : 0;
        }
        for (const plan::PrefillChunk& chunk : plan.chunks) {
          EXPECT_FALSE(back.contains(chunk.sequence));
        }
      }
      StepDone();
    }
    EXPECT_FALSE(scheduler_->HasWork());
    EXPECT_EQ(scheduler_->Stats().spills.sequences_out, 1u);
    EXPECT_EQ(scheduler_->Stats().spills.sequences_in, 1u);
    EXPECT_EQ(scheduler_->Stats().preemptions, 1u);
    EXPECT_NE(written % kInt8BlockTokens, 0u) << "it has no open block";
    EXPECT_EQ(computed, 1u);
    EXPECT_EQ(IndicesOf(2).size(), 79u);
  }
}

// One of two sequences with spans of 32 tokens on both nodes goes to their tiers, and comes back to
// the nodes that it was on.
TEST_F(SchedulerSpillsTest, SpansComeBackToTheirNodes) {
  SchedulerOptions options = SmallOptions(/*slots=*/96);
  options.span_tokens = 32;
  options.strategies.out_of_slots = MakeSpillLast;
  options.memory_nodes[0].spill = {
      .blocks = 16,
      .rates = {.write_bytes_per_second = 10, .read_bytes_per_second = 10, .bytes_per_token = 1}};
  options.memory_nodes.push_back(options.memory_nodes[0]);
  options.memory_nodes[1].name = "b";
  Make(options);
  events_ = {};
  ASSERT_TRUE(Submit(1, 60, 128).ok());
  ASSERT_TRUE(Submit(2, 61, 128).ok());
  std::map<plan::SequenceId, std::vector<uint32_t>> nodes;  // By token.
  std::map<plan::SequenceId, std::vector<uint32_t>> before;
  for (int i = 0; scheduler_->HasWork() && i < 1000; ++i) {
    for (const plan::StepPlan& plan : Plan()) {
      for (const plan::SpillOut& spill : plan.spills_out) {
        const std::vector<uint32_t>& its = before[spill.sequence] = nodes[spill.sequence];
        EXPECT_EQ(its.size(), spill.tokens);
        EXPECT_GT(std::count(its.begin(), its.end(), 0u), 0) << "it is on both";
        EXPECT_GT(std::count(its.begin(), its.end(), 1u), 0) << "it is on both";
      }
      for (const plan::SequenceJoin& join : plan.joins) {
        nodes[join.id].clear();
      }
      for (const plan::SlotAllocation& allocation : plan.allocations) {
        std::vector<uint32_t>& its = nodes[allocation.sequence];
        its.insert(its.end(), allocation.extent.tokens, allocation.memory_node);
      }
      for (const plan::SpillIn& spill : plan.spills_in) {
        std::vector<uint32_t> again = nodes[spill.sequence];
        EXPECT_EQ(again.size(), spill.tokens + 1u);
        again.pop_back();
        EXPECT_EQ(again, before[spill.sequence]);
      }
      for (int node = 0; node < 2; ++node) {
        for (const plan::SpillOut& spill : plan.spills_out) {
          scheduler_->OnSpilled({.spill = spill.spill, .ok = true});
        }
        for (const plan::SpillIn& spill : plan.spills_in) {
          scheduler_->OnSpilled({.spill = spill.spill, .ok = true});
        }
      }
    }
    StepDone();
  }
  EXPECT_FALSE(scheduler_->HasWork());
  EXPECT_GT(scheduler_->Stats().spills.sequences_out, 0u);
  EXPECT_GT(scheduler_->Stats().spills.sequences_in, 0u);
  EXPECT_EQ(scheduler_->Stats().spills.stored, 0u);
  EXPECT_EQ(IndicesOf(1).size(), 68u);
  EXPECT_EQ(IndicesOf(2).size(), 67u);
}

}  // namespace
}  // namespace lamina::core

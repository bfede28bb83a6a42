// SPDX-License-Identifier: Apache-2.0
//
// A scheduler with nodes that answer every step in order: each row and each last chunk samples the
// token 100 + its position, unless the test says otherwise.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/scheduler.h"

namespace lamina::core {

inline SchedulerOptions SmallOptions(uint32_t slots = 1000) {
  SchedulerOptions options{.rows_max = 16,
                           .step_tokens_max = 64,
                           .chunk_tokens = 32,
                           .scratch_tokens = 256,
                           .sequence_tokens_max = 128,
                           .admission_headroom = 0};
  options.memory_nodes = {{.name = "a", .slots = slots, .bandwidth_bytes_per_second = 1}};
  return options;
}

class SchedulerTest : public testing::Test {
 protected:
  void Make(const SchedulerOptions& options, bool priority = false) {
    scheduler_ = std::make_unique<Scheduler>(
        options, priority ? MakePriorityOrder() : MakeFirstComeFirstServed());
  }

  static SequenceRequest Request(plan::SequenceId id, uint32_t prompt, uint32_t tokens_max) {
    SequenceRequest request{.id = id, .tokens_max = tokens_max};
    request.prompt.assign(prompt, 5);
    return request;
  }

  absl::Status Submit(plan::SequenceId id, uint32_t prompt, uint32_t tokens_max) {
    return scheduler_->Submit(Request(id, prompt, tokens_max));
  }

  // Plans, and returns what was planned now.
  std::vector<plan::StepPlan> Plan() {
    std::vector<plan::StepPlan> plans;
    scheduler_->Plan(plans);
    for (const plan::StepPlan& plan : plans) {
      for (const plan::SequenceJoin& join : plan.joins) {
        joins_[join.id] = join;
      }
      in_flight_.push_back(plan);
    }
    return plans;
  }

  plan::StepResult Answer(const plan::StepPlan& plan) {
    plan::StepResult result{.epoch = plan.epoch, .lane = plan.lane, .step = plan.step};
    for (const plan::DecodeRow& row : plan.rows) {
      const bool behind = row.position + 1 < joins_[row.sequence].tokens.size();
      if (joins_[row.sequence].score && behind) {
        result.scores.push_back(
            {.sequence = row.sequence, .first_token = row.position + 1, .logprobs = {-1.0f}});
      }
      if (joins_[row.sequence].score || behind) {
        continue;  // It is a prompt's, and not its last.
      }
      Sample(row.sequence, row.position + 1, result);
    }
    for (const plan::PrefillChunk& chunk : plan.chunks) {
      const uint32_t end = chunk.first_token + chunk.tokens;
      if (!joins_[chunk.sequence].score) {
        for (const auto& [id, join] : joins_) {
          if (chunk.last && (id == chunk.sequence || join.parent == chunk.sequence)) {
            Sample(id, end, result);
          }
        }
        continue;
      }
      const uint32_t scored = chunk.tokens - (chunk.last ? 1 : 0);
      result.scores.push_back({.sequence = chunk.sequence,
                               .first_token = chunk.first_token + 1,
                               .logprobs = std::vector<float>(scored, -1.0f)});
    }
    return result;
  }

  // Answers the oldest step; false when there is none.
  bool StepDone() {
    if (in_flight_.empty()) {
      return false;
    }
    const absl::Status status = scheduler_->OnStepDone(Answer(in_flight_.front()), events_);
    in_flight_.pop_front();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(scheduler_->Audit().ok()) << scheduler_->Audit();
    return true;
  }

  // Answers the oldest step of this lane; false when there is none.
  bool StepDoneOf(uint32_t lane) {
    const auto step = std::find_if(in_flight_.begin(), in_flight_.end(),
                                   [&](const plan::StepPlan& plan) { return plan.lane == lane; });
    if (step == in_flight_.end()) {
      return false;
    }
    std::rotate(in_flight_.begin(), step, step + 1);
    return StepDone();
  }

  void RunUntilIdle() {
    int steps = 0;
    do {
      Plan();
      ASSERT_LT(++steps, 10'000);
    } while (StepDone());
    EXPECT_FALSE(scheduler_->HasWork());
  }

  // The generated positions of a sequence, in the order of their events.
  std::vector<uint32_t> IndicesOf(plan::SequenceId id) const {
    std::vector<uint32_t> indices;
    for (const TokenEvent& event : events_.tokens) {
      if (event.sequence == id) {
        indices.push_back(event.index);
      }
    }
    return indices;
  }

  const FinishEvent* EndOf(plan::SequenceId id) const {
    for (const FinishEvent& event : events_.finished) {
      if (event.sequence == id) {
        return &event;
      }
    }
    return nullptr;
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::deque<plan::StepPlan> in_flight_;
  std::map<plan::SequenceId, plan::SequenceJoin> joins_;
  std::map<std::pair<plan::SequenceId, uint32_t>, TokenId> tokens_;  // Instead of 100 + position.
  Events events_;

 private:
  void Sample(plan::SequenceId id, uint32_t position, plan::StepResult& result) {
    const auto chosen = tokens_.find({id, position});
    std::vector<plan::TokenLogprob> top;
    for (int32_t i = 0; i < joins_[id].sampling.logprobs; ++i) {
      top.push_back({.token = 200 + i, .logprob = -1.0f - 0.25f * static_cast<float>(i)});
    }
    result.tokens.push_back(
        {.sequence = id,
         .position = position,
         .token = chosen == tokens_.end() ? static_cast<TokenId>(100 + position) : chosen->second,
         .top = std::move(top)});
  }
};

}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
//
// SimAuditor: what clients asked for and what they saw. Knows requests and events only, computes
// the right answer itself, and names the first thing that a client could complain about.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/scheduler.h"

namespace lamina::sim {

class SimAuditor {
 public:
  // `window`: of the model; 0: its tokens follow from all before them. A sequence that is alone may
  // need so many slots `more`, since those behind the window are given up by blocks.
  SimAuditor(uint32_t window, uint32_t more) : window_(window), more_(more) {}

  void Submitted(const core::SequenceRequest& request);
  void Cancelled(plan::SequenceId sequence);
  // A plan that was made now: who has cancelled has no part in it. `scheduler` says for whom the
  // sequences of a beam search work.
  void Planned(const plan::StepPlan& plan, const core::Scheduler& scheduler);
  // A sequence joins behind so many tokens that it need not compute; the first time counts.
  void Joined(const plan::SequenceJoin& join, uint32_t cached_tokens);
  // A row of one sequence reads K and V that another one has stored: their requests have one salt.
  void ReadOfOthers(plan::SequenceId reader, plan::SequenceId maker);
  // Nodes were lost; the longest sequence that those left can hold takes so many slots. What this
  // ends with an error is told next.
  void NodesLost(const std::vector<std::string>& names, uint64_t slots_of_longest);
  void Saw(const core::Events& events);
  // Once everything has settled: each request must have ended.
  void AtEnd();

  const std::string& failure() const { return failure_; }

 private:
  struct Client {
    core::SequenceRequest request;
    std::vector<TokenId> expected;    // A beam search's answer: prompt and answer.
    std::vector<TokenId> tokens;      // Prompt and what was shown.
    std::vector<std::string> losses;  // Since the last token.
    std::optional<uint32_t> cached_tokens;
    bool scored = false;
    bool ended = false;
    bool cancelled = false;
  };
  // The request that a sequence works for.
  plan::SequenceId RequestOf(plan::SequenceId sequence) const;
  // Whether nobody waits any more for what this sequence works for.
  bool IsCancelled(plan::SequenceId sequence) const;
  void SearchedBeams(const core::SequenceRequest& request);
  void SawToken(const core::TokenEvent& event);
  void SawScore(const core::ScoreEvent& event);
  void SawEnd(const core::FinishEvent& event);
  void SawError(const Client& client, const core::FinishEvent& event);
  void Fail(plan::SequenceId sequence, const std::string& what);

  std::map<plan::SequenceId, Client> clients_;
  std::map<plan::SequenceId, plan::SequenceId> works_for_;  // Requests of those that have joined.
  const uint32_t window_;
  const uint32_t more_;
  uint64_t slots_of_longest_ = 0;  // At the last loss.
  bool just_lost_ = false;         // Since the last events.
  std::string failure_;
};

}  // namespace lamina::sim

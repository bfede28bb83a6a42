// SPDX-License-Identifier: Apache-2.0
//
// SimAuditor: what clients asked for and what they saw. Knows requests and events only, computes
// the right answer itself, and names the first thing that a client could complain about.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/core/scheduler.h"

namespace lamina::sim {

class SimAuditor {
 public:
  void Submitted(const core::SequenceRequest& request);
  void Cancelled(core::SequenceId sequence);
  // `nodes_lost`: whether sequences may end with an error now.
  void Saw(const core::Events& events, bool nodes_lost);
  // Once everything has settled: each request must have ended.
  void AtEnd();

  const std::string& failure() const { return failure_; }

 private:
  struct Client {
    core::SequenceRequest request;
    std::vector<TokenId> tokens;  // Prompt and what was shown.
    bool scored = false;
    bool ended = false;
  };
  void SawToken(const core::TokenEvent& event);
  void SawScore(const core::ScoreEvent& event);
  void SawEnd(const core::FinishEvent& event, bool nodes_lost);
  void Fail(core::SequenceId sequence, const std::string& what);

  std::map<core::SequenceId, Client> clients_;
  std::string failure_;
};

}  // namespace lamina::sim

// SPDX-License-Identifier: Apache-2.0
//
// ResumedSink: between the engine and the answer to a request that a coordinator goes on with after
// a restart. A request that comes to a cluster which does not serve, or stops serving it, waits,
// and is given to the engine again behind all tokens that there are by then. What has been passed
// on once is not passed on again.
//
// A request that has run into kLossesMax such stops without a new token between them ends: it may
// be what brings the nodes down, as in core/loss_history.h.
//
// Threading: functions On...() in the engine's thread; Give() by one thread at a time; the others
// any.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/loss_history.h"
#include "coordinator/request.h"

namespace lamina::coordinator {

class ResumedSink final : public RequestSink {
 public:
  static constexpr size_t kLossesMax = core::LossHistory::kLossesMax;

  enum class State : uint8_t {
    kWaits,    // The engine does not have it.
    kGiven,    // The engine has it. It waits again where the cluster stops serving it.
    kSettled,  // It does not wait again: what the engine says is passed on.
  };

  // `generated`: of each choice what there is; empty: the request begins anew whenever it is given.
  ResumedSink(std::shared_ptr<RequestSink> sink, std::vector<GeneratedChoice> generated);

  State state() const { return state_; }
  // The engine is about to be given the request: behind these tokens (GenerateSpec::generated).
  // Requires: it waits.
  std::vector<GeneratedChoice> Give();
  // It does not wait again. Returns what it was: one that waited is told nothing by the engine.
  State Settle() { return state_.exchange(State::kSettled); }

  void OnAccepted(const std::string& request_id) override;
  void OnOutput(ChoiceOutput output) override;
  void OnProgress(uint32_t tokens_done) override { sink_->OnProgress(tokens_done); }
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override {
    sink_->OnScores(std::move(logprobs), std::move(ranks));
  }
  void OnDone(const absl::Status& status) override;

 private:
  struct Choice {
    GeneratedChoice generated;
    size_t told = 0;    // Tokens that the engine has told since it was given the request last,
    size_t passed = 0;  // and those that were passed on.
    bool end_passed = false;
  };

  const std::shared_ptr<RequestSink> sink_;
  std::atomic<State> state_ = State::kWaits;
  // Whoever has the request: the engine's thread while it is kGiven.
  std::vector<Choice> choices_;
  bool accepted_ = false;  // Since it was given last.
  size_t losses_ = 0;      // Since the last new token.
};

}  // namespace lamina::coordinator

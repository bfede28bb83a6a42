// SPDX-License-Identifier: Apache-2.0
//
// BestChoices: a sink that keeps all choices of a request until it ends, and then passes on those
// of the highest mean log-probability, best first.
//
// Threading: as RequestSink.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/request.h"

namespace lamina::coordinator {

class BestChoices final : public RequestSink {
 public:
  BestChoices(std::shared_ptr<RequestSink> sink, uint32_t passed)
      : sink_(std::move(sink)), passed_(passed) {}

  void OnAccepted(const std::string& request_id) override { sink_->OnAccepted(request_id); }
  void OnOutput(ChoiceOutput output) override;
  void OnProgress(uint32_t tokens_done) override { sink_->OnProgress(tokens_done); }
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override {
    sink_->OnScores(std::move(logprobs), std::move(ranks));
  }
  void OnDone(const absl::Status& status) override;

 private:
  const std::shared_ptr<RequestSink> sink_;
  const uint32_t passed_;
  std::map<uint32_t, ChoiceOutput> choices_;  // By index.
};

}  // namespace lamina::coordinator

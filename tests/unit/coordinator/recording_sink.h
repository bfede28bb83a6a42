// SPDX-License-Identifier: Apache-2.0
//
// RecordingSink: what a request was told, for tests to look at.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/request.h"

namespace lamina::coordinator {

struct RecordingSink final : public RequestSink {
  void OnAccepted(const std::string& request_id) override { accepted.push_back(request_id); }
  void OnOutput(ChoiceOutput output) override {
    for (const plan::SampledToken& token : output.tokens) {
      tokens.push_back(token.token);
    }
    if (output.finish != plan::FinishReason::kNone) {
      ended.push_back(output.index);
    }
  }
  void OnProgress(uint32_t) override {}
  void OnScores(std::vector<float> values, std::vector<plan::TokenRank>) override {
    logprobs = std::move(values);
  }
  void OnDone(const absl::Status& status) override { done.push_back(status); }

  std::vector<std::string> accepted;
  std::vector<TokenId> tokens;  // Those of all choices.
  std::vector<uint32_t> ended;  // Choices, as they end.
  std::vector<float> logprobs;
  std::vector<absl::Status> done;
};

// An output of a choice with these tokens.
inline ChoiceOutput OutputOf(const std::vector<TokenId>& ids,
                             plan::FinishReason finish = plan::FinishReason::kNone,
                             uint32_t choice = 0) {
  ChoiceOutput output{.index = choice, .finish = finish};
  for (const TokenId id : ids) {
    output.tokens.push_back({.token = id});
  }
  return output;
}

}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
//
// A table of requests and who hears of it.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "coordinator/request_table.h"
#include "tests/support/id_tokenizer.h"

namespace lamina::coordinator {

inline constexpr uint32_t kSequenceTokensMax = 100;

class ManualClock final : public Clock {
 public:
  Nanos Now() const override { return now; }
  Nanos now = Seconds(5);
};

// Keeps everything that it hears.
struct RecordingSink final : RequestSink {
  void OnAccepted(const std::string& id) override { request_id = id; }
  void OnOutput(ChoiceOutput output) override {
    text += output.text;
    outputs.push_back(std::move(output));
  }
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank>) override {
    scores = std::move(logprobs);
  }
  void OnProgress(uint32_t tokens_done) override { progress.push_back(tokens_done); }
  void OnDone(const absl::Status& end) override { done.push_back(end); }

  std::string request_id;
  std::string text;
  std::vector<ChoiceOutput> outputs;
  std::vector<float> scores;
  std::vector<uint32_t> progress;
  std::vector<absl::Status> done;
};

class RequestTableTest : public ::testing::Test {
 protected:
  // Takes a request in; it must be a good one.
  std::vector<core::SequenceRequest> Admit(const GenerateSpec& spec, uint64_t key = 1) {
    auto admitted = table_.Admit(spec, key, sink_);
    EXPECT_TRUE(admitted.ok()) << admitted.status();
    return *std::move(admitted);
  }

  absl::Status Refusal(const GenerateSpec& spec) {
    const absl::Status status = table_.Admit(spec, 9, sink_).status();
    EXPECT_EQ(table_.KeyOf(spec.request_id), spec.request_id == "used" ? 1u : 0u);
    return status;
  }

  // The scheduler says that a sequence got a token.
  std::vector<plan::SequenceId> Token(plan::SequenceId sequence, TokenId token,
                                      plan::FinishReason finish = plan::FinishReason::kNone) {
    core::Events events;
    events.tokens.push_back(
        {.sequence = sequence, .token = {.sequence = sequence, .token = token, .finish = finish}});
    if (finish != plan::FinishReason::kNone) {
      events.finished.push_back({.sequence = sequence, .reason = finish});
    }
    return table_.Deliver(events);
  }

  const test_support::IdTokenizer tokenizer_{1000, {999, 998}};
  ManualClock clock_;
  RequestTable table_{tokenizer_, clock_, kSequenceTokensMax};
  const std::shared_ptr<RecordingSink> sink_ = std::make_shared<RecordingSink>();
};

}  // namespace lamina::coordinator

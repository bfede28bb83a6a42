// SPDX-License-Identifier: Apache-2.0
//
// KeptAnswer: the answer to a request that a coordinator has gone on with after a restart, kept
// until its client has come back, who says how much of it has been received, and passed on from
// there. Scores are received as a whole, or not at all.
//
// Threading: any; one call of the engine's thread at a time.
// Limits: at most one entry per token of the request is kept, and the scores of one prompt.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/fnv1a.h"
#include "coordinator/request.h"

namespace lamina::coordinator {

// What a client has of a choice.
struct ReceivedTokens {
  uint32_t count = 0;
  std::optional<uint64_t> digest;  // FNV-1a of their ids (Fnv1a::AddWord()); nothing: not checked.
};

class KeptAnswer final : public RequestSink {
 public:
  // `cancel` ends the request at the engine, and does not wait.
  KeptAnswer(std::string id, std::function<void()> cancel)
      : id_(std::move(id)), cancel_(std::move(cancel)) {}

  // Passes on what the client does not have, now and from now on. `received` is of choices 0, 1,
  // ...; nothing was of those beyond. A client that has received what the answer does not say is
  // told so, and the request cancelled. `gone` says whether the client has gone: who was gone
  // before the engine knew the request is cancelled then. False, and nothing happens, where
  // somebody else has come before.
  bool Connect(std::shared_ptr<RequestSink> sink, std::function<bool()> gone,
               const std::vector<ReceivedTokens>& received);
  bool connected() const;
  // Connected, and the client has gone since, or was told that it has other tokens.
  bool gone() const;

  void OnAccepted(const std::string& request_id) override;
  void OnOutput(ChoiceOutput output) override;
  void OnProgress(uint32_t tokens_done) override;
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override;
  void OnDone(const absl::Status& status) override;

 private:
  struct Scores {
    std::vector<float> logprobs;
    std::vector<plan::TokenRank> ranks;
  };
  struct Choice {
    ReceivedTokens received;
    uint32_t passed = 0;  // Tokens passed on, or over.
    Fnv1a digest;         // Those that were passed over.
  };

  // Guarded by mutex_.
  void Pass(ChoiceOutput output);
  void Refuse(uint32_t index);

  const std::string id_;
  const std::function<void()> cancel_;

  mutable std::mutex mutex_;
  std::vector<ChoiceOutput> outputs_;  // These two until somebody comes.
  std::optional<Scores> scores_;
  std::optional<absl::Status> done_;
  bool connected_ = false;
  std::shared_ptr<RequestSink> sink_;  // Null before, and once the end is told.
  std::function<bool()> gone_;
  std::vector<Choice> choices_;  // Up to the last one that was received or passed on.
};

}  // namespace lamina::coordinator

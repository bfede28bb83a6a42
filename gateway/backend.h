// SPDX-License-Identifier: Apache-2.0
//
// Backend: the coordinator as the gateway sees it: asynchronous, free of RPC types.
//
// Threading: called in the gateway's one thread, and calls back there, never from inside a call.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/client.h"

namespace lamina::gateway {

// Ends a call before its answer: the answer function is not called afterwards. Without effect once
// it has been.
using CancelFunction = std::function<void()>;

template <typename T>
using AnswerFunction = std::function<void(absl::StatusOr<T> answer)>;

// A generation in flight. Chunks come one at a time, each when it was asked for, so that a reader
// who is slow holds back only its own stream.
class Generation {
 public:
  virtual ~Generation() = default;
  // Asks for the next chunk, or the end. Not again before that has come.
  virtual void Next() = 0;
  // Ends it; neither function is called afterwards.
  virtual void Cancel() = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // Nothing comes before the first Next(). `on_done` comes once and last. Letting go of the result
  // does not cancel.
  virtual std::shared_ptr<Generation> Generate(const client::GenerateOptions& options,
                                               client::ChunkFunction on_chunk,
                                               client::DoneFunction on_done) = 0;
  // Letting go of the result does not cancel. Requires: a prompt of text or token ids.
  virtual CancelFunction Score(const client::Prompt& prompt, const client::ScoreOptions& options,
                               AnswerFunction<client::ScoreResult> done) = 0;
  // Requires: a prompt of text or messages. `chat`: of messages.
  virtual void Tokenize(const client::Prompt& prompt, const client::ChatOptions& chat,
                        bool add_special, AnswerFunction<client::TokenizeResult> done) = 0;
  virtual void Detokenize(const std::vector<TokenId>& tokens, AnswerFunction<std::string> done) = 0;
  virtual void ListModels(AnswerFunction<std::vector<client::ModelInfo>> done) = 0;
  virtual void GetStatus(AnswerFunction<client::ClusterStatus> done) = 0;
  // What the coordinator counts of requests (vllm:*), in Prometheus's text format. Soon, or an
  // error: a scrape does not wait for long.
  virtual void GetRequestMetrics(AnswerFunction<std::string> done) = 0;
};

}  // namespace lamina::gateway

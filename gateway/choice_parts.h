// SPDX-License-Identifier: Apache-2.0
//
// ChoiceParts: what one choice of an answer is made of: its text, and of chats its thought and its
// calls.
//
// Threading: the gateway's.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gateway/answer_reader.h"
#include "gateway/completion_request.h"
#include "gateway/tools/called_function.h"

namespace lamina::gateway {

class ChoiceParts {
 public:
  ChoiceParts() = default;
  // `request` must outlive it.
  explicit ChoiceParts(const CompletionRequest& request);

  // Whether there may be more than text.
  bool mixed() const { return reader_ != nullptr; }
  // What a chunk adds; thoughts only if the client wants them.
  std::vector<AnswerPart> Read(const client::Chunk& chunk);
  void Take(const AnswerPart& part);

  // Whether the model called of its own accord: as OpenAI has it, a call that the client named ends
  // with "stop".
  bool called() const;
  // Id of the latest call; empty for none.
  std::string call_id() const { return calls.empty() ? "" : calls.back().id; }

  std::string text;
  std::string reasoning;
  std::vector<CalledFunction> calls;
  uint32_t reasoning_tokens = 0;

 private:
  const CompletionRequest* request_ = nullptr;
  std::unique_ptr<AnswerReader> reader_;  // Null where the answer is text and nothing else.
};

}  // namespace lamina::gateway

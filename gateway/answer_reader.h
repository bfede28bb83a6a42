// SPDX-License-Identifier: Apache-2.0
//
// AnswerReader: parts an answer into thoughts, text and calls, as the request and the model's
// family have them.
//
// A thought stands at the beginning, in <think> and </think>; where the prompt has opened it, the
// answer begins inside. White space around the marks belongs to neither.
//
// Threading: the gateway's.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gateway/answer_part.h"

namespace lamina::gateway {

class AnswerReader final : public PartReader {
 public:
  enum class Thought : uint8_t {
    kNone,   // Nothing is looked for.
    kMayBe,  // The answer may begin with one.
    kOpen,   // It begins inside one.
  };

  // `calls` reads what is no thought; null where all of it is text.
  AnswerReader(Thought thought, std::unique_ptr<PartReader> calls);

  void Push(const std::string& text, std::vector<AnswerPart>& parts) override;
  void Finish(std::vector<AnswerPart>& parts) override;

  // Whether the text so far ends inside a thought.
  bool thinking() const { return place_ == Place::kInside; }

 private:
  enum class Place : uint8_t { kBefore, kInside, kBehind, kAfter };

  bool Step(std::vector<AnswerPart>& parts);
  bool TakeThought(std::vector<AnswerPart>& parts);
  void TakeText(const std::string& text, std::vector<AnswerPart>& parts);

  const std::unique_ptr<PartReader> calls_;
  Place place_;
  std::string held_;
  bool begun_ = false;  // Something of the thought was shown.
};

}  // namespace lamina::gateway

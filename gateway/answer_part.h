// SPDX-License-Identifier: Apache-2.0
//
// AnswerPart: what a piece of an answer's text is: text for the user, a thought, or a call of one
// of the client's functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lamina::gateway {

struct AnswerPart {
  enum class Kind : uint8_t {
    kText,
    kReasoning,
    kCall,       // A call begins; `text` is the function's name.
    kArguments,  // More of the JSON of that call's arguments.
  };
  Kind kind = Kind::kText;
  std::string text;

  friend bool operator==(const AnswerPart&, const AnswerPart&) = default;
};

// Reads an answer as it comes, over any cuts of its text.
//
// Threading: the gateway's.
class PartReader {
 public:
  virtual ~PartReader() = default;
  virtual void Push(const std::string& text, std::vector<AnswerPart>& parts) = 0;
  // What was held back, when the answer ends. Once, last.
  virtual void Finish(std::vector<AnswerPart>& parts) = 0;
};

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
//
// MessagesFormat: answers in the shape of Anthropic's Messages.
//
// Threading: that of AnswerFormat.

#pragma once

#include <string>
#include <utility>

#include "gateway/apis/answer_format.h"

namespace lamina::gateway {

class MessagesFormat final : public AnswerFormat {
 public:
  explicit MessagesFormat(std::string model);

  std::string Whole(const FinishedChoice& choice, const TokenCounts& counts) override;
  std::string Begin(const TokenCounts& counts) override;
  std::string Part(const AnswerPart& part, const std::string& call_id) override;
  std::string End(const AnswerEnd& end, const TokenCounts& counts) override;
  std::string ErrorEvent(const ApiError& error) override;
  std::string ErrorBody(const ApiError& error) override { return MessagesErrorBody(error); }

 private:
  std::string OpenBlock(AnswerPart::Kind kind, Json block);
  std::string CloseBlock();

  const std::string id_;
  const std::string model_;
  int blocks_ = 0;  // Begun.
  bool open_ = false;
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;  // Kind of the open block.
};

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
//
// ResponsesFormat: answers in the shape of OpenAI's Responses.
//
// Threading: that of AnswerFormat.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gateway/apis/answer_format.h"

namespace lamina::gateway {

class ResponsesFormat final : public AnswerFormat {
 public:
  // `echoed`: what the response repeats of its request.
  explicit ResponsesFormat(Json echoed);

  std::string Whole(const FinishedChoice& choice, const TokenCounts& counts) override;
  std::string Begin(const TokenCounts& counts) override;
  std::string Part(const AnswerPart& part, const std::string& call_id) override;
  std::string End(const AnswerEnd& end, const TokenCounts& counts) override;
  std::string ErrorEvent(const ApiError& error) override;
  std::string ErrorBody(const ApiError& error) override { return error.ToJson(); }

 private:
  std::string Event(const std::string& name, Json data);
  Json Response(const std::string& status, Json output) const;
  Json Finished(client::FinishReason finish, Json output, const TokenCounts& counts) const;
  Json Item(bool done, bool cut = false) const;
  std::string OpenItem(const AnswerPart& part, const std::string& call_id);
  std::string CloseItem(bool cut = false);

  const std::string id_;
  const int64_t created_;  // Seconds since 1970.
  const Json echoed_;
  uint64_t sequence_ = 0;
  Json output_ = Json::array();  // Items that are whole.
  bool open_ = false;
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;  // Kind of the open item: never kArguments.
  std::string item_id_;
  std::string call_id_;
  std::string name_;
  std::string text_;
};

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
#include "gateway/chat_shape.h"

#include <ctime>
#include <utility>

#include "absl/strings/match.h"

namespace lamina::gateway {

ChatShape::ChatShape(const client::ModelInfo& model, const ShapeOptions& options)
    : family_(ChooseToolFamily(options.tool_parser, model.chat_template)),
      takes_tools_(absl::StrContains(model.chat_template, "tools")),
      thinks_(options.reasoning_parser == "think" ||
              (options.reasoning_parser == "auto" &&
               absl::StrContains(model.chat_template, "</think>"))) {
  if (thinks_) {
    absl::StatusOr<model::ChatTemplate> created =
        model::ChatTemplate::Create(model.chat_template, model.bos_token, model.eos_token);
    if (created.ok()) {
      template_ = std::make_shared<const model::ChatTemplate>(*std::move(created));
    }
  }
}

AnswerReader::Thought ChatShape::ThoughtOf(const client::ChatOptions& chat) const {
  if (!thinks_) {
    return AnswerReader::Thought::kNone;
  }
  if (!chat.add_generation_prompt || template_ == nullptr) {
    return AnswerReader::Thought::kMayBe;
  }
  model::ChatTemplateInput input{.messages =
                                     Json::array({Json{{"role", "user"}, {"content", "x"}}})};
  if (!chat.arguments_json.empty()) {
    input.arguments = Json::parse(chat.arguments_json, nullptr, /*allow_exceptions=*/false);
  }
  const absl::StatusOr<std::string> text = template_->Render(input, std::tm{});
  const size_t open = text.ok() ? text->rfind("<think>") : std::string::npos;
  const bool closed =
      open == std::string::npos || text->find("</think>", open) != std::string::npos;
  return closed ? AnswerReader::Thought::kMayBe : AnswerReader::Thought::kOpen;
}

}  // namespace lamina::gateway

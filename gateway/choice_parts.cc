// SPDX-License-Identifier: Apache-2.0
#include "gateway/choice_parts.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"

namespace lamina::gateway {

ChoiceParts::ChoiceParts(const CompletionRequest& request) : request_(&request) {
  if (request.family == nullptr && request.thought == AnswerReader::Thought::kNone) {
    return;
  }
  std::unique_ptr<PartReader> of_calls;
  if (request.family != nullptr) {
    of_calls = request.tools.enforced() ? MakeEnforcedReader(request.family->syntax)
                                        : request.family->make_reader(request.tools);
  }
  reader_ = std::make_unique<AnswerReader>(request.thought, std::move(of_calls));
}

std::vector<AnswerPart> ChoiceParts::Read(const client::Chunk& chunk) {
  std::vector<AnswerPart> parts;
  if (reader_ == nullptr) {
    if (!chunk.text.empty()) {
      parts.push_back({AnswerPart::Kind::kText, chunk.text});
    }
    return parts;
  }
  const bool thought = reader_->thinking();
  reader_->Push(chunk.text, parts);
  const bool marked = std::any_of(parts.begin(), parts.end(), [](const AnswerPart& part) {
    return part.kind == AnswerPart::Kind::kReasoning;
  });
  if (thought || reader_->thinking() || marked) {
    reasoning_tokens += static_cast<uint32_t>(chunk.tokens.size());
  }
  if (chunk.finish_reason != client::FinishReason::kNotFinished) {
    reader_->Finish(parts);
  }
  if (!request_->include_reasoning) {
    std::erase_if(parts,
                  [](const AnswerPart& part) { return part.kind == AnswerPart::Kind::kReasoning; });
  }
  return parts;
}

void ChoiceParts::Take(const AnswerPart& part) {
  switch (part.kind) {
    case AnswerPart::Kind::kText:
      text += part.text;
      break;
    case AnswerPart::Kind::kReasoning:
      reasoning += part.text;
      break;
    case AnswerPart::Kind::kCall:
      calls.push_back(
          {.id = absl::StrCat(request_->family->id_prefix, RandomHex(request_->family->id_digits)),
           .name = part.text});
      break;
    case AnswerPart::Kind::kArguments:
      calls.back().arguments += part.text;
      break;
  }
}

bool ChoiceParts::called() const {
  return !calls.empty() && request_->tools.choice != ToolChoice::kNamed;
}

}  // namespace lamina::gateway

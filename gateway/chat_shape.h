// SPDX-License-Identifier: Apache-2.0
//
// ChatShape: what a model's chat template says of its answers: how it writes calls, and whether it
// thinks in tags.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "client/client.h"
#include "gateway/answer_reader.h"
#include "gateway/tools/tool_family.h"
#include "model/chat_template.h"

namespace lamina::gateway {

// From the cluster file: gateway.tool_parser and gateway.reasoning_parser.
struct ShapeOptions {
  std::string tool_parser = "auto";
  std::string reasoning_parser = "auto";
};

class ChatShape {
 public:
  ChatShape() = default;
  ChatShape(const client::ModelInfo& model, const ShapeOptions& options);

  // Null: the model's calls are not known.
  const ToolFamily* family() const { return family_; }
  // Whether the template shows tools to the model.
  bool takes_tools() const { return takes_tools_; }
  // How an answer begins to a chat with these options: the template is tried with them.
  AnswerReader::Thought ThoughtOf(const client::ChatOptions& chat) const;

 private:
  const ToolFamily* family_ = nullptr;
  bool takes_tools_ = false;
  bool thinks_ = false;
  std::shared_ptr<const model::ChatTemplate> template_;  // Null unless the model thinks.
};

}  // namespace lamina::gateway

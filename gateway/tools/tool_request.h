// SPDX-License-Identifier: Apache-2.0
//
// ToolRequest: the functions that a client offers to the model, and which it may call.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gateway/json_object.h"

namespace lamina::gateway {

struct ToolFunction {
  std::string name;
  Json parameters;  // A JSON schema: an object.
};

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolRequest {
  std::vector<ToolFunction> functions;
  ToolChoice choice = ToolChoice::kNone;
  std::string named;     // With kNamed.
  bool parallel = true;  // More than one call in an answer.
  std::string json;      // What the template gets: the array as the client sent it.

  bool Has(const std::string& name) const;
  // Whether the form of the output makes the calls.
  bool enforced() const { return choice == ToolChoice::kRequired || choice == ToolChoice::kNamed; }
};

// The place in a schema that "#/$defs/name" names, or null.
const Json* PlaceOf(const std::string& reference, const Json& root);

// Reads `tools`, `tool_choice` and `parallel_tool_calls` of a chat.
// Errors: kInvalidArgument  with the place and OpenAI's code for the mistake.
absl::StatusOr<ToolRequest> ReadTools(JsonObject& body);

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
//
// Structured output as clients of OpenAI's API, and of vLLM's, write them.

#pragma once

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "common/output_form.h"

namespace lamina::client {

// OpenAI's `response_format`: {"type": "text"}, {"type": "json_object"}, {"type": "json_schema",
// "json_schema": {"schema": {...}}}, or vLLM's {"type": "structural_tag", "format": {...}}.
// Properties come in the order of the schema. Errors: kInvalidArgument says what is wrong with it.
absl::StatusOr<OutputForm> ResponseFormat(const nlohmann::ordered_json& value);

// vLLM's `structured_outputs`: an object with one of `json` (a schema, or its text), `regex`,
// `choice` (a list of texts) and `grammar`.
// Errors: kInvalidArgument says what is wrong with it.
absl::StatusOr<OutputForm> StructuredOutputs(const nlohmann::ordered_json& value);

}  // namespace lamina::client

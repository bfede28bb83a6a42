// SPDX-License-Identifier: Apache-2.0
//
// Chat templates of models that have one for conversations with tools, and one for all others.
//
// Threading: free functions without state.

#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lamina::model {

// One template that renders conversations with tools as `tool_use` does, and others as `plain`
// does, to the byte. Empty: where `tool_use` is empty it is `plain`.
std::string WithToolTemplate(absl::string_view plain, absl::string_view tool_use);

}  // namespace lamina::model

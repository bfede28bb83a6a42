// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/tool_template.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace lamina::model {
namespace {

// A template that stands alone loses the newline at its end.
absl::string_view WithoutLastNewline(absl::string_view source) {
  if (absl::ConsumeSuffix(&source, "\n")) {
    absl::ConsumeSuffix(&source, "\r");
  }
  return source;
}

}  // namespace

// A newline behind a tag goes with it, so that each template begins a line, where its indentation
// is cut; the plus signs keep the white space before a tag.
std::string WithToolTemplate(absl::string_view plain, absl::string_view tool_use) {
  if (tool_use.empty()) {
    return std::string(plain);
  }
  return absl::StrCat("{% if tools %}\n", WithoutLastNewline(tool_use), "{%+ else %}\n",
                      WithoutLastNewline(plain), "{%+ endif %}");
}

}  // namespace lamina::model

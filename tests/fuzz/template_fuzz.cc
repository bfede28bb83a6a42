// SPDX-License-Identifier: Apache-2.0
//
// Any text as a chat template: it ends in a text or an error with a message, within the budget.
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>

#include "common/check.h"
#include "model/jinja/json_value.h"
#include "model/jinja/template.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const lamina::jinja::Value variables =
      *lamina::jinja::FromJson(nlohmann::ordered_json::parse(R"({
        "messages": [{"role": "system", "content": " é\n"}, {"role": "user", "content": "x{{ y }}"},
                     {"role": "assistant", "content": "", "tool_calls": [{"id": "123456789",
                      "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "\"q\""}}],
        "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"})"));
  const auto parsed =
      lamina::jinja::Template::Parse(std::string(reinterpret_cast<const char*>(data), size));
  if (!parsed.ok()) {
    LAMINA_CHECK(!parsed.status().message().empty());
    return 0;
  }
  const auto out = parsed->Render(variables, std::tm{});
  LAMINA_CHECK(out.ok() || !out.status().message().empty());
  return 0;
}

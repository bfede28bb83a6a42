// SPDX-License-Identifier: Apache-2.0
//
// Seeded mutations of templates: whatever the text, parsing and rendering end with a text or an
// error, within the budget. Meant for AddressSanitizer; a failure names its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/jinja/json_value.h"
#include "model/jinja/template.h"
#include "tests/support/source_path.h"

namespace lamina::jinja {
namespace {

constexpr int kMutations = 40000;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

// The templates of the fidelity tests.
std::vector<std::string> Sources() {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = test_support::SourcePath("tests/fidelity/chat_templates");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jinja") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> out;
  for (const auto& path : paths) {
    out.push_back(ReadFile(path));
  }
  for (const auto& entry : nlohmann::json::parse(ReadFile(folder / "language.json"))) {
    out.push_back(entry["template"].get<std::string>());
  }
  return out;
}

Value Variables() {
  return *FromJson(nlohmann::ordered_json::parse(R"({
    "messages": [{"role": "system", "content": " é\n"}, {"role": "user", "content": "x{{ y }}"},
                 {"role": "assistant", "content": "", "tool_calls": [{"id": "123456789",
                  "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
                 {"role": "tool", "content": [{"type": "text", "text": "漢"}]}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "\"q\""}}],
    "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>",
    "m": [{"role": "user", "n": 3}], "d": {"b": 1, "A": [1, 2.5]}, "s": " Hello wörld ",
    "e": "", "nothing": null, "f": [0.1, 1e16, -0.0]})"));
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }

  void Mutate(std::string& text, const std::string& other) {
    static constexpr const char* kPieces[] = {"{{",
                                              "}}",
                                              "{%",
                                              "%}",
                                              "-%}",
                                              "{%-",
                                              "{#",
                                              "#}",
                                              "(",
                                              ")",
                                              "[",
                                              "]",
                                              "{",
                                              "}",
                                              "|",
                                              ".",
                                              ",",
                                              ":",
                                              "'",
                                              "\"",
                                              "\\",
                                              "~",
                                              " is ",
                                              " not ",
                                              " in ",
                                              " if ",
                                              " else ",
                                              "{% set x = ",
                                              "{% endif %}",
                                              "{% endfor %}",
                                              "{% for i in messages %}",
                                              "{% macro m(a) %}",
                                              "{% endmacro %}",
                                              "{{ m(1) }}",
                                              "loop.",
                                              "|tojson",
                                              "|list",
                                              "|length",
                                              "[::-1]",
                                              "**",
                                              "//",
                                              "%",
                                              "*",
                                              "-1",
                                              "9223372036854775807",
                                              "1e308",
                                              "range(100000)",
                                              "namespace(",
                                              "none",
                                              "messages",
                                              "\n",
                                              "\xff",
                                              "\xe2\x80",
                                              "é",
                                              "\0",
                                              "{% raw %}",
                                              "{% break %}"};
    const size_t at = Below(text.size() + 1);
    switch (Below(6)) {
      case 0:
        text.insert(at, kPieces[Below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, 1 + Below(12));
        break;
      case 2:
        text.insert(at, text.substr(Below(text.size() + 1), Below(60)));
        break;
      case 3:
        text.insert(at, other.substr(Below(other.size() + 1), Below(80)));
        break;
      case 4:
        text.replace(at, Below(8), kPieces[Below(std::size(kPieces))]);
        break;
      case 5:
        if (at < text.size()) {
          text[at] = static_cast<char>(text[at] ^ (1 << Below(8)));
        }
        break;
    }
  }

 private:
  std::mt19937_64 random_;
};

TEST(JinjaMutationTest, EveryTextEndsInATextOrAnError) {
  const std::vector<std::string> sources = Sources();
  ASSERT_GE(sources.size(), 100u);
  const Value variables = Variables();
  int rendered = 0;
  int failed = 0;
  int refused = 0;
  for (int seed = 0; seed < kMutations; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Mutator mutator(static_cast<uint64_t>(seed));
    std::string text = sources[static_cast<size_t>(seed) % sources.size()];
    const size_t mutations = 1 + mutator.Below(3);
    for (size_t i = 0; i < mutations; ++i) {
      mutator.Mutate(text, sources[mutator.Below(sources.size())]);
    }
    const absl::StatusOr<Template> parsed = Template::Parse(text);
    if (!parsed.ok()) {
      ASSERT_FALSE(parsed.status().message().empty());
      ++refused;
      continue;
    }
    const absl::StatusOr<std::string> out = parsed->Render(variables, std::tm{});
    ASSERT_TRUE(out.ok() || !out.status().message().empty());
    ++(out.ok() ? rendered : failed);
  }
  // Mutations that never get that far would test nothing.
  EXPECT_GT(rendered, 2000);
  EXPECT_GT(failed, 2000);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace lamina::jinja

// SPDX-License-Identifier: Apache-2.0
//
// Rendered chats equal those of transformers' apply_chat_template, for every form of template over
// a table of conversations, and so do small templates that show the language.
// Templates, conversations and texts: make_chat_template_goldens.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "model/chat_template.h"
#include "model/jinja/json_value.h"
#include "model/jinja/template.h"
#include "tests/support/source_path.h"

namespace lamina::model {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFolder[] = "tests/fidelity/";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

const Json& Golden() {
  static const Json* const golden = new Json(Json::parse(
      ReadFile(test_support::SourcePath(absl::StrCat(kFolder, "goldens/chat_templates.json")))));
  return *golden;
}

// Saturday, 4 July 2026, 13:05.
std::tm FixedTime() {
  std::tm now{};
  now.tm_min = 5;
  now.tm_hour = 13;
  now.tm_mday = 4;
  now.tm_mon = 6;
  now.tm_year = 126;
  now.tm_wday = 6;
  now.tm_yday = 184;
  return now;
}

Json Take(Json* from, const char* name) {
  Json out;
  if (from->contains(name)) {
    out = (*from)[name];
    from->erase(name);
  }
  return out;
}

ChatTemplateInput InputOf(Json arguments) {
  ChatTemplateInput input;
  input.messages = Take(&arguments, "messages");
  input.tools = Take(&arguments, "tools");
  input.documents = Take(&arguments, "documents");
  input.add_generation_prompt = Take(&arguments, "add_generation_prompt").get<bool>();
  input.arguments = std::move(arguments);
  return input;
}

void ExpectText(const absl::StatusOr<std::string>& text, const Json& expected) {
  if (expected.is_null()) {
    EXPECT_FALSE(text.ok()) << *text;
  } else {
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, expected.get<std::string>());
  }
}

class ChatTemplateGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(ChatTemplateGolden, EqualsTransformers) {
  const Json& golden = Golden();
  const auto chat_template = ChatTemplate::Create(
      ReadFile(
          test_support::SourcePath(absl::StrCat(kFolder, "chat_templates/", GetParam(), ".jinja"))),
      golden["tokens"]["bos_token"], golden["tokens"]["eos_token"]);
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  int rendered = 0;

  for (const auto& [name, arguments] : golden["cases"].items()) {
    SCOPED_TRACE(name);
    const Json& expected = golden["results"][GetParam()][name];
    ExpectText(chat_template->Render(InputOf(arguments), FixedTime()), expected);
    rendered += expected.is_null() ? 0 : 1;
  }

  EXPECT_GE(rendered, 20);
}

INSTANTIATE_TEST_SUITE_P(Forms, ChatTemplateGolden,
                         ::testing::Values("chatml", "smollm2", "llama2", "llama3", "mistral",
                                           "qwen2_5", "gemma", "gemma3", "phi3"),
                         [](const auto& suite) { return suite.param; });

TEST(ChatTemplateGoldenTest, EveryFormOfTheGoldensIsTested) {
  EXPECT_EQ(Golden()["results"].size(), 9u);
}

TEST(ChatTemplateGoldenTest, TheLanguageIsJinjas) {
  ASSERT_GE(Golden()["language"].size(), 100u);
  for (const Json& entry : Golden()["language"]) {
    SCOPED_TRACE(entry["template"].get<std::string>());
    const auto variables =
        jinja::FromJson(entry.contains("variables") ? entry["variables"] : Json::object());
    ASSERT_TRUE(variables.ok());
    const auto parsed = jinja::Template::Parse(entry["template"].get<std::string>());
    ExpectText(parsed.ok() ? parsed->Render(*variables, FixedTime())
                           : absl::StatusOr<std::string>(parsed.status()),
               entry["text"]);
  }
}

}  // namespace
}  // namespace lamina::model

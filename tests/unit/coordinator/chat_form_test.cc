// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/id_tokenizer.h"

namespace lamina::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr char kTexts[] =
    "{% for message in messages %}{{ '<' + message.role + '>' + message.content }}{% for call in "
    "message.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr char kParts[] =
    "{% for message in messages %}{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}[{{ part.text }}]{% endfor %}{% endif %}"
    "{% endfor %}";

ChatForm FormOf(const char* chat_template) {
  return ChatForm(test_support::IdTokenizer(100, {}, chat_template));
}

absl::StatusOr<std::string> Render(const char* chat_template, const ChatRequest& request) {
  return FormOf(chat_template).Render(request, std::tm{});
}

TEST(ChatFormTest, RendersTheModelsOwnTemplate) {
  const auto text = Render(
      kTexts, {.messages = {{.role = "system", .content = "S"}, {.role = "user", .content = "U"}}});

  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "<system>S<user>U<assistant>");
}

TEST(ChatFormTest, PassesToolsArgumentsAndTheGenerationPromptOn) {
  EXPECT_EQ(*Render(kTexts, {.messages = {{.role = "user", .content = "U"}},
                             .tools_json = R"([{"b": 1, "a": 2}])",
                             .arguments_json = R"({"mood": "calm"})",
                             .add_generation_prompt = false}),
            R"(<user>U[{"b": 1, "a": 2}]calm)");
}

TEST(ChatFormTest, ALastMessageMayGoOn) {
  const auto continued = [](const std::string& content, bool open = false) {
    return Render(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}",
        {.messages = {{.role = "user", .content = "U"}, {.role = "assistant", .content = content}},
         .add_generation_prompt = open,
         .continue_final_message = true,
         .suffix = "!"});
  };
  EXPECT_EQ(*continued("Because "), "<user>U<end><assistant>Because !");
  EXPECT_EQ(continued("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(continued("Because", true).status().code(), absl::StatusCode::kInvalidArgument);
}

absl::StatusOr<std::string> Continue(const char* chat_template, const ChatMessage& last) {
  return Render(chat_template, {.messages = {{.role = "user", .content = "U"}, last},
                                .add_generation_prompt = false,
                                .continue_final_message = true});
}

// The text may be part of what the template writes behind it.
TEST(ChatFormTest, ALastMessageGoesOnBehindItsOwnText) {
  constexpr char kChatMl[] =
      R"({% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}
{% endfor %})";
  constexpr char kLlama3[] =
      R"({% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' +
         m.content | trim + '<|eot_id|>' }}{% endfor %})";
  for (const std::string text : {"<", "im", "end", "|", "a b", "a\n", " a \n "}) {
    EXPECT_EQ(*Continue(kChatMl, {.role = "assistant", .content = text}),
              "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n" + text);
  }
  EXPECT_EQ(Continue(kChatMl, {.role = "assistant", .content = "\n"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  for (const std::string text : {"<", "id", "e", "_", "a b"}) {
    EXPECT_EQ(*Continue(kLlama3, {.role = "assistant", .content = text}),
              "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\n" +
                  text);
  }
  EXPECT_EQ(*Continue(kLlama3, {.role = "assistant", .content = " a \n"}),
            *Continue(kLlama3, {.role = "assistant", .content = "a"}))
      << "the template trims";
}

TEST(ChatFormTest, ALastMessageOfPartsGoesOnBehindTheLastOne) {
  const ChatMessage last{.json = R"({"role":"assistant","content":
      [{"type":"text","text":"a"},{"type":"text","text":"b "}]})"};

  EXPECT_EQ(*Continue(kParts, last), "U[a][b ");
  EXPECT_EQ(*Continue(kTexts, last), "<user>U<assistant>a\nb ");
}

TEST(ChatFormTest, ALastMessageThatTheTemplateChangesDoesNotGoOn) {
  for (const char* chat_template :
       {"{{ messages[0].content }}", "{{ messages[1].content | upper }}",
        "{{ messages[1].content | replace('B', 'b') }}",
        "{{ messages[1].content }}{{ messages[1].content }}"}) {
    const absl::Status status =
        Continue(chat_template, {.role = "assistant", .content = "Because"}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << chat_template;
    EXPECT_THAT(std::string(status.message()), HasSubstr("the chat template changes it"));
  }
}

TEST(ChatFormTest, DocumentsAndASuffixComeWithArguments) {
  EXPECT_EQ(*Render("{{ messages[0].content }}{{ documents | tojson }}{{ mood }}",
                    {.messages = {{.role = "user", .content = "U"}},
                     .arguments_json = R"({"documents": [{"t": 1}], "mood": "calm"})",
                     .suffix = "[X]"}),
            R"(U[{"t": 1}]calm[X])");
}

TEST(ChatFormTest, ATemplateOfTheServersReplacesTheModelsOwn) {
  const ChatForm form(test_support::IdTokenizer(100, {}, kTexts), "own {{ messages[0].content }}");
  EXPECT_EQ(*form.Render({.messages = {{.role = "user", .content = "U"}}}, std::tm{}), "own U");
}

TEST(ChatFormTest, AMessageMayBeJson) {
  EXPECT_EQ(*Render(kTexts, {.messages = {{.json = R"({"role":"user","content":"J","x":null})"}}}),
            "<user>J<assistant>");
}

TEST(ChatFormTest, JoinsPartsForATemplateThatKnowsTextsOnly) {
  EXPECT_EQ(*Render(kTexts, {.messages = {{.json = R"({"role":"user","content":
                [{"type":"text","text":"a"},{"type":"text","text":"b"}]})"}}}),
            "<user>a\nb<assistant>");
}

TEST(ChatFormTest, LeavesPartsToATemplateThatKnowsThem) {
  EXPECT_EQ(*Render(kParts, {.messages = {{.json = R"({"role":"user","content":
                [{"type":"text","text":"a"},{"type":"text","text":"b"}]})"}}}),
            "[a][b]");
}

// Gemma 3's template shows nothing of a part whose type it does not know.
TEST(ChatFormTest, PartsOfNoTypeAreTextToATemplateThatAsksForIt) {
  constexpr char kTyped[] =
      "{% for part in messages[0].content %}{% if part['type'] == 'text' %}[{{ part.text }}]"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(*Render(kTyped, {.messages = {{.json = R"({"role":"user","content":
                ["a",{"text":"b"},{"type":"text","text":"c","x":1}]})"}}}),
            "[a][b][c]");
}

TEST(ChatFormTest, ReadsArgumentsOfCallsThatAreJsonInAText) {
  EXPECT_EQ(*Render(kTexts, {.messages = {{.json = R"({"role":"assistant","content":"","tool_calls":
                [{"function":{"name":"f","arguments":"{\"a\": 1}"}},
                 {"function":{"name":"f","arguments":"not json"}}]})"}}}),
            R"(<assistant>{"a": 1}"not json"<assistant>)");
}

TEST(ChatFormTest, ArgumentsThatAreNoneAreAnEmptyObject) {
  constexpr char kPairs[] =
      "{% for m in messages %}{% for call in m.tool_calls %}"
      "{% for key, value in call.function.arguments | items %}{{ key }}{% endfor %}."
      "{% endfor %}{% endfor %}";
  constexpr char kJoins[] =
      "{% for m in messages %}{% for call in m.tool_calls %}"
      "{{ '[' + call.function.arguments + ']' }}{% endfor %}{% endfor %}";
  for (const char* arguments : {R"("")", R"(" \n")", "null", R"("{}")", "{}"}) {
    const ChatRequest request{
        .messages = {
            {.json = absl::StrCat(
                 R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":)",
                 arguments, "}}]}")}}};
    EXPECT_EQ(*Render(kTexts, request), "<assistant>{}<assistant>") << arguments;
    EXPECT_EQ(*Render(kPairs, request), ".") << arguments;
    EXPECT_EQ(*Render(kJoins, request), "[{}]") << arguments;
  }
}

// DeepSeek's templates do.
TEST(ChatFormTest, ArgumentsOfCallsAreATextToATemplateThatJoinsThem) {
  constexpr char kJoins[] =
      "{% for m in messages %}{% if m.tool_calls %}{% for call in m.tool_calls %}"
      "{{ m.content + '[' + call.function.arguments + ']' }}{% endfor %}{% else %}"
      "{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(*Render(kJoins, {.messages = {{.json = R"({"role":"assistant","content":"","tool_calls":
                [{"function":{"name":"f","arguments":"{\"a\": 1}"}},
                 {"function":{"name":"f","arguments":{"b":2}}}]})"},
                                          {.role = "user", .content = "U"}}}),
            R"([{"a": 1}][{"b":2}]U)");
}

// Those of the models that were distilled from DeepSeek-R1 do.
TEST(ChatFormTest, AMessageOfCallsHasNoTextForATemplateThatAsksForNone) {
  constexpr char kAsks[] =
      "{% for m in messages %}{% if m['content'] is none %}{% for call in m['tool_calls'] %}"
      "{{ '[' + call['function']['arguments'] + ']' }}{% endfor %}{% else %}"
      "{{ '<' + m['content'] + '>' }}{% endif %}{% endfor %}";
  const std::string calls = R"("tool_calls":[{"function":{"name":"f","arguments":"{\"a\": 1}"}}])";
  for (const char* content : {R"("content":"",)", R"("content":null,)", ""}) {
    EXPECT_EQ(*Render(kAsks, {.messages = {{.role = "user", .content = ""},
                                           {.json = absl::StrCat(R"({"role":"assistant",)", content,
                                                                 calls, "}")}}}),
              R"(<>[{"a": 1}])")
        << content;
  }
  const std::string said = absl::StrCat(R"({"role":"assistant","content":"T",)", calls, "}");
  EXPECT_EQ(*Render(kAsks, {.messages = {{.json = said}}}), "<T>");
}

TEST(ChatFormTest, AModelWithoutATemplateTakesNoChats) {
  const ChatForm form = FormOf("");

  EXPECT_EQ(form.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(form.status().message()), HasSubstr("no chat template"));
  EXPECT_EQ(form.Render({.messages = {{.role = "user"}}}, std::tm{}).status(), form.status());
}

TEST(ChatFormTest, ATemplateWithAnUnsupportedConstructNamesIt) {
  const ChatForm form = FormOf("x\n{% include 'other' %}");

  EXPECT_EQ(form.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(form.status().message()), HasSubstr("line 2: {% include %}"));
}

TEST(ChatFormTest, RefusesWhatIsNotAChat) {
  const auto code = absl::StatusCode::kInvalidArgument;
  const ChatMessage user{.role = "user", .content = "U"};

  EXPECT_EQ(Render(kTexts, {}).status().code(), code);
  EXPECT_EQ(Render(kTexts, {.messages = {{.json = "[1]"}}}).status().code(), code);
  EXPECT_EQ(Render(kTexts, {.messages = {{.json = "{"}}}).status().code(), code);
  EXPECT_EQ(Render(kTexts, {.messages = {user}, .tools_json = "{}"}).status().code(), code);
  EXPECT_EQ(Render(kTexts, {.messages = {user}, .arguments_json = "[]"}).status().code(), code);
  const auto image = Render(kTexts, {.messages = {user, {.json = R"({"role":"user","content":
      [{"type":"image_url","image_url":{"url":"x"}}]})"}}});
  EXPECT_EQ(image.status().code(), code);
  EXPECT_THAT(std::string(image.status().message()),
              HasSubstr("messages[1].content has a part of type image_url"));
}

// A copy of so deep a value overflows the stack, so a failure is a crash.
TEST(ChatFormTest, RefusesJsonThatIsNestedTooDeeplyBeforeParsingIt) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const std::string deep_object = "{\"role\":\"user\",\"content\":\"U\",\"x\":" + deep + "}";
  const ChatMessage user{.role = "user", .content = "U"};
  const auto expect_refused = [](const ChatRequest& request, const char* what) {
    const absl::Status status = Render(kTexts, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string(what) + " is nested deeper than 64 levels"));
  };

  expect_refused({.messages = {user, {.json = deep_object}}}, "messages[1]");
  expect_refused({.messages = {user}, .tools_json = deep}, "tools");
  expect_refused({.messages = {user}, .arguments_json = deep_object}, "the template's arguments");
  expect_refused({.messages = {{.json = R"({"role":"assistant","content":"","tool_calls":
                      [{"function":{"name":"f","arguments":")" +
                                        deep + "\"}}]}"}}},
                 "the arguments of a call in messages[0]");
}

TEST(ChatFormTest, TakesJsonAsDeepAsIsAllowed) {
  const std::string inner = std::string(62, '[') + std::string(62, ']');

  EXPECT_EQ(*Render(kTexts, {.messages = {{.role = "user", .content = "U"}},
                             .tools_json = "[" + inner + "]"}),
            "<user>U[" + inner + "]<assistant>");
}

// Their search is quadratic, since templates see the order.
TEST(ChatFormTest, TextsOfVeryManyKeysAreRefused) {
  std::string many = R"({"k":0)";
  for (int i = 0; i < 5000; ++i) {
    absl::StrAppend(&many, R"(,"k)", i, R"(":0)");
  }
  many += "}";
  const ChatMessage user{.role = "user", .content = "U"};
  for (const ChatRequest& request :
       {ChatRequest{.messages = {user}, .arguments_json = many},
        ChatRequest{.messages = {user}, .tools_json = absl::StrCat("[", many, "]")},
        ChatRequest{.messages = {{.json = many}}}}) {
    const absl::Status status = Render(kTexts, request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("has an object of 5001 keys; at most 4096"));
  }
}

}  // namespace
}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/chat_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lamina::coordinator {
namespace {

constexpr char kPlain[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";
constexpr char kWithSystem[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}";

TEST(ChatFormTest, RendersTurnsAndOpensTheAssistants) {
  const auto text = RenderChat(kPlain, {{"system", "S"}, {"user", "U"}, {"assistant", "A"}});

  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\nA<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatFormTest, PutsTheTemplatesSystemMessageFirstWhenThereIsNone) {
  EXPECT_EQ(*RenderChat(kWithSystem, {{"user", "U"}}),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(*RenderChat(kWithSystem, {{"system", "Mine"}, {"user", "U"}}),
            "<|im_start|>system\nMine<|im_end|>\n<|im_start|>user\nU<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(*RenderChat(kPlain, {{"user", "U"}}),
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatFormTest, DoesNotTakeAComputedSystemTurnForItsText) {
  const std::string computed =
      "{{ '<|im_start|>system\n' + message + '<|im_end|>\n' }}{{ '<|im_start|>user' }}";

  EXPECT_EQ(*RenderChat(computed, {{"user", "U"}}),
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatFormTest, RefusesWhatItCannotRender) {
  const auto none = RenderChat("", {{"user", "U"}});
  const auto other = RenderChat("[INST] {{ message }} [/INST]", {{"user", "U"}});

  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(none.status().message()), ::testing::HasSubstr("no chat template"));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(other.status().message()), ::testing::HasSubstr("ChatML"));
}

TEST(ChatFormTest, RefusesAChatWithoutMessages) {
  EXPECT_EQ(RenderChat(kPlain, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lamina::coordinator

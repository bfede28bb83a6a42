// SPDX-License-Identifier: Apache-2.0
#include "model/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace lamina::model {
namespace {

using ::testing::HasSubstr;

class GenerationConfigTest : public ::testing::Test {
 protected:
  GenerationConfigTest() { std::filesystem::create_directories(folder_); }
  ~GenerationConfigTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
  }

  const std::string folder_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(GenerationConfigTest, WhatTheMakersAdviseIsRead) {
  EXPECT_EQ(*ReadSamplingDefaults(folder_), SamplingDefaults()) << "no file";
  EXPECT_EQ(*ReadSamplingDefaults(folder_ + "/model.gguf"), SamplingDefaults()) << "one file";
  Write(
      "generation_config.json",
      R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": 1})");
  EXPECT_EQ(*ReadSamplingDefaults(folder_),
            (SamplingDefaults{.temperature = 0.6f, .top_k = 20, .top_p = 0.95f}));
}

TEST_F(GenerationConfigTest, WhatCannotBeIsNamed) {
  for (const char* text :
       {R"({"top_p": 2})", R"({"top_k": 1.5})", R"({"temperature": "hot"})", "[", ""}) {
    Write("generation_config.json", text);
    const absl::Status status = ReadSamplingDefaults(folder_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("generation_config.json"));
  }
}

TEST_F(GenerationConfigTest, ATemplateIsAFileThatIsNotEmpty) {
  Write("template.jinja", "{{ x }}");
  EXPECT_EQ(*ReadChatTemplate(folder_ + "/template.jinja"), "{{ x }}");
  Write("empty.jinja", "");
  EXPECT_FALSE(ReadChatTemplate(folder_ + "/empty.jinja").ok());
  EXPECT_FALSE(ReadChatTemplate(folder_ + "/none.jinja").ok());
}

}  // namespace
}  // namespace lamina::model

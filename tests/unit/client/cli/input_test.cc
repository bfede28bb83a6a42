// SPDX-License-Identifier: Apache-2.0
#include "client/cli/input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "client/cli/generation_json.h"

namespace lamina::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseTokensTest, TakesWhatTokenizePrints) {
  EXPECT_THAT(ParseTokens("1,2,3").value(), ElementsAre(1, 2, 3));
  EXPECT_THAT(ParseTokens("[1, 2,\n3]\n").value(), ElementsAre(1, 2, 3));
  EXPECT_THAT(ParseTokens("").value(), IsEmpty());
}

TEST(ParseTokensTest, NamesWhatIsNotAToken) {
  for (const char* text : {"1,x", "-1", "1.5", "99999999999"}) {
    EXPECT_EQ(ParseTokens(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
  EXPECT_THAT(std::string(ParseTokens("1,x").status().message()), HasSubstr("'x'"));
}

TEST(PromptFlagsTest, WantExactlyOne) {
  EXPECT_THAT(CheckPromptFlags({}), HasSubstr("no prompt"));
  EXPECT_THAT(CheckPromptFlags({.text = ""}), IsEmpty());
  EXPECT_THAT(CheckPromptFlags({.file = "f", .tokens = "1"}), HasSubstr("more than one prompt"));
}

TEST(ReadPromptTest, ReadsAFileByteForByte) {
  const std::string path = testing::TempDir() + "prompt.txt";
  const std::string bytes("a\n\0\xff", 4);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_EQ(std::get<std::string>(ReadPrompt({.file = path}).value()), bytes);
}

TEST(ReadPromptTest, SaysWhichFileIsMissing) {
  const auto prompt = ReadPrompt({.file = "/nonexistent/prompt.txt"});
  EXPECT_EQ(prompt.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(prompt.status().message()), HasSubstr("/nonexistent/prompt.txt"));
}

TEST(ReadTextFileTest, TakesWhatItsCallerHasRoomForAndNamesTheBound) {
  const std::string path = testing::TempDir() + "load.json";
  std::ofstream(path) << "12345";
  EXPECT_EQ(ReadTextFile(path, 5).value(), "12345");
  const auto larger = ReadTextFile(path, 4);
  EXPECT_EQ(larger.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(larger.status().message()), HasSubstr("is larger than 4 B"));
  EXPECT_GE(kLoadBytesMax, size_t{1} << 30);
}

TEST(CheckUtf8Test, NamesTheFirstByteThatIsNone) {
  EXPECT_TRUE(CheckUtf8("x", "caf\xc3\xa9 \xe4\xbd\xa0 \xf0\x9f\x98\x80").ok());
  EXPECT_TRUE(CheckUtf8(client::Prompt(std::vector<TokenId>{1, 2})).ok());

  const absl::Status latin1 = CheckUtf8(client::Prompt("caf\xe9 noir"));
  EXPECT_EQ(latin1.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(latin1.message()),
              HasSubstr("the prompt is not UTF-8: its byte 3 is 0xe9"));
  EXPECT_FALSE(CheckUtf8("x", "cut off \xe4\xbd").ok());
  EXPECT_FALSE(CheckUtf8("x", "half a pair \xed\xa0\x80").ok());
}

TEST(CheckUtf8Test, LooksAtEveryTextOfARequest) {
  client::GenerateOptions options;
  EXPECT_TRUE(CheckUtf8(options).ok());
  options.stop = {"ok", "\xff"};
  EXPECT_THAT(std::string(CheckUtf8(options).message()), HasSubstr("--stop is not UTF-8"));
  options.prompt = std::vector<client::ChatMessage>{{.role = "system", .content = "\xff"}};
  EXPECT_THAT(std::string(CheckUtf8(options).message()), HasSubstr("the system message is not"));
}

TEST(ChoiceTest, JoinsItsChunksIntoOneLine) {
  Choice choice;
  choice.Add({.request_id = "r", .text = "Hel", .tokens = {{.token = 1, .logprob = -0.5f}}});
  choice.Add({.request_id = "r",
              .text = "lo",
              .tokens = {{.token = 2, .logprob = -1.0f, .top = {{.token = 3, .logprob = -2.0f}}}},
              .finish_reason = client::FinishReason::kStop,
              .usage = {.prompt_tokens = 4, .completion_tokens = 2, .ttft_ms = 1.5, .seed = 9}});

  EXPECT_EQ(ToJson(choice, 1).dump(),
            "{\"request_id\":\"r\",\"index\":1,\"text\":\"Hello\",\"token_ids\":[1,2],"
            "\"finish_reason\":\"stop\",\"logprobs\":[{\"token\":1,\"logprob\":-0.5,\"top\":[]},"
            "{\"token\":2,\"logprob\":-1.0,\"top\":[{\"token\":3,\"logprob\":-2.0}]}],"
            "\"prompt_tokens\":4,\"cached_tokens\":0,\"completion_tokens\":2,\"ttft_ms\":1.5,"
            "\"tpot_ms\":0.0,"
            "\"seed\":9,\"preemptions\":0}");
}

TEST(ChoiceTest, HasNoLogprobsUnlessAsked) {
  Choice choice;
  choice.Add({.tokens = {{.token = 1}}});
  EXPECT_FALSE(ToJson(choice, 0).contains("logprobs"));
}

}  // namespace
}  // namespace lamina::cli

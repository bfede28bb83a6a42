// SPDX-License-Identifier: Apache-2.0
#include "client/cli/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"

namespace lamina::cli {
namespace {

using ::testing::HasSubstr;

class UsageTest : public testing::Test {
 protected:
  // Parses the words and returns the exit status, with what was printed in output_ and error_.
  int Parse(const std::vector<std::string>& words) {
    CLI::App app("purpose", "lamina");
    app.require_subcommand(1);
    AddGenerateCommand(app, invocation_);
    AddStatusCommand(app, invocation_);
    AddBenchCommand(app, invocation_);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    int status = -1;  // Parsed.
    try {
      app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    } catch (const CLI::ParseError& error) {
      status = ExplainUsage(app, error);
    }
    output_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return status;
  }

  Invocation invocation_;
  std::string output_;
  std::string error_;
};

TEST_F(UsageTest, LeavesTheChosenCommandToRun) {
  EXPECT_EQ(Parse({"status", "--json", "--server", "h:1"}), -1);
  EXPECT_TRUE(invocation_.run != nullptr);
  EXPECT_TRUE(invocation_.json);
  EXPECT_EQ(invocation_.server, "h:1");
}

TEST_F(UsageTest, HelpIsNotAnError) {
  EXPECT_EQ(Parse({"generate", "--help"}), 0);
  EXPECT_THAT(output_, AllOf(HasSubstr("--prompt"), HasSubstr("Examples:")));
  EXPECT_EQ(error_, "");
}

TEST_F(UsageTest, NamesTheNearestCommand) {
  EXPECT_EQ(Parse({"generat"}), 2);
  EXPECT_THAT(error_, HasSubstr("unknown command 'generat'; did you mean 'generate'?"));
}

TEST_F(UsageTest, NamesTheNearestFlag) {
  EXPECT_EQ(Parse({"generate", "--temprature", "1"}), 2);
  EXPECT_THAT(error_, AllOf(HasSubstr("unknown flag '--temprature'; did you mean '--temperature'?"),
                            HasSubstr("Try: lamina generate --help")));
}

TEST_F(UsageTest, SaysTheRangeOfANumber) {
  EXPECT_EQ(Parse({"generate", "--prompt", "x", "--top-p", "3"}), 2);
  EXPECT_THAT(error_, HasSubstr("'3' is not a number in"));
  EXPECT_EQ(Parse({"generate", "--prompt", "x", "--max-tokens", "many"}), 2);
  EXPECT_THAT(error_, HasSubstr("'many' is not a whole number in [1, 1048576]"));
}

TEST_F(UsageTest, RefusesWhatIsNoWholeNumber) {
  for (const char* wrong : {"", "-1", "1.5", "0x10", "4294967296", "1e1", " 1"}) {
    EXPECT_EQ(Parse({"generate", "--prompt", "x", "--top-k", wrong}), 2) << wrong;
    EXPECT_THAT(error_, HasSubstr(absl::StrCat("'", wrong, "' is not a whole number in [0, 429")));
  }
  for (const char* flag : {"--seed", "--min-tokens", "--priority"}) {
    EXPECT_EQ(Parse({"generate", "--prompt", "x", flag, ""}), 2) << flag;
    EXPECT_THAT(error_, HasSubstr("'' is not a whole number in")) << flag;
  }
}

TEST_F(UsageTest, RealTextHasItsOwnLengths) {
  for (const char* flag : {"--input-tokens", "--output-tokens"}) {
    EXPECT_EQ(Parse({"bench", "--sharegpt", "f", flag, "2"}), 2) << flag;
    EXPECT_THAT(error_, AllOf(HasSubstr(flag), HasSubstr("excludes"), HasSubstr("--sharegpt")));
  }
  EXPECT_EQ(Parse({"bench", "--turns", "2"}), 2);
  EXPECT_THAT(error_, HasSubstr("--sharegpt"));
  EXPECT_EQ(Parse({"bench", "--sharegpt", "f", "--turns", "0"}), 2);
  EXPECT_THAT(error_, HasSubstr("'0' is not a whole number in"));
  EXPECT_EQ(Parse({"bench", "--sharegpt", "f", "--turns", "all"}), -1);
  EXPECT_EQ(Parse({"bench", "--sharegpt", "f", "--turns", "3"}), -1);
}

TEST_F(UsageTest, AsksForACommand) {
  EXPECT_EQ(Parse({}), 2);
  EXPECT_THAT(error_, HasSubstr("no command given"));
}

}  // namespace
}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/client/fake_server.h"

namespace lamina::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CommandTest : public testing::Test {
 protected:
  // Runs a command against the fake server, and returns its exit status, with what it printed in
  // output_ and error_.
  int Run(std::vector<std::string> words) {
    Invocation invocation = {.server = server_.address(), .interrupts = &interrupts_};
    CLI::App app("purpose", "lamina");
    AddGenerateCommand(app, invocation);
    AddScoreCommand(app, invocation);
    AddTokenizeCommand(app, invocation);
    AddStatusCommand(app, invocation);
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int status = invocation.run();
    output_ = testing::internal::GetCapturedStdout();
    error_ = testing::internal::GetCapturedStderr();
    return status;
  }

  client::FakeServer server_;
  Interrupts interrupts_;
  std::string output_;
  std::string error_;
};

TEST_F(CommandTest, ARequestThatOthersCancelHasFailed) {
  EXPECT_EQ(Run({"generate", "--prompt", "fail 1"}), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("lamina: error: as asked"));
}

TEST_F(CommandTest, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  const std::string latin1 = "caf\xe9";
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"generate", "--prompt", latin1},
        {"generate", "--chat", "--prompt", latin1},
        {"generate", "--prompt", "x", "--stop", latin1},
        {"score", "--prompt", latin1},
        {"tokenize", "--prompt", latin1}}) {
    EXPECT_EQ(Run(words), kExitFailed) << words[0];
    EXPECT_THAT(error_, AllOf(HasSubstr("is not UTF-8: its byte 3 is 0xe9"), HasSubstr("iconv")))
        << words[0];
    EXPECT_EQ(output_, "");
  }
}

TEST_F(CommandTest, AServerWithoutAPortIsNoAddress) {
  EXPECT_EQ(Run({"status", "--server", "localhost"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'localhost' is not an address like 127.0.0.1:7400"));
  EXPECT_EQ(Run({"status"}), kExitOk) << error_;
}

}  // namespace
}  // namespace lamina::cli

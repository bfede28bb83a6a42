// SPDX-License-Identifier: Apache-2.0
#include "client/cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/source_path.h"
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
    AddCancelCommand(app, invocation);
    AddBenchCommand(app, invocation);
    AddCalibrateCommand(app, invocation);
    AddSimulateCommand(app, invocation);
    AddExperimentCommand(app, invocation);
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

TEST_F(CommandTest, GenerateSaysThatItWaitsForTheCoordinatorAndGoesOn) {
  server_.inference.journals = true;
  EXPECT_EQ(Run({"generate", "--prompt", "break 2", "--max-tokens", "4"}), kExitOk) << error_;
  EXPECT_EQ(output_, "0 1 2 3 \n");
  EXPECT_THAT(error_, HasSubstr("lamina: the coordinator is gone; its journal has what runs"));

  server_.inference.journals = false;
  EXPECT_EQ(Run({"generate", "--prompt", "break 2", "--max-tokens", "4"}), kExitFailed);
  EXPECT_EQ(output_, "0 1 \n");
  EXPECT_EQ(error_, "lamina: error: Socket closed\n");
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

TEST_F(CommandTest, PoliciesAndFormsAreNamedInAscii) {
  for (const char* flag : {"--policy", "--kv"}) {
    for (const char* command : {"generate", "score", "bench"}) {
      EXPECT_THROW(Run({command, flag, "caf\xe9"}), CLI::ValidationError) << command << flag;
    }
  }
}

TEST_F(CommandTest, AServerWithoutAPortIsNoAddress) {
  EXPECT_EQ(Run({"status", "--server", "localhost"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'localhost' is not an address like 127.0.0.1:7400"));
  EXPECT_EQ(Run({"status"}), kExitOk) << error_;
}

TEST_F(CommandTest, StatusWaitsUntilTheClusterServes) {
  server_.cluster.waits = 2;
  EXPECT_EQ(Run({"status", "--wait", "60s"}), kExitOk) << error_;
  EXPECT_THAT(output_, HasSubstr("serving, epoch 3"));

  server_.cluster.waits = 1000;
  EXPECT_EQ(Run({"status", "--wait", "1ms"}), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("the cluster does not serve after 0.001 s: waiting for m0"));
  EXPECT_EQ(output_, "");
  EXPECT_EQ(Run({"status"}), kExitOk) << "without it the state is only said";

  EXPECT_EQ(Run({"status", "--wait", "25h"}), kExitUsage);
  EXPECT_EQ(Run({"status", "--wait", "60s", "--server", "localhost"}), kExitUsage);
}

TEST_F(CommandTest, CancelsEachAndNamesThoseThatAreNotThere) {
  EXPECT_EQ(Run({"cancel", "r1"}), kExitOk) << error_;
  EXPECT_EQ(output_, "cancelled r1\n");

  EXPECT_EQ(Run({"cancel", "gone", "r1", "--json"}), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("no request gone"));
  EXPECT_EQ(output_,
            "{\"request_id\":\"gone\",\"cancelled\":false}\n"
            "{\"request_id\":\"r1\",\"cancelled\":true}\n");
}

TEST_F(CommandTest, ABenchmarkKeepsItsTimesWhereTheClusterDoesNotAnswerAtTheEnd) {
  server_.cluster.answers_max = 1;
  EXPECT_EQ(Run({"bench", "--requests", "2", "--input-tokens", "4", "--output-tokens", "3",
                 "--concurrency", "2", "--json"}),
            kExitFailed);
  EXPECT_THAT(error_, HasSubstr("it does not answer"));
  const Json report = Json::parse(output_);
  EXPECT_EQ(report["requests"], 2);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["output_tokens"], 6);
  EXPECT_EQ(report["nodes"], Json::array());
}

TEST_F(CommandTest, ACalibrationThatCannotBeWrittenIsNotMeasured) {
  for (const char* flag : {"--output", "--out"}) {
    EXPECT_EQ(Run({"calibrate", "--model", "no-such-model", flag, "/nowhere/calibration.json"}),
              kExitFailed);
    EXPECT_THAT(error_, HasSubstr("--output: cannot write '/nowhere/calibration.json'"));
  }

  const std::string out = testing::TempDir() + "/calibration.json";
  EXPECT_EQ(Run({"calibrate", "--model", "no-such-model", "--output", out}), kExitFailed);
  EXPECT_FALSE(std::ifstream(out).good()) << "nothing was measured, and nothing lies there";
}

TEST_F(CommandTest, AnExperimentIsAFileOrAReport) {
  EXPECT_EQ(Run({"experiment", "report"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("report wants DIR"));
  EXPECT_EQ(Run({"experiment", "report", "results", "--out", "x"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("--out is for runs"));
  EXPECT_EQ(Run({"experiment", "a.yaml", "b.yaml"}), kExitUsage);
  EXPECT_THAT(error_, HasSubstr("'b.yaml' is one word too many"));
}

TEST_F(CommandTest, ACalibrationOfADeviceThatNoNodeIsIsRefused) {
  const std::string file = testing::TempDir() + "/of_h200.json";
  std::ofstream(file) << R"({"format": 1, "device": "x", "date": "2026"})";
  const auto simulate = [&](const std::string& memory) {
    return Run({"simulate", "--cluster", test_support::SourcePath("deploy/clusters/local.yaml"),
                "--catalogue", test_support::SourcePath("cost/catalogues/default.yaml"), "--model",
                "SmolLM2-135M", "--compute", "EPYC-9654", "--memory", memory, "--calibration",
                "H200=" + file, "--load", "input=64,output=4", "--requests", "1"});
  };

  EXPECT_EQ(simulate("EPYC-9654"), kExitFailed);
  EXPECT_THAT(error_, HasSubstr("--calibration: H200 is the device of no node"));
  EXPECT_EQ(simulate("H200"), kExitOk) << error_;
}

}  // namespace
}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
//
// What the commands of `lamina` share. Each command has one file with one Add...Command(), which
// declares its flags; parsing then leaves the chosen command's body in `Invocation::run`.

#pragma once

#include <functional>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/interrupts.h"
#include "client/cli/terminal.h"
#include "client/client.h"
#include "common/clock.h"
#include "nlohmann/json.hpp"

namespace lamina::cli {

using Json = nlohmann::ordered_json;

// The exit statuses of every command. Wrong usage is 2.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

// Outlives the command.
struct Invocation {
  std::string version;
  std::string server = "127.0.0.1:7400";
  std::string tls_ca;  // Empty: no TLS.
  bool json = false;
  Interrupts* interrupts = nullptr;
  std::function<int()> run;
};

// Adds a subcommand with --json, and its examples at the end of --help.
CLI::App* AddCommand(CLI::App& app, Invocation& invocation, const std::string& name,
                     const std::string& purpose, const std::string& examples);
// Adds --server.
void AddServerFlag(CLI::App* command, Invocation& invocation);
// Adds --temperature, --top-k and --top-p.
void AddDrawFlags(CLI::App* command, client::GenerateOptions& options);
// Adds these and the other flags of sampling and length that generate and chat have in common.
void AddGenerationFlags(CLI::App* command, client::GenerateOptions& options);
// Adds --policy and --kv.
void AddPolicyFlags(CLI::App* command, std::string& policy, std::string& kv);

// A check of a number's range for CLI11: [least, most], said in words when it fails.
CLI::Validator Within(double least, double most);
// Checks the range of whole numbers, in decimal digits; for Option::transform(). CLI11 alone would
// take "" for 0, 010 for 8 and -1 for the largest number.
CLI::Validator Whole(int64_t least, uint64_t most);

// `wait`: for each answer at most; 0: for as long as clients wait.
absl::StatusOr<std::unique_ptr<client::Client>> Connect(const Invocation& invocation,
                                                        Nanos wait = 0);

// What the command line says cannot be: Fail() returns kExitUsage for it.
absl::Status UsageError(absl::string_view message);

// Prints the error on stderr and returns the exit status for it. Not for the user's own Ctrl-C: a
// request that others cancelled has failed.
int Fail(const absl::Status& status);
// Fails because flags contradict each other.
int FailUsage(const std::string& command, const std::string& message);

// One line of JSON on stdout; bytes that are not UTF-8 become U+FFFD.
void PrintJson(const Json& value);

// Whether stdout takes no more, as a full disk or a pipe whose reader has gone: what only fills it
// stops. FinishOutput() then says so.
bool OutputFailed();

// Writes out what is left of stdout, and returns `exit_status`. When some of the output could not
// be written it says so on stderr, and success becomes kExitFailed.
int FinishOutput(int exit_status);

// Each adds one command.
void AddBatchCommand(CLI::App& app, Invocation& invocation);
void AddBenchCommand(CLI::App& app, Invocation& invocation);
void AddCalibrateCommand(CLI::App& app, Invocation& invocation);
void AddCancelCommand(CLI::App& app, Invocation& invocation);
void AddChatCommand(CLI::App& app, Invocation& invocation);
void AddCompletionCommand(CLI::App& app, Invocation& invocation);
void AddConfigCommand(CLI::App& app, Invocation& invocation);
void AddDetokenizeCommand(CLI::App& app, Invocation& invocation);
void AddDoctorCommand(CLI::App& app, Invocation& invocation);
void AddExperimentCommand(CLI::App& app, Invocation& invocation);
void AddExplainCommand(CLI::App& app, Invocation& invocation);
void AddGenerateCommand(CLI::App& app, Invocation& invocation);
void AddHelpCommand(CLI::App& app, Invocation& invocation);
void AddInspectCommand(CLI::App& app, Invocation& invocation);
void AddNodeCommand(CLI::App& app, Invocation& invocation);
void AddPlanCommand(CLI::App& app, Invocation& invocation);
void AddScoreCommand(CLI::App& app, Invocation& invocation);
void AddSimulateCommand(CLI::App& app, Invocation& invocation);
void AddSplitCommand(CLI::App& app, Invocation& invocation);
void AddStatusCommand(CLI::App& app, Invocation& invocation);
void AddTopCommand(CLI::App& app, Invocation& invocation);
void AddTokenizeCommand(CLI::App& app, Invocation& invocation);
void AddVersionCommand(CLI::App& app, Invocation& invocation);

}  // namespace lamina::cli

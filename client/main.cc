// SPDX-License-Identifier: Apache-2.0
//
// lamina: the user's command. Every subcommand is a file of client/cli/.
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/trace.h"
#include "client/cli/usage.h"
#include "common/malloc_pages.h"
#include "common/name_lookup.h"
#include "common/standard_streams.h"

namespace lamina::cli {
namespace {

constexpr char kPurpose[] =
    "lamina: ask a Lamina cluster for text, and look into it.\n"
    "Lamina serves language models on compute nodes, which hold the weights, and memory nodes, "
    "which\n"
    "hold the KV cache and compute attention.";
constexpr char kFooter[] = R"(Start a cluster on this machine:
  deploy/quickstart.sh --keep
  lamina generate "The capital of France is" --max-tokens 20
  lamina status
`lamina help COMMAND` has the flags and examples of a command.
Exit status: 0 ok, 1 the work failed, 2 wrong usage, 130 Ctrl-C.
)";

void AddCommands(CLI::App& app, Invocation& invocation) {
  AddGenerateCommand(app, invocation);
  AddCalibrateCommand(app, invocation);
  AddChatCommand(app, invocation);
  AddScoreCommand(app, invocation);
  AddTokenizeCommand(app, invocation);
  AddDetokenizeCommand(app, invocation);
  AddStatusCommand(app, invocation);
  AddExplainCommand(app, invocation);
  AddTopCommand(app, invocation);
  AddCancelCommand(app, invocation);
  AddNodeCommand(app, invocation);
  AddTraceCommand(app, invocation);
  AddBenchCommand(app, invocation);
  AddBatchCommand(app, invocation);
  AddSplitCommand(app, invocation);
  AddInspectCommand(app, invocation);
  AddConfigCommand(app, invocation);
  AddPlanCommand(app, invocation);
  AddSimulateCommand(app, invocation);
  AddExperimentCommand(app, invocation);
  AddDoctorCommand(app, invocation);
  AddVersionCommand(app, invocation);
  AddCompletionCommand(app, invocation);
  AddHelpCommand(app, invocation);
}

int Main(int argc, char** argv) {
  KeepStandardStreams(argv);
  LookUpNamesAsTheSystemDoes();
  // See: https://no-color.org
  if (const char* plain = std::getenv("NO_COLOR"); plain != nullptr && *plain != '\0') {
    Terminal::LeaveColoursOut();
  }
  Interrupts interrupts;
  Invocation invocation = {.version = LAMINA_VERSION, .interrupts = &interrupts};
  if (const char* server = std::getenv("LAMINA_SERVER"); server != nullptr && *server != '\0') {
    invocation.server = server;
  }
  if (const char* ca = std::getenv("LAMINA_TLS_CA"); ca != nullptr) {
    invocation.tls_ca = ca;
  }
  CLI::App app(kPurpose, "lamina");
  app.footer(kFooter);
  app.formatter(MakeHelpFormatter());
  app.set_version_flag("--version", absl::StrCat("lamina ", invocation.version));
  app.require_subcommand(1);
  AddCommands(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ExplainUsage(app, error);
  }
  return invocation.run();
}

}  // namespace
}  // namespace lamina::cli

int main(int argc, char** argv) {
  const absl::string_view command = argc > 1 ? argv[1] : "";
  if (command == "simulate" || command == "plan") {
    lamina::EnsureHugePagesForMalloc(argv);  // The scheduler runs here, as in the coordinator.
    lamina::KeepFreedMemory();
  }
  return lamina::cli::FinishOutput(lamina::cli::Main(argc, argv));
}

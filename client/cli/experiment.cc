// SPDX-License-Identifier: Apache-2.0
//
// lamina experiment: a matrix of clusters, models, loads and seeds, by bench/experiment.py of the
// checkout that this program was built in.
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"

namespace lamina::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kExamples[] =
    R"(  lamina experiment bench/experiment_example.yaml --out run/experiment
  lamina experiment report run/experiment
FILE names clusters (files that are started here, coordinators that serve already, or simulated
ones), loads, and if wanted models, seeds and an SLO; all combinations run, and the same command
again runs what is missing. DIR gets results.jsonl and results.csv, and from report tables and
plots; what FILE may have: docs/experiments/running.md. With --json runs are printed with their
results, and progress goes to stderr.
Needs python3 with its package yaml, and the checkout in which this program was built.
)";
constexpr char kReport[] = "report";
// From the program's folder to the checkout's: build/PRESET/bin.
constexpr int kLevelsMax = 3;

struct ExperimentFlags {
  std::string file;
  std::string reported;
  std::string out;
};

// The script of the checkout around this program. A bundle has none, wherever it lies.
absl::StatusOr<std::string> FindScript() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  fs::path folder = program.parent_path();
  for (int level = 0; level < kLevelsMax; ++level) {
    folder = folder.parent_path();
    if (fs::exists(folder / "BUNDLE", error)) {
      break;
    }
    const fs::path script = folder / "bench" / "experiment.py";
    if (fs::is_regular_file(script, error)) {
      return script.string();
    }
  }
  return absl::NotFoundError(
      absl::StrCat("no checkout with bench/experiment.py is around ", program.string(),
                   "; experiments run in a checkout of the repository: build there "
                   "(deploy/build.sh) and type build/release/bin/lamina experiment; clusters "
                   "elsewhere are named in FILE by their server"));
}

// Returns only where Python cannot be started.
int BecomePython(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  // Ctrl-C is Python's from now on (client/cli/interrupts.h).
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  execvp(arguments[0], arguments.data());
  return Fail(
      absl::UnavailableError(absl::StrCat("python3 cannot be started: ", std::strerror(errno),
                                          "; apt-get install python3 python3-yaml")));
}

int Run(const Invocation& invocation, const ExperimentFlags& flags) {
  const bool report = flags.file == kReport;
  if (report && flags.reported.empty()) {
    return FailUsage("experiment", "report wants DIR, the folder with the results");
  }
  if (report && !flags.out.empty()) {
    return FailUsage("experiment", "--out is for runs; report takes DIR alone");
  }
  if (!report && !flags.reported.empty()) {
    return FailUsage("experiment", absl::StrCat("one FILE, or report DIR; '", flags.reported,
                                                "' is one word too many"));
  }
  const absl::StatusOr<std::string> script = FindScript();
  if (!script.ok()) {
    return Fail(script.status());
  }
  std::vector<std::string> words = {"python3", "-B", *script};
  if (invocation.json) {
    words.emplace_back("--json");
    words.emplace_back("-");
  }
  if (report) {
    words.emplace_back(kReport);
    words.push_back(flags.reported);
  } else {
    const std::string usual = absl::StrCat(fs::path(flags.file).stem().string(), "-results");
    words.emplace_back("run");
    words.push_back(flags.file);
    words.emplace_back("--out");
    words.push_back(flags.out.empty() ? usual : flags.out);
  }
  return BecomePython(std::move(words));
}

}  // namespace

void AddExperimentCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(
      app, invocation, "experiment",
      "Run a matrix of clusters, loads and seeds, real or simulated, and report it", kExamples);
  const auto flags = std::make_shared<ExperimentFlags>();
  command->add_option("FILE", flags->file, "The experiment (YAML), or the word report")->required();
  command->add_option("DIR", flags->reported, "With report: the folder with the results");
  command
      ->add_option("--out", flags->out,
                   "The folder for the results (default: FILE's name with -results for its ending, "
                   "in the working directory)")
      ->type_name("DIR");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
#include "daemon/daemon.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "common/cores.h"
#include "common/file_limit.h"
#include "common/host_port.h"
#include "common/log.h"
#include "common/log_event.h"
#include "common/numa.h"
#include "common/standard_streams.h"
#include "common/status_macros.h"
#include "common/thread_pool.h"
#include "common/version.h"
#include "daemon/grpc_log_service.h"

namespace lamina::daemon {
namespace {

LogLevel ToLogLevel(const std::string& name) {
  if (name == "debug") {
    return LogLevel::kDebug;
  }
  if (name == "warning") {
    return LogLevel::kWarning;
  }
  return name == "error" ? LogLevel::kError : LogLevel::kInfo;
}

LogFormat ToLogFormat(const std::string& name) {
  return name == "json" ? LogFormat::kJson : LogFormat::kText;
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Nanos WatchdogOfEnvironment() {
  const std::string pid = Variable("WATCHDOG_PID");
  uint64_t micros = 0;
  if ((!pid.empty() && pid != absl::StrCat(getpid())) ||
      !absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &micros)) {
    return 0;
  }
  return static_cast<Nanos>(micros) * 1000;
}

// Whether stderr is the journal's, by what systemd says of it.
bool LogsToJournal() {
  const std::string stream = Variable("JOURNAL_STREAM");
  struct stat status {};
  return fstat(STDERR_FILENO, &status) == 0 &&
         stream == absl::StrCat(status.st_dev, ":", status.st_ino);
}

LogFormat FormatHere(LogFormat wanted) {
  return wanted == LogFormat::kText && LogsToJournal() ? LogFormat::kJournal : wanted;
}

// The signals that a thread of their own waits for.
sigset_t AwaitedSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGHUP);
  return set;
}

// Without a port the library would try that of HTTPS, for ever. "" is the default.
CLI::Validator IsAddress() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        return text.empty() || IsServerAddress(text)
                   ? ""
                   : absl::StrCat("'", text, "' is not an address like 127.0.0.1:7400");
      },
      "");
}

// The file is put in place by a rename: a device or a pipe there would be lost to everybody.
CLI::Validator IsReplaceable() {
  return CLI::Validator(
      [](const std::string& path) -> std::string {
        std::error_code none;
        const std::filesystem::file_status there = std::filesystem::status(path, none);
        return !std::filesystem::exists(there) || std::filesystem::is_regular_file(there)
                   ? ""
                   : absl::StrCat("'", path, "' is there and is no regular file");
      },
      "");
}

// What SIGTERM, SIGINT and SIGHUP do. They are blocked in all threads; one of its own waits for
// them.
class Signals {
 public:
  // The one of this process. It is never freed: its thread lives as long.
  static Signals& Get() {
    static Signals* const signals = new Signals;
    return *signals;
  }

  void Watch() {
    std::thread([this] {
      Await(/*again=*/false);
      Await(/*again=*/true);
    }).detach();
  }

  void SetHandlers(std::function<void()> first, std::function<void()> second) {
    const absl::MutexLock lock(&mu_);
    first_ = std::move(first);
    second_ = std::move(second);
    had_handlers_ = true;
  }

  void SetHangupHandler(std::function<void()> handler) {
    const absl::MutexLock lock(&mu_);
    hangup_ = std::move(handler);
  }

 private:
  // A handler runs under the lock: once it has been replaced, what it used may go.
  void Await(bool again) {
    const int number = AwaitEnd();
    const absl::MutexLock lock(&mu_);
    const std::function<void()>& handler = again ? second_ : first_;
    if (handler == nullptr) {
      LogInfo("signal ", number, had_handlers_ ? " while it ends" : " before it serves",
              "; stopping at once");
      FlushLog();
      _exit(again ? 1 : 0);
    }
    if (again) {
      LogWarning("signal ", number, " again; stopping at once");
      FlushLog();  // The handler may end the process.
    } else {
      LogInfo("signal ", number, "; stopping");
    }
    handler();
  }

  // SIGTERM or SIGINT.
  int AwaitEnd() {
    const sigset_t set = AwaitedSignals();
    for (;;) {
      int number = 0;
      sigwait(&set, &number);
      if (number != SIGHUP) {
        return number;
      }
      HangUp();
    }
  }

  void HangUp() {
    const absl::MutexLock lock(&mu_);
    if (hangup_ != nullptr) {
      hangup_();
    } else {
      LogInfo("SIGHUP: nothing is read again; another cluster file wants a restart");
    }
  }

  absl::Mutex mu_;
  std::function<void()> first_ ABSL_GUARDED_BY(mu_);
  std::function<void()> second_ ABSL_GUARDED_BY(mu_);
  std::function<void()> hangup_ ABSL_GUARDED_BY(mu_);
  bool had_handlers_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

ParsedFlags ParseDaemonFlags(int argc, char** argv, const std::string& purpose,
                             const std::string& default_name) {
  KeepStandardStreams(argv);
  ParsedFlags parsed;
  DaemonFlags& flags = parsed.flags;
  flags.name = default_name;
  CLI::App app(purpose);
  app.set_version_flag("--version", std::string(kVersion));
  const auto* cluster =
      app.add_option("--cluster", flags.cluster_file,
                     "Cluster file (YAML); see docs/configuration.md. Not needed where --set has "
                     "every key that is wanted");
  auto* name = app.add_option("--name", flags.name, "This daemon's name in the cluster file");
  if (default_name.empty()) {
    name->required();
  }
  app.add_option("--set", flags.overrides,
                 "Override a key of the cluster file, or set it without one: pipeline.lanes=1")
      ->take_all();
  app.add_option("--coordinator", flags.coordinator,
                 "Coordinator's address; default: coordinator.advertise of the cluster file, else "
                 "coordinator.listen")
      ->check(IsAddress());
  if (default_name != "gateway") {  // It joins nothing.
    app.add_option("--cluster-token-file", flags.cluster_token_file,
                   "File with the secret of the cluster's members, of mode 0600; default: "
                   "cluster_token_file of the cluster file");
  }
  app.add_option("--ready-file", flags.ready_file, "Written once this daemon serves")
      ->check(IsReplaceable());
  app.add_option("--log-level", flags.log_level,
                 "debug, info, warning or error; default: log.level of the cluster file")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
  app.add_option("--log-format", flags.log_format,
                 "text, or json: one object per line; default: log.format of the cluster file")
      ->check(CLI::IsMember({"text", "json"}));
  try {
    app.parse(argc, argv);
    if (flags.cluster_file.empty() && (cluster->count() > 0 || flags.overrides.empty())) {
      throw CLI::RequiredError("--cluster");
    }
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    parsed.exit_status = code == 0 ? 0 : 2;
    return parsed;
  }
  SetUpLogging(flags.name, ToLogLevel(flags.log_level));
  SetLogFormat(FormatHere(ToLogFormat(flags.log_format)));
  RaiseFileLimit();
  RouteGrpcLog();
  const sigset_t set = AwaitedSignals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  return parsed;
}

absl::StatusOr<ClusterConfig> LoadDaemonConfig(const DaemonFlags& flags) {
  absl::StatusOr<ClusterConfig> config =
      flags.cluster_file.empty() ? ParseClusterConfig("{}", "--set", flags.overrides)
                                 : LoadClusterConfig(flags.cluster_file, flags.overrides);
  if (config.ok()) {
    SetUpLogging(flags.name,
                 flags.log_level.empty() ? config->log.level : ToLogLevel(flags.log_level));
    SetLogFormat(
        FormatHere(flags.log_format.empty() ? config->log.format : ToLogFormat(flags.log_format)));
    LogDebug("effective configuration\n", ToYaml(*config));
  }
  return config;
}

absl::StatusOr<ClusterSecret> LoadClusterSecret(const DaemonFlags& flags,
                                                const ClusterConfig& config) {
  const std::string& path =
      flags.cluster_token_file.empty() ? config.cluster_token_file : flags.cluster_token_file;
  if (path.empty()) {
    return ClusterSecret();
  }
  return ClusterSecret::Read(path);
}

absl::StatusOr<std::string> CoordinatorAddress(const DaemonFlags& flags,
                                               const ClusterConfig& config) {
  std::string address = flags.coordinator.empty() ? config.CoordinatorAddress() : flags.coordinator;
  if (absl::EndsWith(address, ":0")) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator.listen: ", config.coordinator_listen,
                     " leaves the port to the system; say which it is with --coordinator "
                     "HOST:PORT, as the coordinator's log has it"));
  }
  return address;
}

absl::Status NoNodeNamed(absl::string_view role, const std::string& name,
                         const std::vector<std::string>& names) {
  return absl::NotFoundError(absl::StrCat("the cluster file has no ", role, " node named '", name,
                                          "'; it has ",
                                          names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::Status RequireCores(const std::vector<int>& cores) {
  const std::vector<int> missing = CoresMissing(cores);
  if (missing.empty()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("cores ", absl::StrJoin(cores, ","),
                                                 ": this process may not use ",
                                                 absl::StrJoin(missing, ","),
                                                 ", which this host does not have or keeps from it "
                                                 "(taskset, a container); name others"));
}

absl::Status KeepToCores(const std::vector<int>& cores) {
  LAMINA_RETURN_IF_ERROR(RequireCores(cores));
  if (!cores.empty() && !PinThisThread(cores)) {
    LogWarning("could not pin this daemon to its cores");
  }
  return absl::OkStatus();
}

void TakeMemoryNear(const std::vector<int>& cores) {
  const std::vector<int> nodes = NumaNodesOf(cores);
  if (nodes.empty()) {
    return;  // A policy that the daemon was started with stays.
  }
  const absl::Status preferred = PreferMemoryOf(nodes);
  if (!preferred.ok()) {
    LogWarning("memory may lie far from the cores: ", preferred.message());
  } else {
    LogInfo("memory of NUMA nodes ", absl::StrJoin(nodes, ","));
  }
}

void EndOnTermination() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  WriteLogsOnAThread();
  Signals::Get().Watch();
}

TerminationHandlers::TerminationHandlers(std::function<void()> first,
                                         std::function<void()> second) {
  Signals::Get().SetHandlers(std::move(first), std::move(second));
}

TerminationHandlers::~TerminationHandlers() { Signals::Get().SetHandlers(nullptr, nullptr); }

void OnHangup(std::function<void()> handler) {
  Signals::Get().SetHangupHandler(std::move(handler));
}

absl::Status WriteReadyFile(const DaemonFlags& flags, const std::string& text) {
  if (flags.ready_file.empty()) {
    return absl::OkStatus();
  }
  const std::string partial = flags.ready_file + ".partial";
  std::ofstream out(partial, std::ios::trunc);
  out << text << '\n';
  out.close();
  if (!out || std::rename(partial.c_str(), flags.ready_file.c_str()) != 0) {
    return absl::InternalError(absl::StrCat("could not write the ready file ", flags.ready_file));
  }
  return absl::OkStatus();
}

void GiveCudaStreamsTheirOwnQueues() { setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); }

std::unique_ptr<ServiceManager> ServiceManagerOfEnvironment() {
  return std::make_unique<ServiceManager>(Variable("NOTIFY_SOCKET"), WatchdogOfEnvironment());
}

int ExitStatus(const absl::Status& status) {
  if (status.ok()) {
    return 0;
  }
  LogError(status.message());
  return 1;
}

}  // namespace lamina::daemon

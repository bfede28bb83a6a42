// SPDX-License-Identifier: Apache-2.0
//
// lamina doctor: what is wrong with this host, why it matters, and what to type.
#include <algorithm>
#include <optional>
#include <semaphore>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/doctor/gpu_checks.h"
#include "client/doctor/host_checks.h"
#include "client/doctor/interfaces.h"
#include "client/doctor/peer_checks.h"
#include "client/doctor/peer_server.h"
#include "client/doctor/reach_checks.h"
#include "client/doctor/window_checks.h"
#include "common/cluster_secret.h"
#include "config/cluster_config.h"
#include "transport/registry.h"

namespace lamina::cli {
namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::State;

constexpr char kExamples[] = R"(  lamina doctor
  lamina doctor --cluster deploy/clusters/local.yaml
  lamina doctor --json
  lamina doctor --serve 0.0.0.0:7500 --cluster-token-file cluster.token   # on one host; on another:
  lamina doctor --peer 192.0.2.1:7500 --cluster-token-file cluster.token
Looks at this host alone: run it on each. With --peer at what is between this host and another too,
where --serve runs until Ctrl-C: both know the cluster's secret, or it serves this host alone.
Exit status 1 when a check fails.
)";

constexpr Nanos kEach = Millis(200);

struct DoctorFlags {
  std::string cluster;
  std::vector<std::string> overrides;
  std::string serve;
  std::string peer;
  std::string cluster_token_file;
};

const char* NameOf(State state) {
  switch (state) {
    case State::kOk:
      return "ok";
    case State::kWarn:
      return "warn";
    case State::kFail:
      return "fail";
  }
  return "unknown";
}

void Print(const Findings& findings) {
  const Terminal& terminal = Terminal::Output();
  for (const Finding& finding : findings) {
    const std::string state = absl::StrFormat("%-4s", NameOf(finding.state));
    std::printf(
        "%s  %-16s %s\n",
        (finding.state == State::kOk ? terminal.Green(state) : terminal.Yellow(state)).c_str(),
        finding.check.c_str(), finding.found.c_str());
    if (finding.state != State::kOk) {
      std::printf("      why: %s\n      fix: %s\n", finding.why.c_str(), finding.fix.c_str());
    }
  }
}

Json ToJson(const Findings& findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"state", NameOf(finding.state)},
                    {"found", finding.found},
                    {"why", finding.why},
                    {"fix", finding.fix}});
  }
  return list;
}

// Without a cluster file: all that this build has and that crosses processes.
std::vector<std::string> TransportsToTry(const std::optional<ClusterConfig>& cluster) {
  if (cluster) {
    return cluster->transport;
  }
  std::vector<std::string> schemes = transport::BuiltTransports();
  std::erase(schemes, "fake");
  return schemes;
}

// The flag's, else the cluster file's; empty: none.
std::string TokenFile(const DoctorFlags& flags, const std::optional<ClusterConfig>& cluster) {
  return flags.cluster_token_file.empty() && cluster ? cluster->cluster_token_file
                                                     : flags.cluster_token_file;
}

// Until Ctrl-C.
int Serve(const Invocation& invocation, const DoctorFlags& flags,
          const std::optional<ClusterConfig>& cluster, const ClusterSecret& secret) {
  const auto server =
      doctor::PeerServer::Start({.listen = flags.serve,
                                 .version = invocation.version,
                                 .verbs_uri = cluster ? cluster->verbs.Uri() : "verbs://",
                                 .unix_nanos = &doctor::UnixNanos,
                                 .interfaces = doctor::ListInterfaces(),
                                 .secret = secret});
  if (!server.ok()) {
    return Fail(server.status());
  }
  std::printf("serving at %s; on the other host: lamina doctor --peer %s\n",
              (*server)->address().c_str(), (*server)->address().c_str());
  std::fflush(stdout);
  std::binary_semaphore interrupted(0);
  const Interrupts::Scoped handler(*invocation.interrupts,
                                   [&interrupted] { interrupted.release(); });
  interrupted.acquire();
  return kExitOk;
}

int Run(const Invocation& invocation, const DoctorFlags& flags) {
  std::optional<ClusterConfig> cluster;
  if (!flags.cluster.empty()) {
    const auto loaded = LoadClusterConfig(flags.cluster, flags.overrides);
    if (!loaded.ok()) {
      return Fail(loaded.status());
    }
    cluster = *loaded;
  }
  const std::string token_file = TokenFile(flags, cluster);
  const absl::StatusOr<ClusterSecret> secret =
      token_file.empty() ? ClusterSecret() : ClusterSecret::Read(token_file);
  if (!flags.serve.empty()) {
    return secret.ok() ? Serve(invocation, flags, cluster, *secret) : Fail(secret.status());
  }
  Findings findings =
      doctor::CheckHost(doctor::CollectHostFacts(""), cluster ? &*cluster : nullptr);
  const auto add = [&findings](Findings more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  add(doctor::CheckGpus(doctor::CollectGpuFacts("")));
  add(doctor::CheckTransports(
      TransportsToTry(cluster), kEach,
      cluster ? doctor::TransportsOf::kClusterFile : doctor::TransportsOf::kBuild));
  add(doctor::CheckDeviceWindows(TransportsToTry(cluster), doctor::OpenDoctorDevice()));
  if (cluster) {
    add({doctor::CheckSecret(token_file, cluster->coordinator_listen)});
    add(doctor::CheckCoordinator(cluster->coordinator_listen, invocation.version));
  }
  if (!flags.peer.empty()) {
    add(doctor::CheckPeer({.address = flags.peer,
                           .transports = TransportsToTry(cluster),
                           .version = invocation.version,
                           .verbs_uri = cluster ? cluster->verbs.Uri() : "verbs://",
                           .secret = secret.value_or(ClusterSecret())}));
  }
  if (invocation.json) {
    PrintJson(ToJson(findings));
  } else {
    Print(findings);
  }
  const bool failed = std::any_of(findings.begin(), findings.end(), [](const Finding& finding) {
    return finding.state == State::kFail;
  });
  return failed ? kExitFailed : kExitOk;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "doctor", "What is wrong with this host, and the fix", kExamples);
  const auto flags = std::make_shared<DoctorFlags>();
  command->add_option("--cluster", flags->cluster, "Look at what this cluster file needs")
      ->type_name("FILE");
  command->add_option("--set", flags->overrides, "Override a key of the cluster file")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  CLI::Option* serve =
      command->add_option("--serve", flags->serve, "Be the other end of a --peer, until Ctrl-C")
          ->type_name("HOST:PORT");
  command->add_option("--peer", flags->peer, "Look also at what is between this host and that one")
      ->type_name("HOST:PORT")
      ->excludes(serve);
  command
      ->add_option("--cluster-token-file", flags->cluster_token_file,
                   "File with the cluster's secret, for --serve and --peer (default: "
                   "cluster_token_file of the cluster file)")
      ->type_name("FILE");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli

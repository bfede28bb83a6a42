// SPDX-License-Identifier: Apache-2.0
//
// lamina doctor: what is wrong with this host, why it matters, and what to type.
#include <algorithm>
#include <optional>
#include <semaphore>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/cli/other_host.h"
#include "client/doctor/gpu_checks.h"
#include "client/doctor/host_checks.h"
#include "client/doctor/interfaces.h"
#include "client/doctor/peer_checks.h"
#include "client/doctor/peer_server.h"
#include "client/doctor/reach_checks.h"
#include "client/doctor/window_checks.h"
#include "common/cluster_secret.h"
#include "common/ucx_environment.h"
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
  bool only_peer = false;
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

bool Failed(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.state == State::kFail; });
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

std::string UcxUri(const std::optional<ClusterConfig>& cluster) {
  return cluster ? cluster->UcxUriBetweenHosts() : "ucx://";
}

std::string VerbsUri(const std::optional<ClusterConfig>& cluster) {
  return cluster ? cluster->VerbsUriBetweenHosts() : "verbs://";
}

// What is measured goes by the network of the cluster file, as data does.
Findings CheckNetwork(const ClusterConfig& cluster) {
  Finding finding = {.check = "network",
                     .why = "nodes of this host would not start: data goes over that network"};
  const absl::StatusOr<std::string> interface = KeepUcxTo(cluster.network, cluster.ports);
  if (interface.ok()) {
    finding.found = absl::StrCat(*interface, ", the interface of ", cluster.network);
  } else {
    finding.state = State::kFail;
    finding.found = std::string(interface.status().message());
    finding.fix = "ip -brief address   # and name one of these networks, the same on every host";
  }
  return cluster.network.empty() ? Findings() : Findings{finding};
}

// The flag's, else the cluster file's; empty: none.
std::string TokenFile(const DoctorFlags& flags, const std::optional<ClusterConfig>& cluster) {
  return flags.cluster_token_file.empty() && cluster ? cluster->cluster_token_file
                                                     : flags.cluster_token_file;
}

// Until Ctrl-C.
int Serve(const Invocation& invocation, const DoctorFlags& flags,
          const std::optional<ClusterConfig>& cluster, const ClusterSecret& secret) {
  const auto server = doctor::PeerServer::Start({.listen = flags.serve,
                                                 .version = invocation.version,
                                                 .ucx_uri = UcxUri(cluster),
                                                 .verbs_uri = VerbsUri(cluster),
                                                 .ports = cluster ? cluster->ports : PortRange(),
                                                 .unix_nanos = &doctor::UnixNanos,
                                                 .interfaces = doctor::ListInterfaces(),
                                                 .secret = secret});
  if (!server.ok()) {
    return Fail(server.status());
  }
  // cluster.sh reads the first half.
  std::printf("serving at %s; on the other host: lamina doctor --peer %s%s\n",
              (*server)->address().c_str(),
              ListenerSeenFromElsewhere((*server)->address(), ThisHostsName()).c_str(),
              TokenFlag(TokenFile(flags, cluster)).c_str());
  std::fflush(stdout);
  std::binary_semaphore interrupted(0);
  const Interrupts::Scoped handler(*invocation.interrupts,
                                   [&interrupted] { interrupted.release(); });
  interrupted.acquire();
  return kExitOk;
}

// With the names by which the cluster file has it.
doctor::HostFacts FactsOfThisHost(const std::optional<ClusterConfig>& cluster) {
  doctor::HostFacts facts = doctor::CollectHostFacts("");
  std::vector<std::string> hosts;
  if (cluster) {
    for (const ComputeNodeConfig& node : cluster->compute) {
      hosts.push_back(node.host);
    }
    for (const MemoryNodeConfig& node : cluster->memory) {
      hosts.push_back(node.host);
    }
  }
  doctor::AddOwnNames(hosts, facts);
  return facts;
}

Findings CheckThisHost(const std::optional<ClusterConfig>& cluster, const std::string& token_file,
                       const std::string& version) {
  Findings findings = doctor::CheckHost(FactsOfThisHost(cluster), cluster ? &*cluster : nullptr);
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
    add(doctor::CheckCoordinator(cluster->CoordinatorAddress(), version, cluster->tls.ca));
  }
  return findings;
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
  // Before anything uses UCX.
  Findings findings = cluster ? CheckNetwork(*cluster) : Findings();
  const std::string token_file = TokenFile(flags, cluster);
  const absl::StatusOr<ClusterSecret> secret =
      token_file.empty() ? ClusterSecret() : ClusterSecret::Read(token_file);
  if (!flags.serve.empty()) {
    if (Failed(findings)) {
      return Fail(absl::FailedPreconditionError(findings.front().found));
    }
    return secret.ok() ? Serve(invocation, flags, cluster, *secret) : Fail(secret.status());
  }
  const auto add = [&findings](Findings more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  if (!flags.only_peer) {
    add(CheckThisHost(cluster, token_file, invocation.version));
  }
  if (!flags.peer.empty()) {
    if (!secret.ok() && (flags.only_peer || !cluster)) {  // Else CheckThisHost() has said it.
      add({doctor::CheckSecret(token_file, flags.peer)});
    }
    add(doctor::CheckPeer({.address = flags.peer,
                           .transports = TransportsToTry(cluster),
                           .version = invocation.version,
                           .ucx_uri = UcxUri(cluster),
                           .verbs_uri = VerbsUri(cluster),
                           .secret = secret.value_or(ClusterSecret())}));
  }
  if (invocation.json) {
    PrintJson(ToJson(findings));
  } else {
    Print(findings);
  }
  return Failed(findings) ? kExitFailed : kExitOk;
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
  CLI::Option* peer =
      command
          ->add_option("--peer", flags->peer, "Look also at what is between this host and that one")
          ->type_name("HOST:PORT")
          ->excludes(serve);
  command->add_flag("--only-peer", flags->only_peer, "With --peer: look at nothing else")
      ->needs(peer);
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

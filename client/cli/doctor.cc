// SPDX-License-Identifier: Apache-2.0
//
// lamina doctor: what is wrong with this host, why it matters, and what to type.
#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "client/cli/command.h"
#include "client/doctor/host_checks.h"
#include "client/doctor/reach_checks.h"
#include "common/config/cluster_config.h"
#include "transport/registry.h"

namespace lamina::cli {
namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::State;

constexpr char kExamples[] = R"(  lamina doctor
  lamina doctor --cluster deploy/clusters/local.yaml
  lamina doctor --json
Looks at this host alone: run it on each. Exit status 1 when a check fails.
)";

constexpr Nanos kEach = Millis(200);

struct DoctorFlags {
  std::string cluster;
  std::vector<std::string> overrides;
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

int Run(const Invocation& invocation, const DoctorFlags& flags) {
  std::optional<ClusterConfig> cluster;
  if (!flags.cluster.empty()) {
    const auto loaded = LoadClusterConfig(flags.cluster, flags.overrides);
    if (!loaded.ok()) {
      return Fail(loaded.status());
    }
    cluster = *loaded;
  }
  Findings findings =
      doctor::CheckHost(doctor::CollectHostFacts(""), cluster ? &*cluster : nullptr);
  const auto add = [&findings](Findings more) {
    findings.insert(findings.end(), more.begin(), more.end());
  };
  add(doctor::CheckTransports(TransportsToTry(cluster), kEach));
  if (cluster) {
    add(doctor::CheckCoordinator(cluster->coordinator_listen, invocation.version));
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
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli

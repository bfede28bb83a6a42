// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/reach_checks.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/doctor/tcp_reach.h"
#include "client/doctor/window_checks.h"
#include "common/cluster_secret.h"
#include "common/status_macros.h"
#include "common/tls.h"
#include "common/units.h"
#include "transport/registry.h"

namespace lamina::doctor {
namespace {

using transport::Region;
using transport::RemoteRegion;
using transport::SignalUpdate;
using transport::Transport;

constexpr size_t kBandwidthBytes = MiB(1);
constexpr Nanos kReachWait = Seconds(3);
// For one message.
constexpr Nanos kMessageWait = Seconds(5);

struct Speed {
  double latency_us = 0;
  double gigabytes_per_second = 0;
};

// Two ends, driven by one thread.
struct Pair {
  std::unique_ptr<Transport> sender;
  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;
  uint64_t value = 0;

  absl::Status Message(absl::Span<const std::byte> source) {
    const SignalUpdate signal = {.word = 0, .value = ++value};
    LAMINA_RETURN_IF_ERROR(sender->Put(*remote, 0, source, &signal));
    const Nanos end = RealClock().Now() + kMessageWait;
    while (region->LoadSignal(0) < value || sender->Pending(*remote) > 0) {
      sender->Progress();
      receiver->Progress();
      if (RealClock().Now() > end) {
        return absl::DeadlineExceededError("a message did not arrive");
      }
    }
    return absl::OkStatus();
  }
};

// Seconds of one message, over about `duration`.
absl::StatusOr<double> Time(Pair& pair, absl::Span<const std::byte> source, Nanos duration) {
  const Nanos start = RealClock().Now();
  int64_t count = 0;
  Nanos now = start;
  for (; now < start + duration || count == 0; now = RealClock().Now()) {
    LAMINA_RETURN_IF_ERROR(pair.Message(source));
    ++count;
  }
  return ToSeconds(now - start) / static_cast<double>(count);
}

absl::StatusOr<Speed> Measure(const std::string& uri, Nanos each) {
  std::vector<std::byte> source(kBandwidthBytes);
  Pair pair;
  LAMINA_ASSIGN_OR_RETURN(pair.sender, transport::MakeTransport(uri));
  LAMINA_ASSIGN_OR_RETURN(pair.receiver, transport::MakeTransport(uri));
  LAMINA_RETURN_IF_ERROR(pair.sender->RegisterSource(source, transport::MemoryKind::kHost));
  LAMINA_ASSIGN_OR_RETURN(
      pair.region,
      pair.receiver->CreateRegion({.name = "doctor", .bytes = source.size(), .signal_words = 1}));
  LAMINA_ASSIGN_OR_RETURN(pair.remote, pair.sender->OpenRegion(pair.region->Descriptor(), 0));
  LAMINA_ASSIGN_OR_RETURN(const double latency,
                          Time(pair, absl::MakeConstSpan(source).first(8), each));
  LAMINA_ASSIGN_OR_RETURN(const double large, Time(pair, source, each));
  return Speed{latency * 1e6, static_cast<double>(source.size()) / large * 1e-9};
}

// How to leave a transport out of the list.
std::string WithoutScheme(const std::vector<std::string>& transports, const std::string& scheme) {
  std::vector<std::string> others;
  for (const std::string& other : transports) {
    if (other != scheme) {
      others.push_back(other);
    }
  }
  return others.empty() ? "lamina config --cluster FILE --set transport=shm"
                        : absl::StrCat("lamina config --cluster FILE --set 'transport=[",
                                       absl::StrJoin(others, ", "), "]'   # if it need not be");
}

absl::StatusOr<client::ClusterStatus> StatusOf(const std::string& server,
                                               const std::string& tls_ca) {
  const TlsFiles tls = {.ca = tls_ca};
  LAMINA_RETURN_IF_ERROR(CheckTlsFiles(tls));
  LAMINA_ASSIGN_OR_RETURN(const auto client,
                          client::Client::Connect({.server = server, .tls = tls}));
  return client->Status();
}

}  // namespace

Findings CheckTransports(const std::vector<std::string>& transports, Nanos each, TransportsOf of) {
  Findings findings;
  std::string chosen;
  std::string passed_over;
  for (const std::string& scheme : transports) {
    Finding finding = {.check = "transport." + scheme,
                       .why = "what it reaches between two ends on this host"};
    const absl::StatusOr<Speed> speed = Measure(scheme + "://", each);
    if (speed.ok()) {
      finding.found = absl::StrFormat("put of 8 B %.2f us, of 1 MiB %.2f GB/s", speed->latency_us,
                                      speed->gigabytes_per_second);
      chosen = chosen.empty() ? scheme : chosen;
    } else if (of == TransportsOf::kBuild) {
      // Nobody asked for it: that it is not there is no fault.
      finding.found = absl::StrCat("not here: ", speed.status().message());
    } else {
      finding.state = State::kWarn;
      finding.found = std::string(speed.status().message());
      finding.why = "a cluster file that names it first is served by the next one";
      finding.fix = WithoutScheme(transports, scheme);
      if (chosen.empty()) {
        absl::StrAppend(&passed_over, passed_over.empty() ? "" : "; ", scheme, ": ",
                        speed.status().message());
      }
    }
    findings.push_back(std::move(finding));
  }
  Finding choice = {.check = "transport", .why = "all data of the cluster goes by it"};
  if (chosen.empty()) {
    choice.state = State::kFail;
    choice.found = "none of the list works";
    choice.fix = "lamina config --cluster FILE --set transport=shm";
  } else {
    choice.state = passed_over.empty() ? State::kOk : State::kWarn;
    choice.found = absl::StrCat(
        "the list gives ", chosen,
        passed_over.empty() ? "" : absl::StrCat(", and not the first (", passed_over, ")"));
    choice.fix =
        passed_over.empty() ? "" : "lamina config --cluster FILE --set transport=" + chosen;
  }
  findings.push_back(std::move(choice));
  return findings;
}

Findings CheckCoordinator(const std::string& server, const std::string& version,
                          const std::string& tls_ca) {
  if (const TcpReach reach = ReachTcp(server, kReachWait); reach.reach != Reach::kReached) {
    Finding finding = Unreached(reach, State::kWarn, "coordinator", server,
                                "deploy/cluster.sh up --cluster FILE");
    finding.why = "nodes and clients reach the cluster by it";
    return {finding};
  }
  const absl::StatusOr<client::ClusterStatus> status = StatusOf(server, tls_ca);
  if (!status.ok()) {
    return {{.check = "coordinator",
             .state = State::kWarn,
             .found = absl::StrCat(server, ": ", status.status().message()),
             .why = "nodes and clients reach the cluster by it",
             .fix = "deploy/cluster.sh up --cluster FILE"}};
  }
  Findings findings = {{.check = "coordinator",
                        .found = absl::StrCat(server, ": ", status->state),
                        .why = "nodes and clients reach the cluster by it"}};
  const bool same = status->version == version;
  findings.push_back(
      {.check = "version",
       .state = same ? State::kOk : State::kFail,
       .found = absl::StrCat("coordinator ", status->version, ", this program ", version),
       .why = "nodes of another version are refused",
       .fix = same ? "" : "deploy/build.sh   # on every host, then restart"});
  for (Finding& windows : CheckClusterWindows(*status)) {
    findings.push_back(std::move(windows));
  }
  return findings;
}

Finding CheckSecret(const std::string& token_file, const std::string& listen) {
  Finding finding = {.check = "secret",
                     .found = token_file.empty()
                                  ? "none: every process of this host may join the cluster"
                                  : token_file,
                     .why = "nodes and the coordinator prove to each other that they know it"};
  const absl::StatusOr<ClusterSecret> secret =
      token_file.empty() ? ClusterSecret() : ClusterSecret::Read(token_file);
  const absl::Status status =
      secret.ok() ? RequireSecretBeyondLoopback(*secret, "coordinator.listen", listen)
                  : secret.status();
  if (!status.ok()) {
    finding.state = State::kFail;
    finding.found = std::string(status.message());
    finding.fix = absl::IsPermissionDenied(status)
                      ? absl::StrCat("chmod 600 ", token_file)
                      : absl::StrCat("(umask 077; openssl rand -hex 32 > ",
                                     token_file.empty() ? "cluster.token" : token_file, ")");
  }
  return finding;
}

}  // namespace lamina::doctor

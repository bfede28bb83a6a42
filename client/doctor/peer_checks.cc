// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/peer_checks.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/doctor/interfaces.h"
#include "client/doctor/peer_link.h"
#include "client/doctor/peer_server.h"
#include "client/doctor/tcp_reach.h"
#include "common/status_macros.h"
#include "lamina/v1/doctor.grpc.pb.h"
#include "transport/link_probe.h"
#include "transport/registry.h"

namespace lamina::doctor {
namespace {

// Beyond it the lines of two logs cannot be put in order by their times.
constexpr int64_t kClockOffsetMax = Millis(100);

// For a connection; that of TCP tries again after one second.
constexpr Nanos kReachWait = Seconds(3);
// More than fits any packet.
constexpr size_t kLargeBytes = 256 << 10;
constexpr Nanos kLargeWait = Seconds(5);

using Stub = v1::Doctor::Stub;

// Calls `method`, which ends within `wait`.
template <typename Request, typename Response>
absl::Status Call(Stub& stub,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response* response, Nanos wait) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(wait));
  const grpc::Status status = (stub.*method)(&context, request, response);
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// A call whose bytes stay on the way ends only when the connection does, whatever its deadline; so
// the kernel is to end one that gets no acknowledgement.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  // What is between the hosts is looked at, not what a web proxy of the environment reaches.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(Seconds(60) / Millis(1)));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kLargeWait / Millis(1)));
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

struct Measured {
  transport::LinkSpeed speed;
  std::string path;
};

absl::Status At(const std::string& where, const absl::Status& status) {
  return status.ok() ? status
                     : absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

absl::StatusOr<Measured> Measure(Stub& stub, const std::string& scheme,
                                 const PeerCheckOptions& options) {
  LAMINA_ASSIGN_OR_RETURN(
      const auto own, transport::MakeTransport(UriOf(scheme, options.ucx_uri, options.verbs_uri),
                                               nullptr, options.secret));
  LAMINA_ASSIGN_OR_RETURN(
      const auto region,
      own->CreateRegion({.name = "doctor", .bytes = kPeerRegionBytes, .signal_words = kPeerWords}));
  v1::GreetResponse greeting;
  LAMINA_RETURN_IF_ERROR(Call(stub, &Stub::Greet, v1::GreetRequest(), &greeting, kPeerWait));
  v1::OpenLinkRequest request;
  request.set_transport(scheme);
  request.set_region(region->Descriptor());
  request.set_challenge(greeting.challenge());
  request.set_proof(options.secret.Prove(
      kAskerLabel, {request.challenge(), request.transport(), request.region()}));
  v1::OpenLinkResponse response;
  LAMINA_RETURN_IF_ERROR(At(absl::StrCat("at ", options.address),
                            Call(stub, &Stub::OpenLink, request, &response, 2 * kPeerWait)));
  absl::StatusOr<Measured> measured = absl::UnknownError("not measured");
  if (auto remote = own->OpenRegion(response.region(), 0); remote.ok()) {
    const auto speed = transport::MeasureLink(*own,
                                              {.peer = remote->get(),
                                               .ask_word = kAskWord,
                                               .bytes = region->bytes(),
                                               .region = region.get(),
                                               .answer_word = kAnswerWord},
                                              {.deadline = RealClock().Now() + kPeerWait});
    const std::string path = (*remote)->path();
    measured =
        speed.ok() ? absl::StatusOr<Measured>(Measured{*speed, path}) : At(path, speed.status());
  } else {
    measured = remote.status();
  }
  v1::CloseLinkRequest close;
  close.set_link(response.link());
  v1::CloseLinkResponse closed;
  const absl::Status status = Call(stub, &Stub::CloseLink, close, &closed, 2 * kPeerWait);
  // What this end saw says more, if it saw anything.
  if (measured.ok() && !status.ok()) {
    return At(absl::StrCat("at ", options.address), status);
  }
  return measured;
}

Finding ClockFinding(int64_t offset, int64_t round) {
  Finding finding = {.check = "peer.clock",
                     .found = absl::StrFormat("its clock is %+.3f ms off this one's, to %.3f ms",
                                              static_cast<double>(offset) * 1e-6,
                                              static_cast<double>(round) * 0.5e-6),
                     .why = "logs and traces of several hosts are put in order by their times"};
  if (std::abs(offset) > kClockOffsetMax + round / 2) {
    finding.state = State::kWarn;
    finding.fix = "timedatectl set-ntp true   # on both hosts";
  }
  return finding;
}

Finding TransportFinding(const std::string& scheme, const absl::StatusOr<Measured>& measured) {
  Finding finding = {.check = "peer.transport." + scheme,
                     .why = "what it reaches between the two hosts"};
  if (measured.ok()) {
    finding.found = absl::StrFormat("%s: latency %.2f us one way, %.2f GB/s", measured->path,
                                    measured->speed.latency_seconds * 1e6,
                                    measured->speed.bytes_per_second * 1e-9);
    return finding;
  }
  finding.state = State::kWarn;
  finding.found = std::string(measured.status().message());
  finding.why = "a cluster file that names it first is served by the next one";
  finding.fix = scheme == "shm"
                    ? "lamina config --cluster FILE --set transport=ucx   # shm joins one host"
                    : "lamina doctor   # on both hosts; and let all TCP ports through between "
                      "them: each process listens at one that the system picks";
  return finding;
}

Finding ChoiceFinding(const std::string& chosen, const std::string& first) {
  Finding finding = {.check = "peer.transport", .why = "all data between the hosts goes by it"};
  if (chosen.empty()) {
    finding.state = State::kFail;
    finding.found = "none of the list joins the two hosts";
    finding.fix = "lamina config --cluster FILE --set transport=ucx";
  } else {
    finding.found = absl::StrCat("the list gives ", chosen, " between the two hosts");
    if (chosen != first) {
      finding.state = State::kWarn;
      absl::StrAppend(&finding.found, ", and not ", first, ", the first");
      finding.fix = "lamina config --cluster FILE --set transport=" + chosen;
    }
  }
  return finding;
}

// Large packets are looked at by a large message: where a switch takes smaller ones than both ends,
// and the word of it is lost, only those stall.
Finding MtuFinding(Stub& stub, const v1::GreetResponse& greeting, const TcpReach& reach) {
  std::vector<Interface> there;
  for (const v1::NetworkInterface& one : greeting.interfaces()) {
    there.push_back({.name = one.name(), .address = one.address(), .mtu = one.mtu()});
  }
  const Interface own = WithAddress(ListInterfaces(), reach.own_address);
  Finding finding = CheckMtu(own, WithAddress(there, reach.peer_address));
  v1::GreetRequest large;
  large.set_padding(std::string(kLargeBytes, 'x'));
  v1::GreetResponse answer;
  if (const absl::Status status = Call(stub, &Stub::Greet, large, &answer, kLargeWait);
      !status.ok()) {
    finding.state = State::kFail;
    absl::StrAppend(&finding.found, "; small messages cross, one of ", kLargeBytes,
                    " bytes does not: ", status.message());
    finding.fix =
        absl::StrCat("ip link set ", own.name.empty() ? "INTERFACE" : own.name,
                     " mtu 1280   # on both hosts; larger once the switches between take more");
  }
  return finding;
}

}  // namespace

Findings CheckPeer(const PeerCheckOptions& options) {
  const TcpReach reach = ReachTcp(options.address, kReachWait);
  if (reach.reach != Reach::kReached) {
    return {Unreached(reach, State::kFail, "peer", options.address,
                      absl::StrCat("lamina doctor --serve ", options.address))};
  }
  const std::unique_ptr<Stub> stub = v1::Doctor::NewStub(MakeChannel(options.address));
  v1::GreetResponse greeting;
  // The first call makes the connection; the second one's round is the network's.
  absl::Status reached = Call(*stub, &Stub::Greet, v1::GreetRequest(), &greeting, kPeerWait);
  const int64_t asked = UnixNanos();
  if (reached.ok()) {
    reached = Call(*stub, &Stub::Greet, v1::GreetRequest(), &greeting, kPeerWait);
  }
  const int64_t answered = UnixNanos();
  if (!reached.ok()) {
    return {{.check = "peer",
             .state = State::kFail,
             .found = absl::StrCat(options.address, " is no doctor: ", reached.message()),
             .why = "something else listens at that port",
             .fix = absl::StrCat("lamina doctor --serve ", options.address, "   # there")}};
  }
  Findings findings = {{.check = "peer",
                        .found = absl::StrCat(options.address, ", host ", greeting.host()),
                        .why = "nodes of two hosts reach each other by TCP"}};
  const bool same = greeting.version() == options.version;
  findings.push_back(
      {.check = "peer.version",
       .state = same ? State::kOk : State::kFail,
       .found = absl::StrCat("there ", greeting.version(), ", here ", options.version),
       .why = "nodes of another version are refused",
       .fix = same ? "" : "deploy/build.sh   # on every host, then restart"});
  findings.push_back(
      ClockFinding(greeting.unix_nanos() - (asked + (answered - asked) / 2), answered - asked));
  findings.push_back(MtuFinding(*stub, greeting, reach));
  if (findings.back().state == State::kFail) {
    // Transports would only wait in vain, each in its way.
    return findings;
  }
  std::string chosen;
  for (const std::string& scheme : options.transports) {
    const absl::StatusOr<Measured> measured = Measure(*stub, scheme, options);
    chosen = chosen.empty() && measured.ok() ? scheme : chosen;
    findings.push_back(TransportFinding(scheme, measured));
  }
  if (!options.transports.empty()) {
    findings.push_back(ChoiceFinding(chosen, options.transports.front()));
  }
  return findings;
}

}  // namespace lamina::doctor

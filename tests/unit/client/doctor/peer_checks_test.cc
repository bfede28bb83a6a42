// SPDX-License-Identifier: Apache-2.0
//
// Each check between two hosts: something is wrong with the other one, and the finding is read.
#include "client/doctor/peer_checks.h"

#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "client/doctor/interfaces.h"
#include "client/doctor/peer_link.h"
#include "client/doctor/peer_server.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lamina/v1/doctor.grpc.pb.h"
#include "tests/unit/client/doctor/findings.h"
#include "tests/unit/client/fake_server.h"

namespace lamina::doctor {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kVersion[] = "1.2.3";
// On no host is there such a device.
constexpr char kNoDevice[] = "verbs://nosuchdevice";

std::unique_ptr<PeerServer> Serve(PeerServerOptions options = {}) {
  options.listen = "127.0.0.1:0";
  options.version = options.version.empty() ? kVersion : options.version;
  options.unix_nanos = options.unix_nanos ? options.unix_nanos : &UnixNanos;
  auto server = PeerServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

Findings Check(const PeerServer& server, const std::vector<std::string>& transports) {
  return CheckPeer({.address = server.address(),
                    .transports = transports,
                    .version = kVersion,
                    .verbs_uri = kNoDevice});
}

TEST(PeerChecksTest, HealthyPeerHasNothingToFix) {
  const auto server = Serve();

  const Findings findings = Check(*server, {"shm"});

  EXPECT_EQ(findings.size(), 6u);
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.state, State::kOk) << finding.check << ": " << finding.found;
    EXPECT_THAT(finding.why, Not(IsEmpty())) << finding.check;
  }
  EXPECT_THAT(Find(findings, "peer.transport.shm").found,
              AllOf(HasSubstr("us"), HasSubstr("GB/s")));
}

TEST(PeerChecksTest, PeerThatIsNotThereIsFoundAndNothingElseTried) {
  auto server = Serve();
  const std::string address = server->address();
  server.reset();

  const Findings findings = CheckPeer({.address = address, .transports = {"shm"}});

  ASSERT_EQ(findings.size(), 1u);
  ExpectExplained(findings[0], State::kFail);
  EXPECT_EQ(findings[0].check, "peer");
  EXPECT_THAT(findings[0].found, HasSubstr(address));
  EXPECT_THAT(findings[0].fix, HasSubstr("lamina doctor --serve"));
}

TEST(PeerChecksTest, ProgramThatIsNoDoctorIsFound) {
  client::FakeServer server;

  const Findings findings = CheckPeer({.address = server.address(), .transports = {"shm"}});

  ASSERT_EQ(findings.size(), 1u);
  ExpectExplained(findings[0], State::kFail);
  EXPECT_THAT(findings[0].found, HasSubstr("is no doctor"));
}

TEST(PeerChecksTest, OtherMtuIsFoundAndTheSmallerOneIsRaised) {
  const Interface loopback = WithAddress(ListInterfaces(), "127.0.0.1");
  ASSERT_FALSE(loopback.name.empty());
  const auto smaller =
      Serve({.interfaces = {{.name = "eth7", .address = "127.0.0.1", .mtu = loopback.mtu - 100}}});
  const auto larger =
      Serve({.interfaces = {{.name = "eth7", .address = "127.0.0.1", .mtu = loopback.mtu + 100}}});

  const Finding there = Find(Check(*smaller, {}), "peer.mtu");
  const Finding here = Find(Check(*larger, {}), "peer.mtu");

  ExpectExplained(there, State::kWarn);
  EXPECT_THAT(there.fix, AllOf(HasSubstr("ip link set eth7 mtu"), HasSubstr("# there")));
  ExpectExplained(here, State::kWarn);
  EXPECT_THAT(here.fix, AllOf(HasSubstr("ip link set " + loopback.name), HasSubstr("# here")));
}

TEST(PeerChecksTest, MtuBehindATranslatedAddressIsUnknownAndNoFault) {
  const auto server = Serve({.interfaces = {{.name = "eth7", .address = "192.0.2.7", .mtu = 1}}});

  const Finding finding = Find(Check(*server, {}), "peer.mtu");

  EXPECT_EQ(finding.state, State::kOk);
  EXPECT_THAT(finding.found, HasSubstr("there unknown"));
}

TEST(PeerChecksTest, OtherVersionIsFound) {
  const auto server = Serve({.version = "1.2.4"});

  const Finding finding = Find(Check(*server, {}), "peer.version");

  ExpectExplained(finding, State::kFail);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("1.2.4"), HasSubstr(kVersion)));
}

TEST(PeerChecksTest, ClockThatIsOffIsFound) {
  const auto ahead = Serve({.unix_nanos = [] { return UnixNanos() + Seconds(100); }});
  const auto behind = Serve({.unix_nanos = [] { return UnixNanos() - Seconds(100); }});

  const Finding late = Find(Check(*ahead, {}), "peer.clock");
  const Finding early = Find(Check(*behind, {}), "peer.clock");

  ExpectExplained(late, State::kWarn);
  EXPECT_THAT(late.found, HasSubstr("+"));
  ExpectExplained(early, State::kWarn);
  EXPECT_THAT(early.found, HasSubstr("-"));
}

TEST(PeerChecksTest, TransportThatTheOtherLacksIsFoundAndTheNextIsChosen) {
  const auto server = Serve({.verbs_uri = kNoDevice});

  const Findings findings = Check(*server, {"verbs", "shm"});

  ExpectExplained(Find(findings, "peer.transport.verbs"), State::kWarn);
  EXPECT_EQ(Find(findings, "peer.transport.shm").state, State::kOk);
  const Finding choice = Find(findings, "peer.transport");
  ExpectExplained(choice, State::kWarn);
  EXPECT_THAT(choice.found, HasSubstr("gives shm"));
}

TEST(PeerChecksTest, NoTransportAtAllFails) {
  const auto server = Serve({.verbs_uri = kNoDevice});

  ExpectExplained(Find(Check(*server, {"verbs"}), "peer.transport"), State::kFail);
}

TEST(PeerChecksTest, PortThatIsTakenIsSaid) {
  const auto server = Serve();

  const auto second = PeerServer::Start(
      {.listen = server->address(), .version = kVersion, .unix_nanos = &UnixNanos});

  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server->address()));
}

ClusterSecret SecretOf(const std::string& token) {
  const std::string path = testing::TempDir() + "/peer_checks_token";
  std::ofstream(path, std::ios::trunc) << token;
  chmod(path.c_str(), 0600);
  return ClusterSecret::Read(path).value();
}

TEST(PeerChecksTest, LinksAreOpenedForThoseAloneWhoKnowTheSecret) {
  const auto server = Serve({.secret = SecretOf("0123456789abcdef")});
  const auto found = [&](const ClusterSecret& secret) {
    return Find(CheckPeer({.address = server->address(),
                           .transports = {"shm"},
                           .version = kVersion,
                           .secret = secret}),
                "peer.transport.shm");
  };

  EXPECT_EQ(found(SecretOf("0123456789abcdef")).state, State::kOk);
  for (const ClusterSecret& secret : {ClusterSecret(), SecretOf("another secret than that")}) {
    const Finding refused = found(secret);
    ExpectExplained(refused, State::kWarn);
    EXPECT_THAT(refused.found, HasSubstr("--cluster-token-file"));
  }
}

TEST(PeerChecksTest, AProofOpensOneLinkAndOnlyItsOpenerClosesIt) {
  const ClusterSecret secret = SecretOf("0123456789abcdef");
  const auto server = Serve({.secret = secret});
  const auto stub = v1::Doctor::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  v1::GreetResponse greeting;
  grpc::ClientContext greet;
  ASSERT_TRUE(stub->Greet(&greet, v1::GreetRequest(), &greeting).ok());
  v1::OpenLinkRequest request;
  request.set_transport("fake");  // This server's build makes none of it without a name.
  request.set_challenge(greeting.challenge());
  request.set_proof(secret.Prove(kAskerLabel, {greeting.challenge(), "fake", ""}));
  v1::OpenLinkResponse response;
  grpc::ClientContext first;
  grpc::ClientContext replay;
  v1::CloseLinkResponse closed;
  grpc::ClientContext close;

  EXPECT_EQ(stub->OpenLink(&first, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(stub->OpenLink(&replay, request, &response).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(stub->CloseLink(&close, v1::CloseLinkRequest(), &closed).error_code(),
            grpc::StatusCode::NOT_FOUND);
}

TEST(PeerChecksTest, WithoutASecretOnlyThisHostIsServed) {
  const absl::Status status =
      PeerServer::Start({.listen = "0.0.0.0:0", .version = kVersion, .unix_nanos = &UnixNanos})
          .status();

  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("--cluster-token-file"));
}

}  // namespace
}  // namespace lamina::doctor

// SPDX-License-Identifier: Apache-2.0
//
// Each check between two hosts: something is wrong with the other one, and the finding is read.
#include "client/doctor/peer_checks.h"

#include <algorithm>

#include "client/doctor/interfaces.h"
#include "client/doctor/peer_server.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace lamina::doctor

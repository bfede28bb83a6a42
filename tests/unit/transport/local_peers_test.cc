// SPDX-License-Identifier: Apache-2.0
//
// Who may connect to a transport: with peers=local nobody of another host.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/listening_addresses.h"
#include "transport/registry.h"
#include "transport/ucx/ucx_transport.h"

namespace lamina::transport {
namespace {

using test_support::ListeningAddresses;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(LocalPeersTest, UcxListensOnLoopbackAlone) {
  if (!UcxIsBuilt()) {
    GTEST_SKIP() << "not in this build";
  }
  ASSERT_THAT(ListeningAddresses(), IsEmpty());
  for (const std::string uri : {"ucx://tcp?peers=local", "ucx://?peers=local",
                                "throttle(latency=1us)+ucx://?peers=local"}) {
    SCOPED_TRACE(uri);
    const auto transport = MakeTransport(uri);
    ASSERT_TRUE(transport.ok()) << transport.status();

    EXPECT_THAT(ListeningAddresses(), Not(IsEmpty()));
    EXPECT_THAT(ListeningAddresses(), Each(AnyOf(StartsWith("127."), "::1")));
  }
}

TEST(LocalPeersTest, UcxRefusesOtherOptions) {
  if (!UcxIsBuilt()) {
    GTEST_SKIP() << "not in this build";
  }
  for (const std::string uri : {"ucx://tcp?", "ucx://?peers=", "ucx://?peers=local&x=1"}) {
    const absl::Status status = MakeTransport(uri).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << uri;
    EXPECT_THAT(std::string(status.message()), HasSubstr("known are peers=local"));
  }
}

}  // namespace
}  // namespace lamina::transport

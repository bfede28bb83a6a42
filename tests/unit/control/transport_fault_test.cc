// SPDX-License-Identifier: Apache-2.0
#include "control/transport_fault.h"

#include <gtest/gtest.h>

namespace lamina::control {
namespace {

const absl::Status kBroken = absl::InternalError("broken");

TEST(TransportFaultTest, IsTheSameErrorWithAMark) {
  const absl::Status marked = TransportFault(kBroken);
  EXPECT_EQ(marked.code(), kBroken.code());
  EXPECT_EQ(marked.message(), kBroken.message());
  EXPECT_TRUE(IsTransportFault(marked));
  EXPECT_EQ(PeerOf(marked), "");
  EXPECT_FALSE(IsTransportFault(kBroken));
  EXPECT_EQ(PeerOf(kBroken), "");
  EXPECT_TRUE(TransportFault(absl::OkStatus(), "m0").ok());
}

TEST(TransportFaultTest, NamesThePeerThatItHappenedWithIfThereIsOne) {
  EXPECT_EQ(PeerOf(TransportFault(kBroken, "m0")), "m0");
  EXPECT_EQ(PeerOf(TransportFault(kBroken, {"m0", "m1"}, 1)), "m1");
  EXPECT_EQ(PeerOf(TransportFault(kBroken, {"m0", "m1"}, 2)), "");
}

}  // namespace
}  // namespace lamina::control

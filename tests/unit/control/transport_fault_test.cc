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
  EXPECT_FALSE(IsTransportFault(kBroken));
  EXPECT_TRUE(TransportFault(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace lamina::control

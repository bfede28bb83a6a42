// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "transport/ucx/ucp_handles_internal.h"

namespace lamina::transport {
namespace {

TEST(UcpHandlesTest, TheEnvironmentNamesTheDevices) {
  setenv("UCX_NET_DEVICES", "wg0,mlx5_0:1", /*overwrite=*/1);
  const auto named = NamedDevices();
  unsetenv("UCX_NET_DEVICES");
  const auto all = NamedDevices();

  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(*named, testing::ElementsAre("wg0", "mlx5_0:1"));
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(*all, testing::IsEmpty());
}

}  // namespace
}  // namespace lamina::transport

// SPDX-License-Identifier: Apache-2.0
//
// verbs:// in the conformance suite, where there is an RDMA device.
#include <utility>

#include "tests/conformance/transport_test.h"
#include "transport/registry.h"

namespace lamina::transport {
namespace {

std::vector<Backend> VerbsBackends() {
  std::vector<Backend> backends;
  for (const std::string& uri : VerbsUris()) {
    backends.push_back(OverUri("verbs", uri));
  }
  return backends;
}

// Once by staging, and once by their addresses, as with peermem.
std::vector<Backend> VerbsBackendsOnDevices() {
  std::vector<Backend> backends;
  for (const std::string& uri : VerbsUris()) {
    backends.push_back(OverUri("verbs_staged", uri));
    backends.back().device = test_support::EmulatedDeviceOptions{};
    backends.push_back(OverUri("verbs_peermem", uri));
    backends.back().device =
        test_support::EmulatedDeviceOptions{.guarded = false, .peer_access = true};
  }
  return backends;
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportTest, testing::ValuesIn(VerbsBackends()),
                         [](const testing::TestParamInfo<Backend>& tested) {
                           return tested.param.name;
                         });
INSTANTIATE_TEST_SUITE_P(RdmaOnDevices, TransportTest, testing::ValuesIn(VerbsBackendsOnDevices()),
                         [](const testing::TestParamInfo<Backend>& tested) {
                           return tested.param.name;
                         });

// Soft-RoCE registers no dmabuf, whatever exports it.
std::string WhyNoDmabuf(const test_support::EmulatedDeviceOptions& options, MemoryPath path) {
  test_support::EmulatedDeviceMemory device(options);
  const auto transport = MakeTransport(VerbsUris().front(), &device).value();
  const auto region =
      transport->CreateRegion({.name = "w", .bytes = 5000, .kind = MemoryKind::kDevice}).value();
  EXPECT_EQ(region->memory().path, path);
  EXPECT_EQ(region->memory().device, device.name());
  return region->memory().why_not;
}

TEST(RdmaMemoryTest, DeviceMemoryIsStagedWhereTheDeviceTakesNoDmabufAndThereIsNoPeermem) {
  if (VerbsUris().empty()) {
    GTEST_SKIP() << "no RDMA device";
  }
  const std::string why = WhyNoDmabuf({}, MemoryPath::kStaging);
  EXPECT_THAT(why, testing::HasSubstr("dmabuf: rxe0 takes none: Operation not supported"));
  EXPECT_THAT(why, testing::HasSubstr("peermem: no module knows emulated:0"));
}

TEST(RdmaMemoryTest, PeermemTakesTheAddressesAndSaysWhyNotTheDmabuf) {
  if (VerbsUris().empty()) {
    GTEST_SKIP() << "no RDMA device";
  }
  const std::string why =
      WhyNoDmabuf({.guarded = false, .peer_access = true}, MemoryPath::kPeermem);
  EXPECT_THAT(why, testing::HasSubstr("rxe0 takes none"));
}

TEST(RdmaMemoryTest, MemoryThatCannotBeFlushedOrPinnedIsStaged) {
  if (VerbsUris().empty()) {
    GTEST_SKIP() << "no RDMA device";
  }
  EXPECT_THAT(
      WhyNoDmabuf({.guarded = false, .peer_access = true, .flush = false}, MemoryPath::kStaging),
      testing::HasSubstr("no flush of writes"));
  // Pinning asks for memory that may be written.
  EXPECT_THAT(WhyNoDmabuf({.peer_access = true, .dmabuf = false}, MemoryPath::kStaging),
              testing::HasSubstr("peermem: rxe0 cannot pin it"));
}

}  // namespace

std::vector<std::string> VerbsUris() {
  return MakeTransport("verbs://").ok() ? std::vector<std::string>{"verbs://"}
                                        : std::vector<std::string>{};
}

}  // namespace lamina::transport

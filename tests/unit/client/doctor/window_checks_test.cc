// SPDX-License-Identifier: Apache-2.0
#include "client/doctor/window_checks.h"

#include "tests/support/emulated_device_memory.h"
#include "tests/unit/client/doctor/findings.h"
#include "transport/fake/fake_network.h"

namespace lamina::doctor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Device = absl::StatusOr<std::unique_ptr<DeviceMemory>>;

TEST(WindowChecksTest, WithoutADeviceItSaysWhyAndWhereWindowsLie) {
  const Findings findings = CheckDeviceWindows({"shm"}, Device(absl::UnavailableError("no GPU")));

  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(Find(findings, "device_windows").state, State::kOk);
  EXPECT_THAT(findings[0].found, HasSubstr("no GPU"));
  EXPECT_THAT(findings[0].why, HasSubstr("host's memory"));
}

TEST(WindowChecksTest, EveryTransportThatWorksSaysHowItReachesTheDevice) {
  const Device device = std::make_unique<test_support::EmulatedDeviceMemory>();

  const Findings findings = CheckDeviceWindows({"shm", "carrier-pigeon"}, device);

  ASSERT_THAT(findings, SizeIs(2));
  EXPECT_THAT(Find(findings, "device_waits.shm").found,
              HasSubstr("windows in the host's memory, across PCIe ("));
  const Finding shm = Find(findings, "device_windows.shm");
  EXPECT_EQ(shm.state, State::kOk);
  EXPECT_EQ(shm.found, "memory of emulated:0 by CUDA IPC");
}

// A network of a test's own; what CheckDeviceWindows() makes of the scheme is its name.
TEST(WindowChecksTest, SaysHowTheDeviceWouldWaitAndByWhichAttribute) {
  const auto network = transport::FakeNetwork::Named("doctor://", {.reaches_devices = true});
  const auto found = [](const test_support::EmulatedDeviceOptions& options) {
    const Device device = std::make_unique<test_support::EmulatedDeviceMemory>(options);
    return Find(CheckDeviceWindows({"fake://doctor"}, device), "device_waits.fake://doctor").found;
  };

  EXPECT_EQ(found({.ordered = true}),
            "windows and words in memory of emulated:0 by peermem: it orders the writes of NICs "
            "(GPUDirectRDMAWritesOrdering)");
  EXPECT_THAT(found({}), HasSubstr("words of the host that a thread raises when it has flushed"));
}

TEST(WindowChecksTest, DeviceThatIsSharedWithNoProcessSaysWhy) {
  const Device device = std::make_unique<test_support::EmulatedDeviceMemory>(
      test_support::EmulatedDeviceOptions{.exports = false});

  const Findings findings = CheckDeviceWindows({"shm"}, device);

  EXPECT_THAT(Find(findings, "device_windows.shm").found,
              HasSubstr("memory of emulated:0 through a staging buffer (CUDA IPC: emulated:0"));
}

TEST(WindowChecksTest, NodesOfARunningClusterAreNamedAndStagingOverRdmaIsAWarning) {
  client::ClusterStatus status;
  EXPECT_THAT(CheckClusterWindows(status), IsEmpty());
  status.nodes.push_back({.name = "c0", .transport = "verbs", .windows = "host memory"});
  status.nodes.push_back({.name = "m0",
                          .transport = "verbs",
                          .windows = "memory of cuda:0 through a staging buffer (dmabuf: none)"});
  status.nodes.push_back({.name = "m1"});
  status.nodes.push_back(
      {.name = "m2",
       .transport = "verbs",
       .windows = "host memory (dmabuf: none; peermem: none), rows are copied to cuda:0"});

  const Findings findings = CheckClusterWindows(status);

  ASSERT_THAT(findings, SizeIs(3));
  EXPECT_EQ(findings[0].found, "c0: host memory");
  EXPECT_EQ(findings[0].state, State::kOk);
  ExpectExplained(findings[1], State::kWarn);
  EXPECT_THAT(findings[1].found, HasSubstr("m0: memory of cuda:0"));
  ExpectExplained(findings[2], State::kWarn);
}

}  // namespace
}  // namespace lamina::doctor

// SPDX-License-Identifier: Apache-2.0
//
// What is said of windows in a device's memory, and what staging copies. That messages arrive is
// the conformance suite's.
#include "transport/staging/device_transport.h"

#include <algorithm>
#include <array>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/fake/fake_network.h"
#include "transport/registry.h"
#include "transport/ucx/ucx_transport.h"

namespace lamina::transport {
namespace {

using test_support::EmulatedDeviceMemory;
using testing::HasSubstr;

constexpr size_t kBytes = 8192;

// One end puts into a window of the other, in one device's memory.
struct Link {
  explicit Link(const std::string& uri, EmulatedDeviceMemory& device)
      : sender(MakeTransport(uri, &device).value()),
        receiver(MakeTransport(uri, &device).value()),
        region(receiver
                   ->CreateRegion({.name = "m0 queries",
                                   .bytes = kBytes,
                                   .signal_words = 1,
                                   .kind = MemoryKind::kDevice})
                   .value()),
        remote(sender->OpenRegion(region->Descriptor(), 0).value()) {}

  // Until it has arrived.
  void Send(absl::Span<const std::byte> source, size_t offset, uint64_t value) const {
    const SignalUpdate signal{.word = 0, .value = value};
    ASSERT_TRUE(sender->Put(*remote, offset, source, &signal).ok());
    for (const Nanos end = RealClock().Now() + Seconds(30); region->LoadSignal(0) < value;) {
      ASSERT_LT(RealClock().Now(), end);
      sender->Progress();
      receiver->Progress();
    }
  }

  std::unique_ptr<Transport> sender;
  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;
};

TEST(DescribeMemoryTest, NamesPathAndReason) {
  EXPECT_EQ(DescribeMemory({}), "host memory");
  EXPECT_EQ(DescribeMemory({.why_not = "w"}), "host memory (w)");
  EXPECT_EQ(DescribeMemory({.path = MemoryPath::kDmabuf, .device = "cuda:0"}),
            "memory of cuda:0 by dmabuf");
  EXPECT_EQ(DescribeMemory({.path = MemoryPath::kPeermem, .device = "cuda:0", .why_not = "w"}),
            "memory of cuda:0 by peermem (w)");
  EXPECT_EQ(DescribeMemory({.path = MemoryPath::kIpc, .device = "cuda:1"}),
            "memory of cuda:1 by CUDA IPC");
  EXPECT_EQ(DescribeMemory({.path = MemoryPath::kRegistered, .device = "cuda:1"}),
            "memory of cuda:1 by UCX");
  EXPECT_EQ(DescribeMemory({.path = MemoryPath::kStaging, .device = "cuda:0", .why_not = "w"}),
            "memory of cuda:0 through a staging buffer (w)");
}

TEST(DeviceTransportTest, WindowSaysThatItIsStagedAndWhy) {
  EmulatedDeviceMemory device;
  const Link link("fake://staged-why", device);

  EXPECT_EQ(link.region->memory().path, MemoryPath::kStaging);
  EXPECT_EQ(link.region->memory().device, "emulated:0");
  EXPECT_THAT(link.region->memory().why_not, HasSubstr("fake:// reaches the host's memory only"));
}

TEST(DeviceTransportTest, WithoutStagingItSaysWhyAndTakesNothing) {
  EmulatedDeviceMemory device;
  const auto transport = MakeTransport("fake://staged-not", &device).value();

  const auto region = transport->CreateRegion({.name = "m0 queries",
                                               .bytes = kBytes,
                                               .signal_words = 1,
                                               .kind = MemoryKind::kDevice,
                                               .may_stage = false});

  EXPECT_TRUE(absl::IsFailedPrecondition(region.status())) << region.status();
  EXPECT_THAT(region.status().message(), HasSubstr("fake:// reaches the host's memory only"));
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST(DeviceTransportTest, WithoutStagingTakesWhatTheNetworkReaches) {
  EmulatedDeviceMemory device;
  const auto network = FakeNetwork::Named("reached", {.reaches_devices = true});
  const auto transport = MakeTransport("fake://reached", &device).value();

  const auto region = transport->CreateRegion({.name = "m0 queries",
                                               .bytes = kBytes,
                                               .signal_words = 1,
                                               .kind = MemoryKind::kDevice,
                                               .may_stage = false});

  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->memory().path, MemoryPath::kPeermem);
}

// So devices may go on to use windows of shm:// in the host's memory.
TEST(DeviceTransportTest, HostWindowsAreAsDirectAsWithoutADevice) {
  EmulatedDeviceMemory device;
  const auto transport = MakeTransport("shm://", &device).value();

  const auto host =
      transport->CreateRegion({.name = "w", .bytes = kBytes, .signal_words = 1}).value();
  const auto staged =
      transport
          ->CreateRegion(
              {.name = "w", .bytes = kBytes, .signal_words = 1, .kind = MemoryKind::kDevice})
          .value();

  EXPECT_EQ(host->direct().bytes.data(), host->bytes().data());
  EXPECT_TRUE(staged->direct().empty());
}

TEST(DeviceTransportTest, HostWindowsStayWhatTheyAre) {
  EmulatedDeviceMemory device;
  const auto transport = MakeTransport("fake://staged-host", &device).value();

  const auto region = transport->CreateRegion({.name = "w", .bytes = kBytes}).value();

  EXPECT_EQ(region->memory().path, MemoryPath::kHost);
  EXPECT_EQ(region->device(), nullptr);
  EXPECT_EQ(device.allocated_bytes(), 0u);
  EXPECT_TRUE(region->Land(0, kBytes).ok());
  EXPECT_EQ(device.copies_in(), 0u);
}

// The wait ends by a word in the host's memory; only what is landed crosses to the device.
TEST(DeviceTransportTest, LandCopiesWhatIsAskedForAndNothingElse) {
  EmulatedDeviceMemory device;
  const Link link("fake://staged-land", device);
  const std::vector<std::byte> source(kBytes, std::byte{7});
  ASSERT_TRUE(link.sender->RegisterSource(source, MemoryKind::kHost).ok());
  ASSERT_NO_FATAL_FAILURE(link.Send(source, 0, 1));
  EXPECT_EQ(device.copies_in(), 0u);

  ASSERT_TRUE(link.region->Land(100, 50).ok());

  EXPECT_EQ(device.bytes_in(), 50u);
  const auto seen = device.Seen(link.region->bytes());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{7}), 50);
  EXPECT_EQ(seen[100], std::byte{7});
  EXPECT_EQ(seen[149], std::byte{7});
  ASSERT_TRUE(link.region->Land(kBytes, 0).ok());
  EXPECT_EQ(device.copies_in(), 1u);
}

TEST(DeviceTransportTest, SourcesOnTheDeviceAreCopiedOutBeforeThePut) {
  EmulatedDeviceMemory device;
  const Link link("fake://staged-source", device);
  auto source = DeviceAllocation::Make(device, kBytes).value();
  ASSERT_TRUE(link.sender->RegisterSource(source.bytes(), MemoryKind::kDevice).ok());
  std::fill_n(device.Seen(source.bytes()).begin(), kBytes, std::byte{9});

  ASSERT_NO_FATAL_FAILURE(link.Send(source.bytes().subspan(10, 20), 30, 1));

  EXPECT_EQ(device.copies_out(), 1u);
  ASSERT_TRUE(link.region->Land(0, kBytes).ok());
  const auto seen = device.Seen(link.region->bytes());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{9}), 20);
  EXPECT_EQ(seen[30], std::byte{9});
  link.sender->Progress();
}

// Forwarding what has come must not touch what peers write meanwhile.
TEST(DeviceTransportTest, PutFromAnOwnWindowLeavesWhatHasNotLandedAlone) {
  EmulatedDeviceMemory device;
  const Link link("fake://staged-own", device);
  const std::vector<std::byte> source(kBytes, std::byte{3});
  ASSERT_TRUE(link.sender->RegisterSource(source, MemoryKind::kHost).ok());
  const auto third =
      link.sender->CreateRegion({.name = "third", .bytes = kBytes, .signal_words = 1}).value();
  const auto to_third = link.receiver->OpenRegion(third->Descriptor(), 0).value();
  ASSERT_NO_FATAL_FAILURE(link.Send(source, 0, 1));

  // The window on the device is still as it was made: zeros go out.
  const SignalUpdate signal{.word = 0, .value = 1};
  ASSERT_TRUE(link.receiver->Put(*to_third, 0, link.region->bytes(), &signal).ok());
  const std::array come = {SignalCondition{.word = 0, .at_least = 1}};
  ASSERT_TRUE(link.sender->Wait(*third, come, {.deadline = RealClock().Now() + Seconds(30)}).ok());
  EXPECT_EQ(third->bytes()[0], std::byte{0});

  ASSERT_TRUE(link.region->Land(0, kBytes).ok());
  EXPECT_EQ(device.Seen(link.region->bytes())[0], std::byte{3});
}

TEST(DeviceTransportTest, FailureOfTheDeviceIsAnErrorAndNothingIsSent) {
  EmulatedDeviceMemory device;
  const Link link("fake://staged-broken", device);
  auto source = DeviceAllocation::Make(device, kBytes).value();
  ASSERT_TRUE(link.sender->RegisterSource(source.bytes(), MemoryKind::kDevice).ok());
  device.Break();

  const SignalUpdate signal{.word = 0, .value = 1};
  EXPECT_TRUE(absl::IsInternal(link.sender->Put(*link.remote, 0, source.bytes(), &signal)));
  EXPECT_TRUE(absl::IsInternal(link.region->Land(0, 1)));

  link.receiver->Progress();
  EXPECT_EQ(link.region->LoadSignal(0), 0u);
}

TEST(DeviceTransportTest, WindowsGiveTheirMemoryBack) {
  EmulatedDeviceMemory device;
  const auto transport = MakeTransport("shm://", &device).value();
  for (int i = 0; i < 3; ++i) {
    auto region = transport->CreateRegion(
        {.name = "w", .bytes = kBytes, .signal_words = 1, .kind = MemoryKind::kDevice});
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(device.allocated_bytes(), kBytes);
  }
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST(DeviceTransportTest, WindowOfShmIsStagedWhereItsDeviceSharesNothingAndSaysWhy) {
  EmulatedDeviceMemory device({.exports = false});
  const Link link("shm://", device);

  EXPECT_EQ(link.region->memory().path, MemoryPath::kStaging);
  EXPECT_EQ(link.region->memory().why_not,
            "CUDA IPC: emulated:0 shares no memory between processes");
}

TEST(DeviceTransportTest, DecoratedLinksAreStagedToo) {
  EmulatedDeviceMemory device;
  const Link link("throttle(bandwidth=1GiB)+shm://", device);

  EXPECT_EQ(link.region->memory().path, MemoryPath::kStaging);
}

TEST(DeviceTransportTest, UcxRegistersMemoryThatItKnowsAndStagesTheRestByName) {
  if (!UcxIsBuilt()) {
    GTEST_SKIP() << "no UCX in this build";
  }
  EmulatedDeviceMemory known({.guarded = false, .addresses = DeviceAddresses::kHost});
  const Link registered("ucx://tcp", known);
  EXPECT_EQ(registered.region->memory().path, MemoryPath::kRegistered);
  EXPECT_EQ(registered.region->memory().why_not, "");
  const std::vector<std::byte> source(kBytes, std::byte{5});
  ASSERT_TRUE(registered.sender->RegisterSource(source, MemoryKind::kHost).ok());
  ASSERT_NO_FATAL_FAILURE(registered.Send(source, 0, 1));
  // What a message carries is on the device before its signal shows.
  EXPECT_EQ(known.Seen(registered.region->bytes())[kBytes - 1], std::byte{5});
  const uint64_t flushes = known.flushes();
  EXPECT_TRUE(registered.region->Land(0, kBytes).ok());
  EXPECT_EQ(known.flushes(), flushes + 1);
  // Which is a copy all the same.
  const auto unstaged = registered.receiver->CreateRegion({.name = "m0 queries",
                                                           .bytes = kBytes,
                                                           .signal_words = 1,
                                                           .kind = MemoryKind::kDevice,
                                                           .may_stage = false});
  EXPECT_TRUE(absl::IsFailedPrecondition(unstaged.status())) << unstaged.status();
  EXPECT_THAT(unstaged.status().message(), HasSubstr("UCX_TLS=rc"));

  EmulatedDeviceMemory opaque;
  const Link staged("ucx://tcp", opaque);
  EXPECT_EQ(staged.region->memory().path, MemoryPath::kStaging);
  EXPECT_THAT(staged.region->memory().why_not, HasSubstr("UCX knows no memory of emulated:0"));

  EmulatedDeviceMemory unflushed(
      {.guarded = false, .flush = false, .addresses = DeviceAddresses::kHost});
  const Link never("ucx://tcp", unflushed);
  EXPECT_EQ(never.region->memory().path, MemoryPath::kStaging);
  EXPECT_THAT(never.region->memory().why_not, HasSubstr("no flush"));
}

}  // namespace
}  // namespace lamina::transport

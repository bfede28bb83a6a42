// SPDX-License-Identifier: Apache-2.0
//
// Regions of shm:// in a device's memory: which way they are reached, what is said of it, and when
// their memory is given back. That messages arrive is the conformance suite's.
#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/shm/device_windows_internal.h"
#include "transport/shm/shm_region.h"
#include "transport/shm/shm_transport.h"

namespace lamina::transport {
namespace {

using test_support::EmulatedDeviceMemory;
using testing::HasSubstr;

constexpr size_t kBytes = 8192;
constexpr SignalUpdate kFirst = {.word = 0, .value = 1};

absl::StatusOr<std::unique_ptr<Region>> MakeWindow(Transport& transport) {
  return transport.CreateRegion(
      {.name = "m0 queries", .bytes = kBytes, .signal_words = 1, .kind = MemoryKind::kDevice});
}

// One end puts into a window of the other's, from the host's memory.
struct Link {
  explicit Link(EmulatedDeviceMemory& owner, DeviceMemory* peer)
      : receiver(MakeShmTransport(&owner)),
        sender(MakeShmTransport(peer)),
        region(MakeWindow(*receiver).value()),
        remote(sender->OpenRegion(region->Descriptor(), 0).value()) {}

  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Transport> sender;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;
};

TEST(ShmDeviceWindowTest, PutsGoStraightToTheDeviceBeforeTheirSignal) {
  EmulatedDeviceMemory device;
  const Link link(device, &device);
  const std::vector<std::byte> source(100, std::byte{7});

  ASSERT_TRUE(link.sender->Put(*link.remote, 50, source, &kFirst).ok());

  EXPECT_EQ(DescribeMemory(link.region->memory()), "memory of emulated:0 by CUDA IPC");
  EXPECT_EQ(link.remote->path(), "shm (CUDA IPC)");
  EXPECT_EQ(device.copies_in(), 1u);
  EXPECT_EQ(link.region->LoadSignal(0), 1u);
  const auto seen = device.Seen(link.region->bytes());
  EXPECT_EQ(std::count(seen.begin() + 50, seen.begin() + 150, std::byte{7}), 100);
  ASSERT_TRUE(link.region->Land(0, kBytes).ok());
  EXPECT_EQ(device.copies_in(), 1u) << "nothing is left to be landed";
  EXPECT_TRUE(link.region->direct().empty());
  EXPECT_TRUE(link.remote->direct().empty());
}

TEST(ShmDeviceWindowTest, SourcesOnTheDeviceNeverCrossTheHost) {
  EmulatedDeviceMemory device;
  const Link link(device, &device);
  const auto source = DeviceAllocation::Make(device, 100).value();
  ASSERT_TRUE(link.sender->RegisterSource(source.bytes(), MemoryKind::kDevice).ok());

  ASSERT_TRUE(link.sender->Put(*link.remote, 0, source.bytes().first(100), &kFirst).ok());

  EXPECT_EQ(device.copies_across(), 1u);
  EXPECT_EQ(device.copies_in() + device.copies_out(), 0u);
}

TEST(ShmDeviceWindowTest, SourceOnTheDeviceIsCopiedOnceToAWindowOfTheHost) {
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  const auto region =
      transport->CreateRegion({.name = "w", .bytes = 100, .signal_words = 1}).value();
  const auto remote = transport->OpenRegion(region->Descriptor(), 0).value();
  const auto source = DeviceAllocation::Make(device, 100).value();
  ASSERT_TRUE(transport->RegisterSource(source.bytes(), MemoryKind::kDevice).ok());
  std::fill_n(device.Seen(source.bytes()).begin(), 100, std::byte{9});

  ASSERT_TRUE(transport->Put(*remote, 0, source.bytes().first(100), &kFirst).ok());

  EXPECT_EQ(region->bytes()[99], std::byte{9});
  EXPECT_EQ(device.copies_out(), 1u);
  EXPECT_EQ(DescribeMemory(region->memory()), "host memory");
  EXPECT_EQ(remote->path(), "shm");
}

TEST(ShmDeviceWindowTest, DeviceThatSharesNothingIsAPreconditionThatFailed) {
  EmulatedDeviceMemory device({.exports = false});
  const auto transport = MakeShmTransport(&device);

  const auto region = MakeWindow(*transport);

  EXPECT_TRUE(absl::IsFailedPrecondition(region.status())) << region.status();
  EXPECT_THAT(std::string(region.status().message()),
              HasSubstr("CUDA IPC: emulated:0 shares no memory between processes"));
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST(ShmDeviceWindowTest, WindowThatMayNotBeStagedIsRefusedForSendersDecide) {
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);

  const auto region = transport->CreateRegion({.name = "m0 queries",
                                               .bytes = kBytes,
                                               .signal_words = 1,
                                               .kind = MemoryKind::kDevice,
                                               .may_stage = false});

  EXPECT_TRUE(absl::IsFailedPrecondition(region.status())) << region.status();
  EXPECT_EQ(region.status().message(),
            "CUDA IPC: whether a sender can map memory of emulated:0 shows when it opens it");
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST(ShmDeviceWindowTest, SenderThatCannotMapTheDeviceIsStagedAndTheOwnerSaysWhy) {
  EmulatedDeviceMemory owner;
  EmulatedDeviceMemory peer({.opens = false});
  const Link link(owner, &peer);
  const std::vector<std::byte> source(kBytes, std::byte{7});

  ASSERT_TRUE(link.sender->Put(*link.remote, 0, source, &kFirst).ok());

  EXPECT_EQ(owner.copies_in() + peer.copies_in(), 0u);
  EXPECT_EQ(link.region->memory().path, MemoryPath::kStaging);
  EXPECT_THAT(link.region->memory().why_not, HasSubstr("CUDA IPC: emulated:0 opens no memory"));
  EXPECT_EQ(link.remote->path(), "shm (staged)");
  ASSERT_TRUE(link.region->Land(10, 20).ok());
  EXPECT_EQ(owner.bytes_in(), 20u);
  const auto seen = owner.Seen(link.region->bytes());
  EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{7}), 20);
  EXPECT_EQ(seen[10], std::byte{7});
}

TEST(ShmDeviceWindowTest, SenderWithoutADeviceIsStaged) {
  EmulatedDeviceMemory device;
  const Link link(device, nullptr);

  EXPECT_THAT(link.region->memory().why_not, HasSubstr("a sender uses no device"));
}

// Land() asks for one place where the data is.
TEST(ShmDeviceWindowTest, SendersGoTheWayOfTheFirstOrAreRefused) {
  EmulatedDeviceMemory device;
  const std::vector<std::byte> source(kBytes, std::byte{5});

  const Link staged(device, nullptr);
  const auto able = MakeShmTransport(&device);
  const auto follows = able->OpenRegion(staged.region->Descriptor(), 0).value();
  EXPECT_EQ(follows->path(), "shm (staged)");
  ASSERT_TRUE(able->Put(*follows, 0, source, &kFirst).ok());
  ASSERT_TRUE(staged.region->Land(0, kBytes).ok());
  EXPECT_EQ(device.Seen(staged.region->bytes())[kBytes - 1], std::byte{5});

  const Link mapped(device, &device);
  const auto unable = MakeShmTransport();
  const auto refused = unable->OpenRegion(mapped.region->Descriptor(), 0);
  EXPECT_TRUE(absl::IsUnavailable(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("a sender uses no device"));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("already"));
}

TEST(ShmDeviceWindowTest, FailureOfTheDeviceIsAnErrorAndRaisesNothing) {
  EmulatedDeviceMemory device;
  const Link link(device, &device);
  device.Break();

  const std::vector<std::byte> source(64, std::byte{1});
  EXPECT_TRUE(absl::IsInternal(link.sender->Put(*link.remote, 0, source, &kFirst)));

  EXPECT_EQ(link.region->LoadSignal(0), 0u);
}

// To free what a peer maps is undefined in CUDA.
TEST(ShmDeviceWindowTest, MemoryIsGivenBackWhenTheLastSenderHasClosedIt) {
  EmulatedDeviceMemory device;
  Link link(device, &device);
  auto other = link.sender->OpenRegion(link.region->Descriptor(), 0).value();
  link.region.reset();
  EXPECT_EQ(device.allocated_bytes(), kBytes);
  EXPECT_TRUE(absl::IsUnavailable(link.sender->Put(*link.remote, 0, {}, &kFirst)));

  link.remote.reset();
  link.region = MakeWindow(*link.receiver).value();
  EXPECT_EQ(device.allocated_bytes(), 2 * kBytes) << "one sender still has it";

  other.reset();
  link.region.reset();
  EXPECT_EQ(device.allocated_bytes(), 0u);
}

TEST(ShmDeviceWindowTest, TransportGivesBackAllWhenItGoes) {
  EmulatedDeviceMemory device;
  {
    Link link(device, &device);
    link.region.reset();
    link.receiver.reset();
    EXPECT_EQ(device.allocated_bytes(), 0u);
    EXPECT_TRUE(absl::IsUnavailable(link.sender->Put(*link.remote, 0, {}, &kFirst)));
  }
}

TEST(ShmDeviceWindowTest, WindowMadeAnewIsReachedByItsOwnHandle) {
  EmulatedDeviceMemory device;
  Link link(device, &device);
  const std::string old_descriptor = link.region->Descriptor();
  link.region.reset();
  link.region = MakeWindow(*link.receiver).value();

  EXPECT_TRUE(absl::IsUnavailable(link.sender->OpenRegion(old_descriptor, 0).status()));
  const auto fresh = link.sender->OpenRegion(link.region->Descriptor(), 0).value();
  const std::vector<std::byte> source(kBytes, std::byte{3});
  ASSERT_TRUE(link.sender->Put(*fresh, 0, source, &kFirst).ok());

  EXPECT_EQ(device.Seen(link.region->bytes())[kBytes - 1], std::byte{3});
  EXPECT_NE(DecodeShmDescriptor(old_descriptor)->handle.bytes,
            DecodeShmDescriptor(link.region->Descriptor())->handle.bytes);
}

// Past the checksum of the descriptor.
TEST(ShmDeviceWindowTest, HandleThatIsNotTheRegionsIsRefused) {
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  const auto region = MakeWindow(*transport).value();
  const ShmDescriptor right = DecodeShmDescriptor(region->Descriptor()).value();
  std::vector<ShmDescriptor> wrong(4, right);
  wrong[0].handle.bytes[3] ^= 1;
  wrong[1].handle.offset += 64;
  wrong[2].handle = {};
  wrong[3].handle.bytes.pop_back();

  for (const ShmDescriptor& descriptor : wrong) {
    const auto remote = ShmRemoteRegion::Open(descriptor, &device);

    EXPECT_TRUE(absl::IsUnavailable(remote.status())) << remote.status();
    EXPECT_THAT(std::string(remote.status().message()), HasSubstr("another region"));
  }
  EXPECT_TRUE(ShmRemoteRegion::Open(right, &device).ok());
}

TEST(ShmDeviceWindowTest, RegionsWithoutDataAndSourcesWithoutADeviceAreTheHosts) {
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  const auto words =
      transport->CreateRegion({.name = "w", .signal_words = 1, .kind = MemoryKind::kDevice});
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_EQ((*words)->memory().path, MemoryPath::kHost);
  EXPECT_EQ(device.allocated_bytes(), 0u);

  const auto without = MakeShmTransport();
  EXPECT_TRUE(absl::IsInvalidArgument(MakeWindow(*without).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(without->RegisterSource({}, MemoryKind::kDevice)));
}

}  // namespace
}  // namespace lamina::transport

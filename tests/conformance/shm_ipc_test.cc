// SPDX-License-Identifier: Apache-2.0
//
// Mappings of a device's memory between processes (shm://): each is closed, whoever dies first.
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/transport_support.h"
#include "tests/support/child_process.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/shm/shm_transport.h"

namespace lamina::transport {
namespace {

using test_support::Child;
using test_support::ChildStart;
using test_support::EmulatedDeviceMemory;
using test_support::Pipe;

constexpr size_t kBytes = 8192;

std::unique_ptr<Region> MakeWindow(Transport& transport) {
  return transport
      .CreateRegion({.name = "w", .bytes = kBytes, .signal_words = 1, .kind = MemoryKind::kDevice})
      .value();
}

TEST(ShmIpcTest, DeadOwnersMemoryIsNotWrittenAndUnmappedWhenThatIsSeen) {
  Child owner("owner", ChildStart::kFork, [](const Pipe& pipe) {
    EmulatedDeviceMemory device;
    const auto transport = MakeShmTransport(&device);
    const auto region = MakeWindow(*transport);
    pipe.Send(region->Descriptor());
    pause();
  });
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  const std::string descriptor = owner.pipe_to().Receive();
  const auto first = transport->OpenRegion(descriptor, 0).value();
  auto second = transport->OpenRegion(descriptor, 0).value();
  EXPECT_EQ(first->path(), "shm (CUDA IPC)");
  EXPECT_EQ(EmulatedDeviceMemory::peers_open(), 1u);

  owner.Kill();

  const std::vector<std::byte> source(kBytes, std::byte{1});
  const SignalUpdate signal = Signal(0, 1);
  for (int i = 0; i < 2; ++i) {
    const absl::Status put = transport->Put(*first, 0, source, &signal);
    EXPECT_TRUE(absl::IsUnavailable(put)) << put;
  }
  EXPECT_EQ(device.copies_in(), 0u);
  EXPECT_TRUE(absl::IsUnavailable(transport->OpenRegion(descriptor, 0).status()));
  EXPECT_EQ(EmulatedDeviceMemory::peers_open(), 1u) << "the other view has not noticed";
  second.reset();
  EXPECT_EQ(EmulatedDeviceMemory::peers_open(), 0u);
}

TEST(ShmIpcTest, MemoryThatASenderMapsIsFreedWhenTheSenderDied) {
  Child sender("sender", ChildStart::kFork, [](const Pipe& pipe) {
    EmulatedDeviceMemory device;
    const auto transport = MakeShmTransport(&device);
    const auto remote = transport->OpenRegion(pipe.Receive(), 0).value();
    pipe.Send(remote->path());
    pause();
  });
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  auto region = MakeWindow(*transport);
  sender.pipe_to().Send(region->Descriptor());
  ASSERT_EQ(sender.pipe_to().Receive(), "shm (CUDA IPC)");

  region.reset();
  EXPECT_EQ(device.allocated_bytes(), kBytes) << "the sender has it mapped";

  sender.Kill();
  region = MakeWindow(*transport);
  EXPECT_EQ(device.allocated_bytes(), kBytes) << "the new one's alone";
}

TEST(ShmIpcTest, SenderThatClosesGivesTheMappingBackInBothProcesses) {
  Child sender("sender", ChildStart::kFork, [](const Pipe& pipe) {
    EmulatedDeviceMemory device;
    const auto transport = MakeShmTransport(&device);
    for (std::string descriptor = pipe.Receive(); !descriptor.empty();
         descriptor = pipe.Receive()) {
      {
        const auto remote = transport->OpenRegion(descriptor, 0).value();
        EXPECT_EQ(EmulatedDeviceMemory::peers_open(), 1u);
      }
      EXPECT_EQ(EmulatedDeviceMemory::peers_open(), 0u);
      pipe.Send("closed");
    }
  });
  EmulatedDeviceMemory device;
  const auto transport = MakeShmTransport(&device);
  for (int round = 0; round < 3; ++round) {
    const auto region = MakeWindow(*transport);
    sender.pipe_to().Send(region->Descriptor());
    ASSERT_EQ(sender.pipe_to().Receive(), "closed");
    EXPECT_EQ(device.allocated_bytes(), kBytes);
  }
  EXPECT_EQ(device.allocated_bytes(), 0u);
  sender.pipe_to().Send("");
  EXPECT_TRUE(sender.ExitedWell());
}

}  // namespace
}  // namespace lamina::transport

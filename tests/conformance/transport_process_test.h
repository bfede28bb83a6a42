// SPDX-License-Identifier: Apache-2.0
//
// What the conformance tests between processes share (transport_process_suite.cc).

#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/device_memory.h"
#include "gtest/gtest.h"
#include "tests/conformance/transport_support.h"
#include "tests/support/child_process.h"
#include "transport/transport.h"

namespace lamina::transport {

struct ProcessBackend {
  std::string name;
  // In each process; `device` is what the next one gives.
  std::function<std::unique_ptr<Transport>(DeviceMemory* device)> make;
  // This process's, in whose memory regions lie; null: in the host's.
  DeviceMemory* (*device)() = [] { return static_cast<DeviceMemory*>(nullptr); };
  MemoryPath memory = MemoryPath::kHost;  // How peers reach it, once one has opened it.
  test_support::ChildStart start = test_support::ChildStart::kFork;
};

inline void PrintTo(const ProcessBackend& backend, std::ostream* out) { *out << backend.name; }

class TransportProcessTest : public testing::TestWithParam<ProcessBackend> {
 protected:
  static test_support::ChildStart start() { return GetParam().start; }
  static std::unique_ptr<Transport> Make() { return GetParam().make(GetParam().device()); }

  static std::unique_ptr<Region> MakeRegion(Transport& transport, size_t bytes, uint32_t words) {
    auto region = transport.CreateRegion(
        {.name = "process",
         .bytes = bytes,
         .signal_words = words,
         .kind = GetParam().device() == nullptr ? MemoryKind::kHost : MemoryKind::kDevice,
         .epoch = 3});
    EXPECT_TRUE(region.ok()) << region.status();
    return std::move(region).value();
  }

  static std::unique_ptr<RemoteRegion> Open(Transport& transport, const std::string& descriptor) {
    auto remote = transport.OpenRegion(descriptor, 3);
    EXPECT_TRUE(remote.ok()) << remote.status();
    return std::move(remote).value();
  }

  // What visible signals have brought.
  static std::vector<std::byte> Arrived(Region& region) {
    const absl::Span<std::byte> bytes = region.bytes();
    EXPECT_TRUE(region.Land(0, bytes.size()).ok());
    DeviceMemory* const device = GetParam().device();
    if (device == nullptr) {
      return {bytes.begin(), bytes.end()};
    }
    std::vector<std::byte> read(bytes.size());
    EXPECT_TRUE(device->CopyOut(read.data(), bytes.data(), read.size()).ok());
    return read;
  }

  static void Fill(Region& region, const std::vector<std::byte>& bytes) {
    DeviceMemory* const device = GetParam().device();
    if (device == nullptr) {
      std::copy(bytes.begin(), bytes.end(), region.bytes().begin());
    } else {
      EXPECT_TRUE(device->CopyIn(region.bytes().data(), bytes.data(), bytes.size()).ok());
    }
  }
};

}  // namespace lamina::transport

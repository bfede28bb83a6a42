// SPDX-License-Identifier: Apache-2.0
//
// What the transport conformance tests share. The suite is spread over the files
// transport_*_test.cc; the backends that run it are listed in transport_test.cc.
//
// Tests of one thread drive all their Transports by Progress(): a backend may need that of the
// sender, of the receiver, or of neither.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/transport_support.h"
#include "tests/support/emulated_device_memory.h"
#include "transport/transport.h"

namespace lamina::transport {

// Makes Transports that reach each other.
using MakeTransportFn = std::function<std::unique_ptr<Transport>()>;

// With a device all regions with data, and what most tests put, lie in its memory.
struct Backend {
  std::string name;
  // A fresh network for each test; `device` is null without one.
  std::function<MakeTransportFn(DeviceMemory* device)> open;
  std::optional<test_support::EmulatedDeviceOptions> device = std::nullopt;
};

Backend OverUri(const std::string& name, const std::string& uri);

// One sender, one receiver, and a region between them.
struct Link {
  std::unique_ptr<Transport> sender;
  std::unique_ptr<Transport> receiver;
  std::unique_ptr<Region> region;
  std::unique_ptr<RemoteRegion> remote;

  // Puts from memory that was registered. The queue must not be full.
  absl::Status Put(size_t offset, absl::Span<const std::byte> source,
                   const SignalUpdate* signal) const {
    return sender->Put(*remote, offset, source, signal);
  }

  // Drives both ends until `word` shows at least `value`; false when it never does.
  bool Await(uint32_t word, uint64_t value) const;
};

// What the owner of the memory sees there: itself, but for a device's memory.
inline absl::Span<std::byte> Seen(absl::Span<const std::byte> bytes) {
  return test_support::EmulatedDeviceMemory::SeenByItsOwner(bytes);
}

// Returns a part of a region that visible signals cover, as above.
absl::Span<std::byte> Arrived(Region& region, size_t offset, size_t bytes);
inline absl::Span<std::byte> Arrived(Region& region) {
  return Arrived(region, 0, region.bytes().size());
}

// URIs of verbs:// that this host can make: none where it has no RDMA device. tests/rdma_vm runs
// the suite where there is one, and fails when the list is empty.
std::vector<std::string> VerbsUris();

class TransportTest : public testing::TestWithParam<Backend> {
 protected:
  TransportTest() : make_(GetParam().open(device())) {}

  std::unique_ptr<Transport> Make() { return make_(); }

  DeviceMemory* device() { return device_.get(); }
  MemoryKind kind() const { return device_ ? MemoryKind::kDevice : MemoryKind::kHost; }

  std::unique_ptr<Region> MakeRegion(Transport& transport, size_t bytes, uint32_t words,
                                     uint64_t epoch = 7);
  std::unique_ptr<RemoteRegion> Open(Transport& transport, const Region& region,
                                     uint64_t epoch = 7);
  Link MakeLink(size_t bytes, uint32_t words);

  // `sender` may read the result until the test ends; the test writes it by Seen().
  absl::Span<std::byte> MakeSource(Transport& sender, size_t size, uint64_t seed);

 private:
  // The sources die after the Transports of the test's body.
  const std::unique_ptr<test_support::EmulatedDeviceMemory> device_ =
      GetParam().device ? std::make_unique<test_support::EmulatedDeviceMemory>(*GetParam().device)
                        : nullptr;
  std::vector<std::vector<std::byte>> sources_;
  std::vector<DeviceAllocation> device_sources_;
  const MakeTransportFn make_;
};

// gtest would print a Backend as bytes.
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace lamina::transport

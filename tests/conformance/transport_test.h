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
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/transport.h"

namespace lamina::transport {

// Makes Transports that reach each other.
using MakeTransportFn = std::function<std::unique_ptr<Transport>()>;

struct Backend {
  std::string name;
  std::function<MakeTransportFn()> open;  // A fresh network for each test.
};

// Generous: it ends a test that hangs, and is no claim about speed.
inline Nanos Soon() { return RealClock().Now() + Seconds(60); }

inline SignalUpdate Weak(uint32_t word, uint64_t value) {
  return {.word = word, .value = value, .strength = SignalStrength::kWeak};
}
inline SignalUpdate Strong(uint32_t word, uint64_t value) {
  return {.word = word, .value = value, .strength = SignalStrength::kStrong};
}

// Rounds of a test that repeats itself: `full`, or fewer where LAMINA_CONFORMANCE_DIVISOR asks for
// it (a guest whose processor is emulated). At least one.
uint64_t Repeats(uint64_t full);

// Peers of a test with many: 64, or as LAMINA_CONFORMANCE_PEERS says (a guest with little memory).
uint32_t ManyPeers();

// Bytes that differ from place to place and from seed to seed.
std::vector<std::byte> Pattern(size_t size, uint64_t seed);

// The status of a Put that is repeated while the queue is full.
absl::Status PutAll(Transport& sender, RemoteRegion& target, size_t offset,
                    absl::Span<const std::byte> source, const SignalUpdate* signal);

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

// URIs of verbs:// that this host can make: none where it has no RDMA device. tests/rdma_vm runs
// the suite where there is one, and fails when the list is empty.
std::vector<std::string> VerbsUris();

class TransportTest : public testing::TestWithParam<Backend> {
 protected:
  TransportTest() : make_(GetParam().open()) {}

  std::unique_ptr<Transport> Make() { return make_(); }

  std::unique_ptr<Region> MakeRegion(Transport& transport, size_t bytes, uint32_t words,
                                     uint64_t epoch = 7);
  std::unique_ptr<RemoteRegion> Open(Transport& transport, const Region& region,
                                     uint64_t epoch = 7);
  Link MakeLink(size_t bytes, uint32_t words);

  // `sender` may read the result until the test ends.
  absl::Span<std::byte> MakeSource(Transport& sender, size_t size, uint64_t seed);

 private:
  // The sources die after the Transports of the test's body.
  std::vector<std::vector<std::byte>> sources_;
  const MakeTransportFn make_;
};

// gtest would print a Backend as bytes.
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

}  // namespace lamina::transport

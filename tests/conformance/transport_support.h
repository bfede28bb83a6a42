// SPDX-License-Identifier: Apache-2.0
//
// What the conformance tests of one process and of several share.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "transport/transport.h"

namespace lamina::transport {

// Generous: it ends a test that hangs, and is no claim about speed.
inline Nanos Soon() { return RealClock().Now() + Seconds(60); }

inline SignalUpdate Signal(uint32_t word, uint64_t value) { return {.word = word, .value = value}; }

// What failed assertions on bytes say, for deploy/test.sh, which does not run such a test again.
inline constexpr char kNeverRetried[] = "NEVER RETRIED: wrong bytes";

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

}  // namespace lamina::transport

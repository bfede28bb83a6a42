// SPDX-License-Identifier: Apache-2.0
//
// How fast a link between two nodes is, measured with the Puts that it will carry, in a few dozen
// milliseconds when an epoch begins. It also shows that messages really cross.
//
//   asker                              answerer
//   Put(ask word := 1)        -->
//                             <--      Put(answer word := 1)      latency: half of such a round
//   Put(bytes) ... (ask := n) -->
//                             <--      Put(answer word := n)      bandwidth: the fastest of some
//                             such
//   Put(ask word := the last) -->      stops
//
// Each word has one writer and serves for this alone, once in the life of its region.
//
// Threading: the thread that owns the transport.
// Allocation: allocates; it is no part of the data path.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "transport/transport.h"

namespace lamina::transport {

// Some Puts, of which the last was answered.
struct LinkBurst {
  uint64_t bytes = 0;
  double seconds = 0;  // Until the answer was there.
};

struct LinkSpeed {
  double latency_seconds = 0;  // One way: half of the fastest round of an empty Put.
  double bytes_per_second = 0;
  uint64_t bytes_put = 0;         // What the measurement itself has put.
  std::vector<LinkBurst> bursts;  // Those that tell the bandwidth.
};

// What the asker needs of the link.
struct LinkAsker {
  RemoteRegion* peer = nullptr;
  uint32_t ask_word = 0;              // Word of the peer's region.
  size_t offset = 0;                  // Where bytes may be put in it.
  absl::Span<const std::byte> bytes;  // Registered; what is put, once and again. Not empty.
  const Region* region = nullptr;     // The asker's own region.
  uint32_t answer_word = 0;           // Word of the own region.
};

// For deadlines of those that wait while others measure: what one link takes, with a margin.
inline constexpr Nanos kLinkMeasuringMax = Millis(300);

// Measures for about 40 ms, once the answerer is there; longer over a link of which three rounds
// and three Puts of all bytes take longer. The fastest count: during the others the host did
// something else too. Where no other one was nearly as fast, which is so on a busy host, it goes on
// for up to 150 ms. Errors: those of Put() and Wait(). kDeadlineExceeded: no answer came.
absl::StatusOr<LinkSpeed> MeasureLink(Transport& transport, const LinkAsker& asker,
                                      const WaitOptions& wait, const Clock& clock = RealClock());

// Answers all askers until each has said its last. `late` is the index of one that did not, when
// the result is not OK.
struct LinkAnswerer {
  RemoteRegion* peer = nullptr;
  uint32_t ask_word = 0;     // Word of the own region.
  uint32_t answer_word = 0;  // Word of the peer's region.
};
absl::Status AnswerLinks(Transport& transport, const Region& region,
                         absl::Span<const LinkAnswerer> answerers, const WaitOptions& wait,
                         size_t& late);

}  // namespace lamina::transport

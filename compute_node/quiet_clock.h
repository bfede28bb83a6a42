// SPDX-License-Identifier: Apache-2.0
//
// QuietClock: since when nothing has come of what each lane awaits, for who gives up peers that say
// nothing. A layer of much K and V over a slow link comes piece by piece, and may take longer than
// a peer may be silent.
//
// Threading: one thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/clock.h"
#include "compute_node/peers.h"

namespace lamina::compute_node {

class QuietClock {
 public:
  explicit QuietClock(size_t lanes) : lanes_(lanes) {}

  // The lane, which is away since then, awaits these signals next: others than at the last call,
  // because something has come meanwhile, or the same.
  Nanos Since(uint32_t lane, Nanos away_since, absl::Span<const AwaitedSignal> awaits, Nanos now);

 private:
  struct Lane {
    Nanos away_since = -1;
    uint64_t awaits = 0;  // A hash of what it awaited.
    Nanos quiet_since = 0;
  };
  std::vector<Lane> lanes_;
};

}  // namespace lamina::compute_node

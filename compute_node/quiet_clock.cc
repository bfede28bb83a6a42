// SPDX-License-Identifier: Apache-2.0
#include "compute_node/quiet_clock.h"

namespace lamina::compute_node {

Nanos QuietClock::Since(uint32_t lane, Nanos away_since, absl::Span<const AwaitedSignal> awaits,
                        Nanos now) {
  uint64_t hash = awaits.size();
  for (const AwaitedSignal& signal : awaits) {
    for (const uint64_t part : {uint64_t{signal.word}, uint64_t{signal.value}}) {
      hash = (hash ^ part) * 0x100000001b3u;
    }
  }
  Lane& seen = lanes_[lane];
  if (seen.away_since != away_since) {
    seen = {.away_since = away_since, .awaits = hash, .quiet_since = away_since};
  } else if (seen.awaits != hash) {
    seen.awaits = hash;
    seen.quiet_since = now;
  }
  return seen.quiet_since;
}

}  // namespace lamina::compute_node

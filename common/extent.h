// SPDX-License-Identifier: Apache-2.0
//
// Extent: a run of consecutive token slots of one memory node that holds consecutive tokens.

#pragma once

#include <cstdint>

namespace lamina {

struct Extent {
  uint32_t first_slot = 0;
  uint32_t tokens = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// Appends an extent, or lengthens the last one if its slots end where those of `extent` begin.
template <typename Extents>
void AppendExtent(Extents& extents, Extent extent) {
  if (!extents.empty() && extents.back().first_slot + extents.back().tokens == extent.first_slot) {
    extents.back().tokens += extent.tokens;
  } else {
    extents.push_back(extent);
  }
}

}  // namespace lamina

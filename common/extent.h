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

}  // namespace lamina

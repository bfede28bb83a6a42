// SPDX-License-Identifier: Apache-2.0
//
// QueryFirst: whether queries leave for the memory nodes ahead of their own k and v.

#pragma once

#include <cstdint>

namespace lamina {

enum class QueryFirst : uint8_t {
  kAuto,  // Where the link is slow.
  kAlways,
  kNever,
};

}  // namespace lamina

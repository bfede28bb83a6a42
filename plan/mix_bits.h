// SPDX-License-Identifier: Apache-2.0
//
// MixBits: a bijection under which close numbers come to lie far from each other (splitmix64's),
// for checksums that find damage and are no secret.

#pragma once

#include <cstdint>

namespace lamina::plan {

constexpr uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace lamina::plan

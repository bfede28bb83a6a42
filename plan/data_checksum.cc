// SPDX-License-Identifier: Apache-2.0
#include "plan/data_checksum.h"

#include <cstring>

namespace lamina::plan {
namespace {

// A bijection under which close numbers come to lie far from each other (splitmix64's).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

void DataChecksum::Add(size_t offset, absl::Span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint16_t)) {
    uint16_t element = 0;
    std::memcpy(&element, bytes.data() + i, sizeof(element));
    sum_ += Mix(uint64_t{offset + i} << 16 | element);
  }
}

}  // namespace lamina::plan

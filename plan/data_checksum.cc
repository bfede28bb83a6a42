// SPDX-License-Identifier: Apache-2.0
#include "plan/data_checksum.h"

#include <cstring>

#include "plan/mix_bits.h"

namespace lamina::plan {

void DataChecksum::Add(size_t offset, absl::Span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint16_t)) {
    uint16_t element = 0;
    std::memcpy(&element, bytes.data() + i, sizeof(element));
    sum_ += MixBits(uint64_t{offset + i} << 16 | element);
  }
}

}  // namespace lamina::plan

// SPDX-License-Identifier: Apache-2.0
//
// Fnv1a: FNV-1a of 64 bits, byte by byte. Finds accidents, not forgeries: any one byte that is
// other changes it.

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina {

class Fnv1a {
 public:
  void Add(absl::string_view bytes) {
    for (const char byte : bytes) {
      AddByte(static_cast<uint8_t>(byte));
    }
  }
  // Adds the four bytes, the lowest first.
  void AddWord(uint32_t word) {
    for (int shift = 0; shift < 32; shift += 8) {
      AddByte(static_cast<uint8_t>(word >> shift));
    }
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 1'099'511'628'211u; }

  uint64_t value_ = 14'695'981'039'346'656'037u;
};

}  // namespace lamina

// SPDX-License-Identifier: Apache-2.0
#include "common/random_hex.h"

#include <unistd.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina {

std::string RandomHex(size_t digits) {
  std::string text;
  while (text.size() < digits) {
    uint64_t bits = 0;
    LAMINA_CHECK(getentropy(&bits, sizeof bits) == 0);
    absl::StrAppend(&text, absl::Hex(bits, absl::kZeroPad16));
  }
  text.resize(digits);
  return text;
}

}  // namespace lamina

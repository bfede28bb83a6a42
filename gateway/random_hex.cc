// SPDX-License-Identifier: Apache-2.0
#include "gateway/random_hex.h"

#include <cstdint>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"

namespace lamina::gateway {

std::string RandomHex(size_t digits) {
  thread_local absl::BitGen bits;
  std::string text;
  while (text.size() < digits) {
    absl::StrAppend(&text, absl::Hex(absl::Uniform<uint64_t>(bits), absl::kZeroPad16));
  }
  text.resize(digits);
  return text;
}

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
//
// TextBound: how many tokens a text becomes at least, by its bytes alone, so that one that is far
// too long is refused before it is tokenized.
//
// Threading: immutable; const calls from any thread.

#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina::model {

class TextBound {
 public:
  TextBound() = default;  // Promises nothing.
  // One token stands for `bytes_per_token_max` bytes at most, of which those that are `dropped` do
  // not count: they may leave no token at all.
  explicit TextBound(size_t bytes_per_token_max, const std::bitset<256>& dropped = {})
      : bytes_per_token_max_(bytes_per_token_max), dropped_(dropped) {}

  size_t bytes_per_token_max() const { return bytes_per_token_max_; }  // 0: nothing is promised.
  const std::bitset<256>& dropped() const { return dropped_; }

  // 0 if nothing is promised. Cost: constant, or O(n) if bytes are dropped (4 MiB take some ms).
  size_t TokensMin(absl::string_view text) const {
    return bytes_per_token_max_ == 0
               ? 0
               : (BytesThatCount(text) + bytes_per_token_max_ - 1) / bytes_per_token_max_;
  }

 private:
  size_t BytesThatCount(absl::string_view text) const {
    if (dropped_.none()) {
      return text.size();
    }
    size_t count = 0;
    for (const char byte : text) {
      count += dropped_[static_cast<uint8_t>(byte)] ? 0 : 1;
    }
    return count;
  }

  size_t bytes_per_token_max_ = 0;
  std::bitset<256> dropped_;
};

}  // namespace lamina::model

// SPDX-License-Identifier: Apache-2.0
//
// BytesUnderWay: the sizes of the last puts through one view of a peer, which leave in order: how
// many bytes are under way follows from how many puts are (transport::Transport::Pending()). A
// backend that makes several operations of a put counts these, so that the answer is too large
// there, never too small.
//
// Threading: one thread. Allocation: none.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace lamina::memory_node {

class BytesUnderWay {
 public:
  // Sizes of so many puts are known.
  static constexpr uint32_t kPuts = 128;

  void Add(size_t bytes) { sizes_[next_++ % kPuts] = bytes; }

  // Bytes of the last puts, `pending` of which are under way. No number is greater where these are
  // more than are known.
  // Empty: 0.
  size_t Of(uint32_t pending) const {
    if (pending > kPuts) {
      return std::numeric_limits<size_t>::max();
    }
    size_t bytes = 0;
    for (uint32_t put = 1; put <= pending; ++put) {
      bytes += sizes_[(next_ - put) % kPuts];
    }
    return bytes;
  }

 private:
  std::array<size_t, kPuts> sizes_{};  // A ring; 0 where no put has been made.
  uint32_t next_ = 0;                  // It may wrap: kPuts divides 2^32.
};

}  // namespace lamina::memory_node

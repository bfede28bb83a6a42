// SPDX-License-Identifier: Apache-2.0
//
// Copies past the caches, to and from every place in a vector.

#include "kernels/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lamina::kernels {
namespace {

TEST(StreamCopyTest, CopiesAllBytesAndNoOthers) {
  constexpr size_t kRoom = 1200;
  std::vector<uint8_t> source(kRoom);
  for (size_t i = 0; i < kRoom; ++i) {
    source[i] = static_cast<uint8_t>(1 + i % 251);
  }
  for (size_t to = 0; to < 70; ++to) {
    for (const size_t from : {size_t{0}, size_t{1}, size_t{64}}) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{63},
                                 size_t{64}, size_t{65}, size_t{129}, size_t{1024}}) {
        std::vector<uint8_t> target(kRoom), wanted(kRoom);
        std::copy_n(source.data() + from, bytes, wanted.data() + to);
        StreamCopy(target.data() + to, source.data() + from, bytes);
        EndStreamCopies();
        ASSERT_EQ(target, wanted) << bytes << " from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace lamina::kernels

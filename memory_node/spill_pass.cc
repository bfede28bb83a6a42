// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_pass.h"

#include <xxhash.h>

#include "common/check.h"

namespace lamina::memory_node {
namespace {

// A link fits in a core's second cache together with what a copy has just read. A seed costs
// nothing next to so many bytes.
constexpr size_t kLinkBytes = size_t{16} << 10;

}  // namespace

absl::Span<std::byte> SpillPass::Next(size_t bytes) {
  LAMINA_CHECK(bytes <= block_.size() - given_);
  SumLinks(given_);
  const absl::Span<std::byte> next = block_.subspan(given_, bytes);
  given_ += bytes;
  return next;
}

uint64_t SpillPass::End() {
  given_ = block_.size();
  SumLinks(given_);
  if (summed_ < given_) {
    SumLink(given_ - summed_);
  }
  return sum_;
}

void SpillPass::SumLinks(size_t end) {
  while (end - summed_ >= kLinkBytes) {
    SumLink(kLinkBytes);
  }
}

void SpillPass::SumLink(size_t bytes) {
  sum_ = XXH3_64bits_withSeed(block_.data() + summed_, bytes, sum_);
  summed_ += bytes;
}

}  // namespace lamina::memory_node

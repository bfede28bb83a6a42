// SPDX-License-Identifier: Apache-2.0
//
// SpillPass: one walk over the bytes of a block of a spill file, in which they are copied and
// summed up piece by piece, while a core still has each piece in its own cache. A block is larger
// than that cache: summed up by itself and then copied it would come from farther away twice.
//
// The checksum is a chain of XXH3, each over so many bytes and seeded with the one before. It does
// not depend on the pieces in which the block is walked over.
//
// Threading: one thread. Allocation: none.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace lamina::memory_node {

class SpillPass {
 public:
  // What `block` names must outlive this.
  explicit SpillPass(absl::Span<std::byte> block) : block_(block) {}

  // The next bytes of the block, which may be read and filled until the next call of this or of
  // End(), and no longer. Requires: so many are left (CHECKed).
  absl::Span<std::byte> Next(size_t bytes);

  // Walks over what is left. Returns the checksum of the whole block.
  uint64_t End();

 private:
  // Sums up what lies before `end`, except for less than a link of the chain.
  void SumLinks(size_t end);
  void SumLink(size_t bytes);

  const absl::Span<std::byte> block_;
  size_t given_ = 0;   // Bytes that Next() has named,
  size_t summed_ = 0;  // and those of them that sum_ is of.
  uint64_t sum_ = 0;
};

}  // namespace lamina::memory_node

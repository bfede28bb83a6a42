// SPDX-License-Identifier: Apache-2.0
//
// ResidentRoom: of how many tokens K and V stay on a compute node (fetch.resident, path sparse):
// what the coordinator says of it, and the compute node takes.
//
// Threading: plain values. Determinism: pure functions.

#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/attention_descriptor.h"

namespace lamina::plan {

struct ResidentRoom {
  uint32_t tokens = 0;  // Whole tiles of bf16, or with INT8 whole blocks of it.
  uint32_t tails = 0;   // With INT8 open blocks, one for each of so many sequences.
  uint64_t least = 0;   // Bytes of the least that can stay, for which there was no room if none is.
  friend bool operator==(const ResidentRoom&, const ResidentRoom&) = default;
};

// Tiles of K and V as bf16 in so many bytes.
ResidentRoom ResidentTilesIn(uint64_t bytes, absl::Span<const AttentionDescriptor> layers);

// Blocks of K and V as INT8: tails for up to `tails_max` sequences, in half of the bytes or, where
// that is less than one takes, in what one takes; and closed blocks in the others.
ResidentRoom ResidentBlocksIn(uint64_t bytes, absl::Span<const AttentionDescriptor> layers,
                              uint32_t tails_max);

}  // namespace lamina::plan

// SPDX-License-Identifier: Apache-2.0
//
// TransferOrder: in which order the packed weights of a slice come from their store into a slot.
//
//   MakeOpOrder()   O, MLP, QKV        matrix by matrix, as the slice multiplies by them
//   MakeKvFirst()   KV | Q, O, MLP     (KVPR) behind the mark K and V of tokens can be made again,
//                                      while the rest comes
//
// To add one: a class, and a maker.
//
// Threading: pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/dense.h"

namespace lamina::compute_node {

// Where some of a matrix' packed weights lie in the store, and behind which byte of a slot.
struct StowedPiece {
  uint64_t stored = 0;
  size_t bytes = 0;
  size_t at = 0;
  friend bool operator==(const StowedPiece&, const StowedPiece&) = default;
};

struct StowedLinear {
  kernels::PackedLinear* linear = nullptr;
  std::vector<StowedPiece> pieces;  // As PackedLinear::Pieces().
};

// What of a slice makes k and v: one of its matrices, from this feature on.
struct KvFeatures {
  size_t linear = 0;
  size_t first = 0;  // A multiple of 64.
};

struct Transfers {
  std::vector<StowedPiece> parts;  // In their order; each byte once.
  size_t kv_parts = 0;  // So many of them make k and v; 0: these are not there before the rest.
};

class TransferOrder {
 public:
  virtual ~TransferOrder() = default;
  // `kv`: nothing where q, k and v are made in another way.
  virtual Transfers Of(absl::Span<const StowedLinear> linears,
                       const std::optional<KvFeatures>& kv) const = 0;
};

std::unique_ptr<TransferOrder> MakeOpOrder();
std::unique_ptr<TransferOrder> MakeKvFirst();

}  // namespace lamina::compute_node

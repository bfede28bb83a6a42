// SPDX-License-Identifier: Apache-2.0
//
// RowPieces: in calls of how many rows a matrix product is made when a library's loops differ in
// their bits by the number of rows. Row counts whose calls give every row the same bits may stand
// for each other; all products of a layer are cut into calls of these counts. A rest that has no
// such count of its own is padded: the call computes rows that nobody reads.
//
// oneDNN with AMX is such a library: it takes a loop without AMX where rows times features are few,
// and other sums for some of the longer inputs.
//
// Determinism: pure functions.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"

namespace lamina::kernels::cpu {

class RowPieces {
 public:
  static constexpr size_t kExactMax = 64;  // Any count up to here may be a call of its own.
  static constexpr size_t kLong = 128;     // The one longer call.

  // alike[rows]: a call of so many rows gives the bits that the layer is to have. [0] means
  // nothing; [kExactMax + 1] is for kLong.
  using Alike = std::array<bool, kExactMax + 2>;

  // Errors: kUnimplemented  some rest would be padded to more than twice its rows, so that the
  //                         loop would lose what it gains.
  static absl::StatusOr<RowPieces> Create(const Alike& alike);

  struct Piece {
    size_t rows = 0;  // Rows of the product that the call computes, and
    size_t call = 0;  // rows of the call; more than `rows` where it is padded.
  };

  // The first call for a product of so many rows that are left. Requires: rows > 0.
  Piece First(size_t rows) const;

  // Whether calls of so many rows are ever made. Requires: 0 < rows <= kExactMax, or kLong.
  bool Uses(size_t rows) const;

  // The most rows of a padded call; 0 where none is padded.
  size_t padded_max() const { return padded_max_; }

 private:
  std::array<uint8_t, kExactMax + 1> call_ = {};  // [rows left], for up to kExactMax.
  bool long_ = false;
  size_t most_ = 0;  // The longest call of at most kExactMax rows.
  size_t padded_max_ = 0;
};

}  // namespace lamina::kernels::cpu

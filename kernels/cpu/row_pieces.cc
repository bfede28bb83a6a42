// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_pieces.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lamina::kernels::cpu {

absl::StatusOr<RowPieces> RowPieces::Create(const Alike& alike) {
  RowPieces pieces;
  pieces.long_ = alike[kExactMax + 1];
  size_t next = 0;  // The fewest rows of a call for `rows`, going down from the longest.
  for (size_t rows = kExactMax; rows > 0; --rows) {
    if (alike[rows]) {
      next = rows;
      pieces.most_ = std::max(pieces.most_, rows);
    }
    pieces.call_[rows] = static_cast<uint8_t>(next);
  }
  for (size_t rows = 1; rows <= pieces.most_; ++rows) {
    const size_t call = pieces.call_[rows];
    if (call > 2 * rows) {
      return absl::UnimplementedError(
          absl::StrCat(rows, " rows would take a call of ", call, ", more than twice as many"));
    }
    pieces.padded_max_ = call > rows ? std::max(pieces.padded_max_, call) : pieces.padded_max_;
  }
  if (pieces.most_ == 0) {
    return absl::UnimplementedError("no two numbers of rows give a row the same bits");
  }
  return pieces;
}

RowPieces::Piece RowPieces::First(size_t rows) const {
  if (rows >= kLong && long_) {
    return {.rows = kLong, .call = kLong};
  }
  if (rows >= most_) {
    return {.rows = most_, .call = most_};
  }
  return {.rows = rows, .call = call_[rows]};
}

bool RowPieces::Uses(size_t rows) const {
  return rows == kLong ? long_ : rows <= most_ && call_[rows] == rows;
}

}  // namespace lamina::kernels::cpu

// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/row_pieces.h"

#include <gtest/gtest.h>

#include <vector>

namespace lamina::kernels::cpu {
namespace {

RowPieces::Alike AlikeFrom(size_t first, size_t last, bool long_too) {
  RowPieces::Alike alike = {};
  for (size_t rows = first; rows <= last; ++rows) {
    alike[rows] = true;
  }
  alike[RowPieces::kExactMax + 1] = long_too;
  return alike;
}

// The calls of a product of so many rows.
std::vector<size_t> Calls(const RowPieces& pieces, size_t rows) {
  std::vector<size_t> calls;
  for (size_t left = rows; left > 0;) {
    const RowPieces::Piece piece = pieces.First(left);
    EXPECT_GE(piece.call, piece.rows);
    EXPECT_TRUE(pieces.Uses(piece.call));
    EXPECT_TRUE(piece.rows > 0 && piece.rows <= left);
    if (piece.rows == 0 || piece.rows > left) {
      break;
    }
    calls.push_back(piece.call);
    left -= piece.rows;
  }
  return calls;
}

using Rows = std::vector<size_t>;

TEST(RowPiecesTest, TakesEveryCountAsItIsWhereAllAgree) {
  const auto pieces = RowPieces::Create(AlikeFrom(1, 64, true));

  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Calls(*pieces, 1), Rows({1}));
  EXPECT_EQ(Calls(*pieces, 63), Rows({63}));
  EXPECT_EQ(Calls(*pieces, 65), Rows({64, 1}));
  EXPECT_EQ(Calls(*pieces, 300), Rows({128, 128, 44}));
  EXPECT_EQ(pieces->padded_max(), 0u);
}

TEST(RowPiecesTest, PadsOneRowWhereOneAloneTakesAnotherLoop) {
  const auto pieces = RowPieces::Create(AlikeFrom(2, 64, true));

  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Calls(*pieces, 1), Rows({2}));
  EXPECT_EQ(Calls(*pieces, 129), Rows({128, 2}));
  EXPECT_EQ(pieces->padded_max(), 2u);
}

TEST(RowPiecesTest, TakesShorterCallsWhereLongOnesDiffer) {
  const auto pieces = RowPieces::Create(AlikeFrom(1, 64, false));

  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Calls(*pieces, 200), Rows({64, 64, 64, 8}));
  EXPECT_FALSE(pieces->Uses(RowPieces::kLong));
}

TEST(RowPiecesTest, TakesTheLongestThatAgrees) {
  const auto pieces = RowPieces::Create(AlikeFrom(1, 48, true));

  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Calls(*pieces, 127), Rows({48, 48, 31}));
  EXPECT_EQ(Calls(*pieces, 128), Rows({128}));
}

TEST(RowPiecesTest, PadsCountsBetweenThoseThatAgree) {
  RowPieces::Alike alike = {};
  for (const size_t rows : {1, 2, 4, 8, 16, 32, 64}) {
    alike[rows] = true;
  }
  const auto pieces = RowPieces::Create(alike);

  ASSERT_TRUE(pieces.ok());
  EXPECT_EQ(Calls(*pieces, 33), Rows({64}));
  EXPECT_EQ(Calls(*pieces, 67), Rows({64, 4}));
  EXPECT_EQ(pieces->padded_max(), 64u);
}

TEST(RowPiecesTest, RefusesToPadToMoreThanTwice) {
  EXPECT_EQ(RowPieces::Create(AlikeFrom(3, 64, true)).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(RowPieces::Create({}).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace lamina::kernels::cpu

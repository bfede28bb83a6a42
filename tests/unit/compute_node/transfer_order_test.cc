// SPDX-License-Identifier: Apache-2.0
#include "compute_node/transfer_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace lamina::compute_node {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Products of features from `first_out` on read each piece from byte 10 * first_out on.
class TenBytesAFeature final : public kernels::PackedLinear {
 public:
  size_t in_features() const override { return 10; }
  size_t out_features() const override { return 1000; }
  uint64_t bytes() const override { return 10000; }
  size_t FirstByte(size_t /*piece*/, size_t first_out) const override { return 10 * first_out; }
};

class TransferOrderTest : public testing::Test {
 protected:
  // Three matrices, which lie in the slot as they do in the store; the last has two pieces.
  std::vector<StowedLinear> Linears() {
    return {{.linear = &linear_, .pieces = {{.stored = 5000, .bytes = 300, .at = 0}}},
            {.linear = &linear_, .pieces = {{.stored = 5300, .bytes = 500, .at = 320}}},
            {.linear = &linear_,
             .pieces = {{.stored = 5800, .bytes = 900, .at = 832},
                        {.stored = 6700, .bytes = 640, .at = 1792}}}};
  }

  TenBytesAFeature linear_;
};

TEST_F(TransferOrderTest, OpsComeInTheirOrder) {
  const Transfers transfers = MakeOpOrder()->Of(Linears(), KvFeatures{.linear = 2, .first = 64});
  EXPECT_THAT(transfers.parts,
              ElementsAre(StowedPiece{5000, 300, 0}, StowedPiece{5300, 500, 320},
                          StowedPiece{5800, 900, 832}, StowedPiece{6700, 640, 1792}));
  EXPECT_EQ(transfers.kv_parts, 0u);
}

// Products of k and v read nothing of its second piece.
TEST_F(TransferOrderTest, WhatMakesKAndVComesFirstAndEachByteOnce) {
  const Transfers transfers = MakeKvFirst()->Of(Linears(), KvFeatures{.linear = 2, .first = 64});
  EXPECT_THAT(transfers.parts,
              ElementsAre(StowedPiece{6440, 260, 1472},                               // K V
                          StowedPiece{5800, 640, 832}, StowedPiece{6700, 640, 1792},  // Q
                          StowedPiece{5000, 300, 0}, StowedPiece{5300, 500, 320}));
  EXPECT_EQ(transfers.kv_parts, 1u);
}

TEST_F(TransferOrderTest, AMatrixThatIsReadAsAWholeComesAsOne) {
  const Transfers transfers = MakeKvFirst()->Of(Linears(), KvFeatures{.linear = 1, .first = 0});
  EXPECT_THAT(transfers.parts,
              ElementsAre(StowedPiece{5300, 500, 320}, StowedPiece{5000, 300, 0},
                          StowedPiece{5800, 900, 832}, StowedPiece{6700, 640, 1792}));
  EXPECT_EQ(transfers.kv_parts, 1u);
}

TEST_F(TransferOrderTest, WithoutOneNothingComesFirst) {
  EXPECT_EQ(MakeKvFirst()->Of(Linears(), std::nullopt).parts,
            MakeOpOrder()->Of(Linears(), std::nullopt).parts);
  EXPECT_EQ(MakeKvFirst()->Of(Linears(), std::nullopt).kv_parts, 0u);
  EXPECT_THAT(MakeKvFirst()->Of({}, std::nullopt).parts, IsEmpty());
}

}  // namespace
}  // namespace lamina::compute_node

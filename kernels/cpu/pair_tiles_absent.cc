// SPDX-License-Identifier: Apache-2.0
#include "common/check.h"
#include "kernels/cpu/block_pairs.h"
#include "kernels/cpu/block_widen.h"
#include "kernels/cpu/pair_tiles.h"

namespace lamina::kernels::cpu {

bool HasPairTiles() { return false; }

void MultiplyPanelPairs(const PanelTask<BFloat16>& /*task*/) { LAMINA_CHECK(HasPairTiles()); }

MultiplyFewRows PairsOfBlocks(BlockType /*type*/) {
  LAMINA_CHECK(HasPairTiles());
  return nullptr;
}

WidenStrip PairWidener(BlockType /*type*/) {
  LAMINA_CHECK(HasPairTiles());
  return nullptr;
}

}  // namespace lamina::kernels::cpu

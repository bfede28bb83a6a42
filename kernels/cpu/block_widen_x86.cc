// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/block_widen.h"
#include "kernels/cpu/block_widen_x86-inl.h"

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
namespace lamina::kernels::cpu {
namespace {

template <BlockType kType>
void Widen(const uint8_t* strip, size_t blocks, uint32_t* words) {
  constexpr BlockFormat kFormat = FormatOf(kType);
  for (size_t i = 0; i < blocks; ++i, strip += kFormat.bytes()) {
    FetchAhead(strip, kFormat.bytes());
    for (size_t group = 0; group < kFormat.groups(); ++group) {
      WidenGroup<kType>(strip, group, words);
      words += kFormat.group / 2 * kStripFeatures;
    }
  }
}

}  // namespace
}  // namespace lamina::kernels::cpu
HWY_POP_ATTRIBUTES

namespace lamina::kernels::cpu {

WidenStrip PairWidener(BlockType type) {
  switch (type) {
    case BlockType::kQ40:
      return Widen<BlockType::kQ40>;
    case BlockType::kQ41:
      return Widen<BlockType::kQ41>;
    case BlockType::kQ50:
      return Widen<BlockType::kQ50>;
    case BlockType::kQ51:
      return Widen<BlockType::kQ51>;
    case BlockType::kQ80:
      return Widen<BlockType::kQ80>;
    case BlockType::kIq4Nl:
      return Widen<BlockType::kIq4Nl>;
    case BlockType::kMxfp4:
      return Widen<BlockType::kMxfp4>;
    case BlockType::kQ2K:
      return Widen<BlockType::kQ2K>;
    case BlockType::kQ3K:
      return Widen<BlockType::kQ3K>;
    case BlockType::kQ4K:
      return Widen<BlockType::kQ4K>;
    case BlockType::kQ5K:
      return Widen<BlockType::kQ5K>;
    case BlockType::kQ6K:
      return Widen<BlockType::kQ6K>;
    case BlockType::kIq4Xs:
      return Widen<BlockType::kIq4Xs>;
    case BlockType::kInt8:
      return Widen<BlockType::kInt8>;
  }
  return nullptr;
}

}  // namespace lamina::kernels::cpu

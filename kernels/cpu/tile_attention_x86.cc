// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/base.h"
#include "kernels/canonical_math.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_ahead.h"
#include "kernels/cpu/attention_gather.h"
#include "kernels/cpu/tile_attention_internal.h"
#include "kernels/cpu/tile_multiplier-inl.h"
#include "kernels/cpu/tile_products.h"
#include "kernels/k_tiles.h"
#include "kernels/pair_math.h"
#include "kernels/partial.h"

// Behind it are only names of this file, so that no other file takes code with these instructions
// from here.
HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")
#include "kernels/cpu/pair_avx512-inl.h"
#include "kernels/cpu/tile_attention-inl.h"

namespace lamina::kernels::internal {
namespace {

AttentionOps HardwareOps() { return TileOps<Avx512Pairs, cpu::AmxTiles>("tiles/AMX_BF16"); }

}  // namespace
}  // namespace lamina::kernels::internal
HWY_POP_ATTRIBUTES

namespace lamina::kernels::internal {

const AttentionOps* HardwareTileOps() {
  if (SupportedAttentionOps().empty() || !cpu::ProcessorHasTiles() ||
      __builtin_cpu_supports("avx512bw") == 0 || __builtin_cpu_supports("avx512vl") == 0 ||
      __builtin_cpu_supports("avx512dq") == 0 || __builtin_cpu_supports("avx512bf16") == 0) {
    return nullptr;
  }
  static const AttentionOps ops = HardwareOps();
  return &ops;
}

}  // namespace lamina::kernels::internal

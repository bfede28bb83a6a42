// SPDX-License-Identifier: Apache-2.0
//
// The loops of pair_attention-inl.h over a plain emulation of their instructions.
#include "kernels/cpu/pair_attention-inl.h"
#include "kernels/cpu/pair_attention_internal.h"
#include "kernels/cpu/pair_plain-inl.h"

namespace lamina::kernels::internal {

const AttentionOps* EmulatedPairOps() {
  if (SupportedAttentionOps().empty()) {
    return nullptr;
  }
  static const AttentionOps ops = PairOps<PlainPairs>();
  return &ops;
}

}  // namespace lamina::kernels::internal

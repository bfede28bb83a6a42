// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/pair_attention_internal.h"

namespace lamina::kernels::internal {

const AttentionOps* HardwarePairOps() { return nullptr; }

}  // namespace lamina::kernels::internal

// SPDX-License-Identifier: Apache-2.0
#include "kernels/pair_attention.h"

#include <vector>

#include "common/log.h"
#include "kernels/cpu/attention_probe.h"
#include "kernels/cpu/pair_attention_internal.h"
#include "kernels/cpu/pair_products.h"

namespace lamina::kernels {
namespace {

// By the instruction. Null: it is not here, or has other bits.
const AttentionKernel* FindHardware() {
  const internal::AttentionOps* ops = internal::HardwarePairOps();
  if (ops == nullptr) {
    return nullptr;
  }
  const AttentionKernel* kernel = CpuPairAttentionVariants().front();
  const absl::Status status = ProbeAttention(*kernel, ReferencePairAttention());
  if (!status.ok()) {
    LogWarning("attention kernel not used on this processor; please report it: ", status.message());
    return nullptr;
  }
  return kernel;
}

const AttentionKernel* Hardware() {
  static const AttentionKernel* const kernel = FindHardware();
  return kernel;
}

std::vector<const AttentionKernel*> MakeVariants() {
  std::vector<const AttentionKernel*> variants;
  for (const internal::AttentionOps* ops :
       {internal::HardwarePairOps(), internal::EmulatedPairOps()}) {
    if (ops != nullptr) {
      variants.push_back(internal::MakeAttentionKernel(*ops).release());  // Lives as long as we do.
    }
  }
  return variants;
}

}  // namespace

bool HasPairAttention() { return Hardware() != nullptr; }

bool HasFastPairAttention() { return !cpu::PairProductsAreSlow() && HasPairAttention(); }

const AttentionKernel& CpuPairAttention() {
  if (HasPairAttention()) {
    return *Hardware();
  }
  return internal::EmulatedPairOps() != nullptr ? *CpuPairAttentionVariants().back()
                                                : ReferencePairAttention();
}

absl::Span<const AttentionKernel* const> CpuPairAttentionVariants() {
  static const auto* const variants = new std::vector<const AttentionKernel*>(MakeVariants());
  return *variants;
}

}  // namespace lamina::kernels

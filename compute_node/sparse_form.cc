// SPDX-License-Identifier: Apache-2.0
#include "compute_node/sparse_form.h"

#include <utility>

#include "compute_node/resident_kv.h"
#include "compute_node/sparse_bf16.h"
#include "compute_node/sparse_int8.h"

namespace lamina::compute_node {

SparseForm MakeSparseForm(const plan::EpochConfig& config, const SparseMemory& memory,
                          WeighedAttention& attention) {
  if (memory.int8 != nullptr) {
    auto recent = std::make_unique<ResidentInt8>(config, memory.resident_int8);
    auto pieces = std::make_unique<SparseInt8>(attention, *recent, config.rows_max);
    return {.recent = std::move(recent), .pieces = std::move(pieces)};
  }
  auto recent = std::make_unique<ResidentKv>(config, memory.resident);
  auto pieces = std::make_unique<SparseBf16>(attention, *recent, config.rows_max);
  return {.recent = std::move(recent), .pieces = std::move(pieces)};
}

}  // namespace lamina::compute_node

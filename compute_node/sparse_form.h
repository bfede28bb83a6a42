// SPDX-License-Identifier: Apache-2.0
//
// SparseForm: the parts of path sparse that follow from the form of K and V: which recent tokens
// stay, and how rows attend to a piece.
//
// Threading: plain values.

#pragma once

#include <memory>

#include "compute_node/recent_tokens.h"
#include "compute_node/resident_int8.h"
#include "compute_node/sparse_pieces.h"
#include "compute_node/weighed_attention.h"
#include "kernels/int8_arena.h"
#include "kernels/kv_arena.h"
#include "plan/epoch_config.h"

namespace lamina::compute_node {

// What a path is given for K and V, each of the epoch's layers.
struct SparseMemory {
  kernels::KvArena& scratch;               // Prompts are here,
  kernels::Int8Arena* int8 = nullptr;      // and INT8 of the same tokens; null: K and V are bf16.
  kernels::KvArena* resident = nullptr;    // For tokens that stay, as bf16. Null: none does.
  Int8Residents* resident_int8 = nullptr;  // These are in its place with INT8.
};

struct SparseForm {
  std::unique_ptr<RecentTokens> recent;
  std::unique_ptr<SparsePieces> pieces;  // Refers to `recent`.
};

// References must outlive it.
SparseForm MakeSparseForm(const plan::EpochConfig& config, const SparseMemory& memory,
                          WeighedAttention& attention);

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// The kernels of the row layers as dense.cc calls them: norms, rope, activations, sums, embedding.
//
// Each row is computed by itself, in an order that does not depend on the others.

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernel_limits.h"

namespace lamina::kernels::cuda {

enum class Element : uint8_t { kF32, kBF16 };

// Rows of device memory; strides in elements.
struct RowsIn {
  const float* data = nullptr;
  size_t stride = 0;
};
struct RowsOut {
  void* data = nullptr;
  size_t stride = 0;
  Element type = Element::kF32;
};

enum class RowActivation : uint8_t { kRelu, kSilu, kGeluErf, kGeluTanh, kClampedSwiglu };

// Rows and columns of the output.
struct RowsShape {
  uint32_t rows = 0;
  uint32_t cols = 0;
};

// `bias` null: no mean is subtracted (RmsNorm); else LayerNorm. Sums in f64. Rows of at most
// 16,384 columns. With `added` the norm is that of x + added, which `sum` gets; it may be either.
struct NormArguments {
  RowsShape shape;
  RowsIn x;
  RowsIn added;
  float* sum = nullptr;
  size_t sum_stride = 0;
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols] or null
  float epsilon = 0;
  RowsOut out;
};
cudaError_t NormRows(const NormArguments& arguments, cudaStream_t stream);

// Dense::NormHeads. A norm is over one head, or with `whole` over all of q or of k.
struct NormHeadsArguments {
  RowsShape shape;  // Shape of the rows [q | k | v].
  RowsIn x;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  bool whole = false;
  float epsilon = 0;
  const float* q_weight = nullptr;
  const float* k_weight = nullptr;
  float* out = nullptr;
  size_t out_stride = 0;
};
cudaError_t NormHeadsRows(const NormHeadsArguments& arguments, cudaStream_t stream);

// out = factor * x, with a soft cap where that is not 0.
struct ScaleArguments {
  RowsShape shape;
  RowsIn x;
  float factor = 1;
  float soft_cap = 0;
  RowsOut out;
};
cudaError_t ScaleRows(const ScaleArguments& arguments, cudaStream_t stream);

// Slots for k and v of rows [q | k | v], as KvRowStore; null `slots`: nothing is stored.
struct SlotsOut {
  uint32_t kv_heads = 0;
  uint16_t* k = nullptr;
  uint16_t* v = nullptr;
  size_t head_stride = 0;
  const uint32_t* slots = nullptr;  // [rows]
};

// Rotates the first `heads` heads of each row and rounds all columns to bf16, of which the last go
// to slots too.
struct RopeArguments {
  RowsShape shape;
  RowsIn x;
  uint32_t heads = 0;
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;
  bool interleaved = false;
  float magnitude = 1;
  const float* frequencies = nullptr;   // [rotary_dim / 2]
  const uint32_t* positions = nullptr;  // [rows]
  uint16_t* out = nullptr;
  size_t out_stride = 0;
  SlotsOut store;
};
cudaError_t RopeRows(const RopeArguments& arguments, cudaStream_t stream);

// RopeRows() of what NormHeadsRows() makes of `norms.x`: with the bits of both. Neither norms.out
// nor rope.x are looked at. Requires: rope.head_dim is norms.head_dim.
cudaError_t NormRopeRows(const NormHeadsArguments& norms, const RopeArguments& rope,
                         cudaStream_t stream);

// out = act(x), or, gated, act(x[:, 0:cols]) * x[:, cols:2 cols].
struct ActivateArguments {
  RowsShape shape;
  RowsIn x;
  RowActivation activation = RowActivation::kSilu;
  bool gated = false;
  RowsOut out;
};
cudaError_t ActivateRows(const ActivateArguments& arguments, cudaStream_t stream);

struct AddArguments {
  RowsShape shape;
  RowsIn a;
  RowsIn b;
  float* out = nullptr;
  size_t out_stride = 0;
};
cudaError_t AddRows(const AddArguments& arguments, cudaStream_t stream);

struct ConvertArguments {
  RowsShape shape;
  const uint16_t* x = nullptr;
  size_t x_stride = 0;
  RowsOut out;
};
cudaError_t ConvertRows(const ConvertArguments& arguments, cudaStream_t stream);

struct EmbedArguments {
  RowsShape shape;
  const void* table = nullptr;  // [vocabulary, cols]
  Element type = Element::kBF16;
  const uint32_t* ids = nullptr;  // [rows], each inside the table
  float* out = nullptr;
  size_t out_stride = 0;
};
cudaError_t EmbedRows(const EmbedArguments& arguments, cudaStream_t stream);

// For LoadKernels(): all of these.
cudaError_t LoadRowKernels(KernelLimits& limits);

}  // namespace lamina::kernels::cuda

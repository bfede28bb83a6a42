// SPDX-License-Identifier: Apache-2.0
//
// One thread block to a row for what needs the whole row; pieces of a row for what does not.

#include <cuda_runtime.h>

#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Elements of a row that one thread block of an elementwise kernel takes.
constexpr uint32_t kPiece = 4 * kThreads;
constexpr uint32_t kRotaryMax = 256;

__device__ inline void Put(const RowsOut& out, size_t row, size_t col, float value) {
  const size_t place = row * out.stride + col;
  if (out.type == Element::kF32) {
    static_cast<float*>(out.data)[place] = value;
  } else {
    static_cast<uint16_t*>(out.data)[place] = RoundToBFloat16(value);
  }
}

// The sum over the block of one value a thread, along a fixed tree; every thread gets it.
__device__ inline double SumOverBlock(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x] = sums[threadIdx.x] + sums[threadIdx.x + half];
    }
    __syncthreads();
  }
  const double sum = sums[0];
  __syncthreads();  // The next call writes where this one reads.
  return sum;
}

__global__ void NormKernel(const NormArguments a) {
  const size_t row = blockIdx.x;
  const float* x = a.x.data + row * a.x.stride;
  const uint32_t cols = a.shape.cols;
  double mean = 0;
  if (a.bias != nullptr) {
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
      sum = sum + static_cast<double>(x[i]);
    }
    mean = SumOverBlock(sum) / cols;
  }
  double squares = 0;
  for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
    const double centred = static_cast<double>(x[i]) - mean;
    squares = squares + centred * centred;
  }
  const double scale = 1 / sqrt(SumOverBlock(squares) / cols + static_cast<double>(a.epsilon));
  for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
    const double normal =
        (static_cast<double>(x[i]) - mean) * scale * static_cast<double>(a.weight[i]);
    const double shift = a.bias != nullptr ? static_cast<double>(a.bias[i]) : 0.0;
    Put(a.out, row, i, static_cast<float>(normal + shift));
  }
}

// A block of threads to a norm, and one more to v.
__global__ void NormHeadsKernel(const NormHeadsArguments a) {
  const size_t row = blockIdx.x;
  const float* x = a.x.data + row * a.x.stride;
  float* out = a.out + row * a.out_stride;
  const uint32_t q_norms = a.whole ? 1 : a.query_heads;
  const uint32_t norms = q_norms + (a.whole ? 1 : a.kv_heads);
  const uint32_t norm = blockIdx.y;
  const bool is_q = norm < q_norms;
  uint32_t first = norm * a.head_dim;
  uint32_t cols = a.head_dim;
  if (norm == norms) {
    first = (a.query_heads + a.kv_heads) * a.head_dim;
    cols = a.shape.cols - first;
  } else if (a.whole) {
    first = is_q ? 0 : a.query_heads * a.head_dim;
    cols = (is_q ? a.query_heads : a.kv_heads) * a.head_dim;
  }
  if (norm == norms) {
    for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
      out[first + i] = x[first + i];
    }
    return;
  }
  const float* weight = is_q ? a.q_weight : a.k_weight;
  double squares = 0;
  for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
    squares = squares + static_cast<double>(x[first + i]) * static_cast<double>(x[first + i]);
  }
  const double scale = 1 / sqrt(SumOverBlock(squares) / cols + static_cast<double>(a.epsilon));
  for (uint32_t i = threadIdx.x; i < cols; i += kThreads) {
    out[first + i] = static_cast<float>(static_cast<double>(x[first + i]) * scale *
                                        static_cast<double>(weight[i]));
  }
}

__global__ void RopeKernel(const RopeArguments a) {
  __shared__ double cosines[kRotaryMax / 2];
  __shared__ double sines[kRotaryMax / 2];
  const size_t row = blockIdx.x;
  const uint32_t half = a.rotary_dim / 2;
  // One angle serves all heads. The angle is the f32 product; its sine and cosine are exact to f32.
  for (uint32_t i = threadIdx.x; i < half; i += kThreads) {
    const float angle = static_cast<float>(a.positions[row]) * a.frequencies[i];
    cosines[i] = cos(static_cast<double>(angle)) * static_cast<double>(a.magnitude);
    sines[i] = sin(static_cast<double>(angle)) * static_cast<double>(a.magnitude);
  }
  __syncthreads();
  const float* x = a.x.data + row * a.x.stride;
  uint16_t* out = a.out + row * a.out_stride;
  for (uint32_t col = threadIdx.x; col < a.shape.cols; col += kThreads) {
    const uint32_t element = col % a.head_dim;
    if (col >= a.heads * a.head_dim || element >= a.rotary_dim) {
      out[col] = RoundToBFloat16(x[col]);
      continue;
    }
    const uint32_t pair = a.interleaved ? element / 2 : element % half;
    const bool second = a.interleaved ? element % 2 != 0 : element >= half;
    const uint32_t distance = a.interleaved ? 1 : half;
    const double mine = static_cast<double>(x[col]);
    const double other = static_cast<double>(x[second ? col - distance : col + distance]);
    const double rotated = second ? mine * cosines[pair] + other * sines[pair]
                                  : mine * cosines[pair] - other * sines[pair];
    out[col] = RoundToBFloat16(static_cast<float>(rotated));
  }
}

__device__ inline float Activated(RowActivation activation, float x) {
  switch (activation) {
    case RowActivation::kRelu:
      return x < 0.0f ? 0.0f : x;
    case RowActivation::kSilu:
      return x / (1.0f + expf(-x));
    case RowActivation::kGeluErf:
      return 0.5f * x * erfcf(-x * 0.707106781f);  // 1 + erf, without cancellation
    case RowActivation::kGeluTanh:
      // (1 + tanh y) / 2 = 1 / (1 + exp(-2y)), without cancellation; 2 sqrt(2 / pi) = 1.595...
      return x / (1.0f + expf(-1.59576912f * (x + 0.044715f * x * x * x)));
    case RowActivation::kClampedSwiglu: {
      const float gate = x > 7.0f ? 7.0f : x;
      return gate / (1.0f + expf(-1.702f * gate));
    }
  }
  return x;
}

// What a gated activation multiplies by.
__device__ inline float UpOf(RowActivation activation, float up) {
  if (activation != RowActivation::kClampedSwiglu) {
    return up;
  }
  const float most = up > 7.0f ? 7.0f : up;
  return (most < -7.0f ? -7.0f : most) + 1.0f;
}

// Calls `body(row, col)` for this thread's columns; the grid is Pieces().
template <typename Body>
__device__ inline void ForEachColumn(uint32_t cols, const Body& body) {
  const uint32_t first = blockIdx.y * kPiece;
  const uint32_t end = first + kPiece < cols ? first + kPiece : cols;
  for (uint32_t col = first + threadIdx.x; col < end; col += kThreads) {
    body(size_t{blockIdx.x}, col);
  }
}

__global__ void ActivateKernel(const ActivateArguments a) {
  ForEachColumn(a.shape.cols, [&](size_t row, uint32_t col) {
    const float* x = a.x.data + row * a.x.stride;
    const float activated = Activated(a.activation, x[col]);
    Put(a.out, row, col,
        a.gated ? activated * UpOf(a.activation, x[a.shape.cols + col]) : activated);
  });
}

__global__ void AddKernel(const AddArguments a) {
  ForEachColumn(a.shape.cols, [&](size_t row, uint32_t col) {
    a.out[row * a.out_stride + col] =
        a.a.data[row * a.a.stride + col] + a.b.data[row * a.b.stride + col];
  });
}

__global__ void ScaleKernel(const ScaleArguments a) {
  ForEachColumn(a.shape.cols, [&](size_t row, uint32_t col) {
    const float scaled = a.factor * a.x.data[row * a.x.stride + col];
    Put(a.out, row, col, a.soft_cap == 0.0f ? scaled : a.soft_cap * tanhf(scaled / a.soft_cap));
  });
}

__global__ void ConvertKernel(const ConvertArguments a) {
  ForEachColumn(a.shape.cols, [&](size_t row, uint32_t col) {
    Put(a.out, row, col, LowBFloat16(a.x[row * a.x_stride + col]));
  });
}

__global__ void EmbedKernel(const EmbedArguments a) {
  ForEachColumn(a.shape.cols, [&](size_t row, uint32_t col) {
    const size_t place = size_t{a.ids[row]} * a.shape.cols + col;
    a.out[row * a.out_stride + col] =
        a.type == Element::kF32 ? static_cast<const float*>(a.table)[place]
                                : LowBFloat16(static_cast<const uint16_t*>(a.table)[place]);
  });
}

LaunchShape WholeRows(const RowsShape& shape, cudaStream_t stream) {
  return {.grid = dim3(shape.rows), .block = dim3(kThreads), .shared_bytes = 0, .stream = stream};
}

LaunchShape Pieces(const RowsShape& shape, cudaStream_t stream) {
  return {.grid = dim3(shape.rows, (shape.cols + kPiece - 1) / kPiece),
          .block = dim3(kThreads),
          .shared_bytes = 0,
          .stream = stream};
}

// A grid of no blocks is an error of CUDA's; no rows are none of ours.
bool Empty(const RowsShape& shape) { return shape.rows == 0 || shape.cols == 0; }

}  // namespace

cudaError_t LoadRowKernels(KernelLimits& limits) {
  return LoadEach(limits, NormKernel, NormHeadsKernel, RopeKernel, ActivateKernel, AddKernel,
                  ScaleKernel, ConvertKernel, EmbedKernel);
}

cudaError_t NormRows(const NormArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(NormKernel, WholeRows(a.shape, stream), a);
}

cudaError_t NormHeadsRows(const NormHeadsArguments& a, cudaStream_t stream) {
  const uint32_t norms = a.whole ? 2 : a.query_heads + a.kv_heads;
  const LaunchShape shape = {.grid = dim3(a.shape.rows, norms + 1),
                             .block = dim3(kThreads),
                             .shared_bytes = 0,
                             .stream = stream};
  return Empty(a.shape) ? cudaSuccess : Launch(NormHeadsKernel, shape, a);
}

cudaError_t ScaleRows(const ScaleArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(ScaleKernel, Pieces(a.shape, stream), a);
}

cudaError_t RopeRows(const RopeArguments& a, cudaStream_t stream) {
  if (a.rotary_dim > kRotaryMax) {
    return cudaErrorInvalidValue;
  }
  return Empty(a.shape) ? cudaSuccess : Launch(RopeKernel, WholeRows(a.shape, stream), a);
}

cudaError_t ActivateRows(const ActivateArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(ActivateKernel, Pieces(a.shape, stream), a);
}

cudaError_t AddRows(const AddArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(AddKernel, Pieces(a.shape, stream), a);
}

cudaError_t ConvertRows(const ConvertArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(ConvertKernel, Pieces(a.shape, stream), a);
}

cudaError_t EmbedRows(const EmbedArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(EmbedKernel, Pieces(a.shape, stream), a);
}

}  // namespace lamina::kernels::cuda

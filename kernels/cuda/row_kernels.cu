// SPDX-License-Identifier: Apache-2.0
//
// One thread block to a row for what needs the whole row; pieces of a row for what does not. With
// few rows a kernel takes as long as its chain of loads, so that a thread's loads are all under way
// before it uses the first one.

#include <cuda_runtime.h>

#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kThreads = 256;
// Elements that a thread of an elementwise kernel takes, and a thread block.
constexpr int kEach = 4;
constexpr uint32_t kPiece = kEach * kThreads;
constexpr uint32_t kRotaryMax = 256;
constexpr uint32_t kNoSlot = 0xffffffffu;  // As dense.h has it.
constexpr int kNormThreads = 512;
constexpr int kNormEachMax = 32;

__device__ inline void Put(const RowsOut& out, size_t row, size_t col, float value) {
  const size_t place = row * out.stride + col;
  if (out.type == Element::kF32) {
    static_cast<float*>(out.data)[place] = value;
  } else {
    static_cast<uint16_t*>(out.data)[place] = RoundToBFloat16(value);
  }
}

// The sum over a block of kBlock threads of one value a thread, along a fixed tree; every thread
// gets it.
template <int kBlock = kThreads>
__device__ inline double SumOverBlock(double value) {
  constexpr int kWarpsOfBlock = kBlock / 32;
  static_assert(kWarpsOfBlock <= 32);
  __shared__ double sums[kWarpsOfBlock];
  for (int offset = 16; offset > 0; offset /= 2) {
    value = value + __shfl_xor_sync(kWholeWarp, value, offset);
  }
  if (threadIdx.x % 32 == 0) {
    sums[threadIdx.x / 32] = value;
  }
  __syncthreads();
  value = threadIdx.x % 32 < kWarpsOfBlock ? sums[threadIdx.x % 32] : 0.0;
  for (int offset = 16; offset > 0; offset /= 2) {
    value = value + __shfl_xor_sync(kWholeWarp, value, offset);
  }
  __syncthreads();  // The next call writes where this one reads.
  return value;
}

// One thread block to a row, which it keeps in registers: kEach elements a thread. So every load is
// on its way before the first sum, those of weights too, and the row is read once.
template <int kEach>
__global__ void NormKernel(const NormArguments a) {
  const size_t row = blockIdx.x;
  const uint32_t cols = a.shape.cols;
  float x[kEach];
  float weight[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = threadIdx.x + i * kNormThreads;
    x[i] = col < cols ? a.x.data[row * a.x.stride + col] : 0.0f;
    weight[i] = col < cols ? a.weight[col] : 0.0f;
  }
  if (a.added.data != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t col = threadIdx.x + i * kNormThreads;
      x[i] = col < cols ? x[i] + a.added.data[row * a.added.stride + col] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const uint32_t col = threadIdx.x + i * kNormThreads;
      if (col < cols) {
        a.sum[row * a.sum_stride + col] = x[i];
      }
    }
  }
  double mean = 0;
  if (a.bias != nullptr) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sum = sum + static_cast<double>(x[i]);
    }
    mean = SumOverBlock<kNormThreads>(sum) / cols;
  }
  double squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const double centred = static_cast<double>(x[i]) - mean;
    const bool inside = threadIdx.x + i * kNormThreads < cols;
    squares = squares + (inside ? centred * centred : 0.0);
  }
  const double scale =
      1 / sqrt(SumOverBlock<kNormThreads>(squares) / cols + static_cast<double>(a.epsilon));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = threadIdx.x + i * kNormThreads;
    if (col < cols) {
      const double normal =
          (static_cast<double>(x[i]) - mean) * scale * static_cast<double>(weight[i]);
      const double shift = a.bias != nullptr ? static_cast<double>(a.bias[col]) : 0.0;
      Put(a.out, row, col, static_cast<float>(normal + shift));
    }
  }
}

// The columns of a row [q | k | v] that a thread block has: those of a norm, or v.
struct NormPart {
  uint32_t first;
  uint32_t cols;
  const float* weight;  // Null: v, which has no norm.
};

__device__ inline NormPart PartOf(const NormHeadsArguments& a) {
  const uint32_t q_norms = a.whole ? 1 : a.query_heads;
  const uint32_t norms = q_norms + (a.whole ? 1 : a.kv_heads);
  const uint32_t norm = blockIdx.y;
  if (norm == norms) {
    const uint32_t first = (a.query_heads + a.kv_heads) * a.head_dim;
    return {first, a.shape.cols - first, nullptr};
  }
  const bool is_q = norm < q_norms;
  const float* const weight = is_q ? a.q_weight : a.k_weight;
  if (a.whole) {
    return {is_q ? 0 : a.query_heads * a.head_dim, (is_q ? a.query_heads : a.kv_heads) * a.head_dim,
            weight};
  }
  return {norm * a.head_dim, a.head_dim, weight};
}

// What elements of the part are multiplied by, before their weights. The whole thread block.
__device__ inline double ScaleOf(const NormPart& part, const float* x, float epsilon) {
  double squares = 0;
  for (uint32_t i = threadIdx.x; i < part.cols; i += kThreads) {
    squares =
        squares + static_cast<double>(x[part.first + i]) * static_cast<double>(x[part.first + i]);
  }
  return 1 / sqrt(SumOverBlock(squares) / part.cols + static_cast<double>(epsilon));
}

// Element i of the part.
__device__ inline float Normal(const NormPart& part, const float* x, double scale, uint32_t i) {
  return static_cast<float>(static_cast<double>(x[part.first + i]) * scale *
                            static_cast<double>(part.weight[i]));
}

// A block of threads to a norm, and one more to v.
__global__ void NormHeadsKernel(const NormHeadsArguments a) {
  const float* x = a.x.data + size_t{blockIdx.x} * a.x.stride;
  float* out = a.out + size_t{blockIdx.x} * a.out_stride;
  const NormPart part = PartOf(a);
  if (part.weight == nullptr) {
    for (uint32_t i = threadIdx.x; i < part.cols; i += kThreads) {
      out[part.first + i] = x[part.first + i];
    }
    return;
  }
  const double scale = ScaleOf(part, x, a.epsilon);
  for (uint32_t i = threadIdx.x; i < part.cols; i += kThreads) {
    out[part.first + i] = Normal(part, x, scale, i);
  }
}

// How an element of a head turns.
struct Turn {
  bool turns;
  bool second;        // It is the second one of its pair.
  uint32_t pair;      // Number of the pair in the head.
  uint32_t distance;  // To the other one.
};

__device__ inline Turn TurnOf(const RopeArguments& a, uint32_t col) {
  const uint32_t element = col % a.head_dim;
  const uint32_t half = a.rotary_dim / 2;
  const bool turns = col < a.shape.cols && col < a.heads * a.head_dim && element < a.rotary_dim;
  return {turns, a.interleaved ? element % 2 != 0 : element >= half,
          a.interleaved ? element / 2 : (turns ? element % half : 0), a.interleaved ? 1 : half};
}

// Cosines and sines of a position.
struct Angles {
  double cosines[kRotaryMax / 2];
  double sines[kRotaryMax / 2];
};

// One angle serves all heads. The angle is the f32 product; its sine and cosine are exact to f32.
__device__ inline void FillAngles(const RopeArguments& a, uint32_t position, Angles& angles) {
  const uint32_t half = a.rotary_dim / 2;
  for (uint32_t i = threadIdx.x; i < 2 * half; i += kThreads) {
    const uint32_t pair = i < half ? i : i - half;
    const auto angle = static_cast<double>(static_cast<float>(position) * a.frequencies[pair]);
    if (i < half) {
      angles.cosines[pair] = cos(angle) * static_cast<double>(a.magnitude);
    } else {
      angles.sines[pair] = sin(angle) * static_cast<double>(a.magnitude);
    }
  }
}

__device__ inline float Rotated(const Turn& turn, const Angles& angles, float mine, float other) {
  if (!turn.turns) {
    return mine;
  }
  const double along = static_cast<double>(mine) * angles.cosines[turn.pair];
  const double across = static_cast<double>(other) * angles.sines[turn.pair];
  return static_cast<float>(turn.second ? along + across : along - across);
}

// Where a row goes, and the slot of its k and v.
struct RowPlace {
  uint16_t* out;
  uint32_t slot;
};

__device__ inline RowPlace PlaceOf(const RopeArguments& a, size_t row) {
  return {a.out + row * a.out_stride, a.store.slots != nullptr ? a.store.slots[row] : kNoSlot};
}

__device__ inline void PutQkv(const RopeArguments& a, const RowPlace& place, uint32_t col,
                              float value) {
  const uint16_t bits = RoundToBFloat16(value);
  place.out[col] = bits;
  const uint32_t width = a.store.kv_heads * a.head_dim;
  if (place.slot == kNoSlot || col + 2 * width < a.shape.cols) {
    return;
  }
  const uint32_t of_both = col + 2 * width - a.shape.cols;
  const bool is_v = of_both >= width;
  const uint32_t of_plane = is_v ? of_both - width : of_both;
  uint16_t* const plane = is_v ? a.store.v : a.store.k;
  plane[of_plane / a.head_dim * a.store.head_stride + size_t{place.slot} * a.head_dim +
        of_plane % a.head_dim] = bits;
}

// A thread block takes a piece of a row, so that few rows have many; each makes the angles anew.
__global__ void RopeKernel(const RopeArguments a) {
  __shared__ Angles angles;
  const size_t row = blockIdx.x;
  const float* const x = a.x.data + row * a.x.stride;
  const uint32_t first = blockIdx.y * kPiece + threadIdx.x;
  float mine[kEach];
  float other[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = first + i * kThreads;
    const Turn turn = TurnOf(a, col);
    mine[i] = col < a.shape.cols ? x[col] : 0.0f;
    other[i] = turn.turns ? x[turn.second ? col - turn.distance : col + turn.distance] : 0.0f;
  }
  const RowPlace place = PlaceOf(a, row);
  FillAngles(a, a.positions[row], angles);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = first + i * kThreads;
    if (col < a.shape.cols) {
      PutQkv(a, place, col, Rotated(TurnOf(a, col), angles, mine[i], other[i]));
    }
  }
}

// Blocks as those of NormHeadsKernel, whose sums these are. The other one of a pair is made anew.
__global__ void NormRopeKernel(const NormHeadsArguments norms, const RopeArguments a) {
  __shared__ Angles angles;
  const size_t row = blockIdx.x;
  const float* const x = norms.x.data + row * norms.x.stride;
  const NormPart part = PartOf(norms);
  const RowPlace place = PlaceOf(a, row);
  FillAngles(a, a.positions[row], angles);
  const double scale = part.weight != nullptr ? ScaleOf(part, x, norms.epsilon) : 1.0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < part.cols; i += kThreads) {
    const uint32_t col = part.first + i;
    const auto value_of = [&](uint32_t at) {
      return part.weight != nullptr ? Normal(part, x, scale, at) : x[part.first + at];
    };
    const Turn turn = TurnOf(a, col);
    const float other =
        turn.turns ? value_of(turn.second ? i - turn.distance : i + turn.distance) : 0.0f;
    PutQkv(a, place, col, Rotated(turn, angles, value_of(i), other));
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

// out[row, col] = value(row, col) for this thread's columns; the grid is Pieces(). All loads are
// before the first store, past which the compiler may not move them.
template <typename Value, typename Store>
__device__ inline void ForEachColumn(uint32_t cols, const Value& value, const Store& store) {
  const size_t row = blockIdx.x;
  const uint32_t first = blockIdx.y * kPiece + threadIdx.x;
  float made[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = first + i * kThreads;
    made[i] = col < cols ? value(row, col) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t col = first + i * kThreads;
    if (col < cols) {
      store(row, col, made[i]);
    }
  }
}

// With outputs as RowsOut has them.
template <typename Value>
__device__ inline void ForEachColumn(uint32_t cols, const RowsOut& out, const Value& value) {
  ForEachColumn(cols, value,
                [&](size_t row, uint32_t col, float made) { Put(out, row, col, made); });
}

__global__ void ActivateKernel(const ActivateArguments a) {
  ForEachColumn(a.shape.cols, a.out, [&](size_t row, uint32_t col) {
    const float* x = a.x.data + row * a.x.stride;
    const float up = a.gated ? x[a.shape.cols + col] : 0.0f;
    const float activated = Activated(a.activation, x[col]);
    return a.gated ? activated * UpOf(a.activation, up) : activated;
  });
}

__global__ void AddKernel(const AddArguments a) {
  ForEachColumn(
      a.shape.cols,
      [&](size_t row, uint32_t col) {
        return a.a.data[row * a.a.stride + col] + a.b.data[row * a.b.stride + col];
      },
      [&](size_t row, uint32_t col, float made) { a.out[row * a.out_stride + col] = made; });
}

__global__ void ScaleKernel(const ScaleArguments a) {
  ForEachColumn(a.shape.cols, a.out, [&](size_t row, uint32_t col) {
    const float scaled = a.factor * a.x.data[row * a.x.stride + col];
    return a.soft_cap == 0.0f ? scaled : a.soft_cap * tanhf(scaled / a.soft_cap);
  });
}

__global__ void ConvertKernel(const ConvertArguments a) {
  ForEachColumn(a.shape.cols, a.out,
                [&](size_t row, uint32_t col) { return LowBFloat16(a.x[row * a.x_stride + col]); });
}

__global__ void EmbedKernel(const EmbedArguments a) {
  ForEachColumn(
      a.shape.cols,
      [&](size_t row, uint32_t col) {
        const size_t place = size_t{a.ids[row]} * a.shape.cols + col;
        return a.type == Element::kF32 ? static_cast<const float*>(a.table)[place]
                                       : LowBFloat16(static_cast<const uint16_t*>(a.table)[place]);
      },
      [&](size_t row, uint32_t col, float made) { a.out[row * a.out_stride + col] = made; });
}

// A whole row to each thread block, with as few registers as it needs.
template <int kEachMax>
cudaError_t LaunchNorm(const NormArguments& a, cudaStream_t stream) {
  if constexpr (kEachMax > 2) {
    if (a.shape.cols <= kEachMax / 2 * uint32_t{kNormThreads}) {
      return LaunchNorm<kEachMax / 2>(a, stream);
    }
  }
  return Launch(NormKernel<kEachMax>,
                {.grid = dim3(a.shape.rows),
                 .block = dim3(kNormThreads),
                 .shared_bytes = 0,
                 .stream = stream},
                a);
}

LaunchShape Pieces(const RowsShape& shape, cudaStream_t stream) {
  return {.grid = dim3(shape.rows, (shape.cols + kPiece - 1) / kPiece),
          .block = dim3(kThreads),
          .shared_bytes = 0,
          .stream = stream};
}

// A thread block to a norm, and one more to v.
LaunchShape NormParts(const NormHeadsArguments& a, cudaStream_t stream) {
  const uint32_t norms = a.whole ? 2 : a.query_heads + a.kv_heads;
  return {.grid = dim3(a.shape.rows, norms + 1),
          .block = dim3(kThreads),
          .shared_bytes = 0,
          .stream = stream};
}

// A grid of no blocks is an error of CUDA's; no rows are none of ours.
bool Empty(const RowsShape& shape) { return shape.rows == 0 || shape.cols == 0; }

}  // namespace

cudaError_t LoadRowKernels(KernelLimits& limits) {
  return LoadEach(limits, NormKernel<2>, NormKernel<4>, NormKernel<8>, NormKernel<16>,
                  NormKernel<kNormEachMax>, NormHeadsKernel, RopeKernel, NormRopeKernel,
                  ActivateKernel, AddKernel, ScaleKernel, ConvertKernel, EmbedKernel);
}

cudaError_t NormRows(const NormArguments& a, cudaStream_t stream) {
  if (a.shape.cols > kNormEachMax * uint32_t{kNormThreads}) {
    return cudaErrorInvalidValue;
  }
  return Empty(a.shape) ? cudaSuccess : LaunchNorm<kNormEachMax>(a, stream);
}

cudaError_t NormHeadsRows(const NormHeadsArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(NormHeadsKernel, NormParts(a, stream), a);
}

cudaError_t NormRopeRows(const NormHeadsArguments& norms, const RopeArguments& rope,
                         cudaStream_t stream) {
  if (rope.rotary_dim > kRotaryMax) {
    return cudaErrorInvalidValue;
  }
  return Empty(norms.shape) ? cudaSuccess
                            : Launch(NormRopeKernel, NormParts(norms, stream), norms, rope);
}

cudaError_t ScaleRows(const ScaleArguments& a, cudaStream_t stream) {
  return Empty(a.shape) ? cudaSuccess : Launch(ScaleKernel, Pieces(a.shape, stream), a);
}

cudaError_t RopeRows(const RopeArguments& a, cudaStream_t stream) {
  if (a.rotary_dim > kRotaryMax) {
    return cudaErrorInvalidValue;
  }
  return Empty(a.shape) ? cudaSuccess : Launch(RopeKernel, Pieces(a.shape, stream), a);
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

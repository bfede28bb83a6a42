// SPDX-License-Identifier: Apache-2.0
//
// Sampling, one thread block to a row of logits.
//
// Adjusted logits are those of kernels/sampling.cc to the bit. Candidates are ordered by a 64-bit
// key of logit and id, in which no two are equal, so that top-k and top-p are one search each for
// the key of the last that stays: eight passes over the row, a byte of the key at a time. Weights
// are integers, 2^44 for the likeliest token: their sums do not depend on the order, so threads may
// add as they come and every run gives the same token.

#include <cuda_runtime.h>

#include "kernels/cuda/canonical.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sampling_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kDigits = 256;
constexpr uint32_t kInPrompt = 0x80000000u;
constexpr double kUnitWeight = 17592186044416.0;  // 2^44; sums of 2^19 weights fit into 63 bits.

using Word = unsigned long long;  // What CUDA's atomics take.

// exp(x) for x <= 0, the operations of kernels/sampling.cc.
__device__ inline double ExpOf(double x) {
  constexpr double kShift = 0x1.8p52;
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * 1.4426950408889634 + kShift;
  const double n = shifted - kShift;
  const double r = (clamped - n * 0x1.62e42fefa3800p-1) - n * 0x1.ef35793c76730p-45;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const auto bits = static_cast<uint64_t>(__double_as_longlong(shifted));
  const double power = __longlong_as_double(static_cast<long long>((bits + 1023) << 52));
  return x < -708.0 ? 0.0 : p * power;
}

// Philox4x32-10 of common/philox.h; returns a double in [0, 1) with 53 random bits.
__device__ inline double UniformOf(uint64_t seed, uint64_t position) {
  uint32_t counter[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0,
                         0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    const uint32_t next0 = static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0];
    const uint32_t next2 = static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1];
    counter[0] = next0;
    counter[1] = static_cast<uint32_t>(p1);
    counter[2] = next2;
    counter[3] = static_cast<uint32_t>(p0);
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  const uint64_t word = uint64_t{counter[1]} << 32 | counter[0];
  return static_cast<double>(word >> 11) * 0x1.0p-53;
}

// Larger for better candidates: by logit, NaN as -inf and -0 as +0, then by the smaller id.
__device__ inline Word KeyOf(float logit, uint32_t id) {
  const float value = logit != logit ? kMinusInfinity : logit + 0.0f;
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return Word{ordered} << 32 | static_cast<uint32_t>(~id);
}

struct RowState {
  const float* logits;
  uint32_t count;
  float largest;
  double temperature;
};

__device__ inline double DoubleWeight(const RowState& row, float logit) {
  if (logit == row.largest) {
    return 1.0;
  }
  const double x =
      (static_cast<double>(logit) - static_cast<double>(row.largest)) / row.temperature;
  return x < 0 ? ExpOf(x) : 0.0;
}

__device__ inline Word WeightOf(const RowState& row, float logit) {
  return static_cast<Word>(DoubleWeight(row, logit) * kUnitWeight + 0.5);
}

// The largest key of the row, in every thread.
__device__ inline Word BestKey(const RowState& row, Word* shared) {
  Word best = 0;
  for (uint32_t id = threadIdx.x; id < row.count; id += kThreads) {
    const Word key = KeyOf(row.logits[id], id);
    best = key > best ? key : best;
  }
  shared[threadIdx.x] = best;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half && shared[threadIdx.x + half] > shared[threadIdx.x]) {
      shared[threadIdx.x] = shared[threadIdx.x + half];
    }
    __syncthreads();
  }
  best = shared[0];
  __syncthreads();
  return best;
}

// The smallest key that stays when candidates of key >= `floor` are kept, best first, until
// `wanted` is reached: of their number, or, `by_weight`, of their weight. At least one stays.
__device__ inline Word LastKey(const RowState& row, Word floor, Word wanted, bool by_weight,
                               Word* shared) {
  __shared__ Word chosen;
  __shared__ Word left;
  Word prefix = 0;
  Word missing = wanted;
  for (int shift = 56; shift >= 0; shift -= 8) {
    shared[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t id = threadIdx.x; id < row.count; id += kThreads) {
      const Word key = KeyOf(row.logits[id], id);
      if (key >= floor && (shift == 56 || key >> (shift + 8) == prefix)) {
        atomicAdd(&shared[key >> shift & (kDigits - 1)],
                  by_weight ? WeightOf(row, row.logits[id]) : Word{1});
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      // From the best digit down to that in which `missing` is reached; the last one with something
      // if it never is.
      Word passed = 0;
      Word digit = 0;
      Word before = 0;
      for (int d = kDigits - 1; d >= 0; --d) {
        if (shared[d] != 0) {
          digit = static_cast<Word>(d);
          before = passed;
          passed += shared[d];
          if (passed >= missing) {
            break;
          }
        }
      }
      chosen = digit;
      left = missing > before ? missing - before : 1;
    }
    __syncthreads();
    prefix = prefix << 8 | chosen;
    missing = left;
    __syncthreads();
  }
  return prefix;
}

// Bias and penalties; returns the row to sample from. The order is that of the reference: biases
// one after the other, then repetition, then presence and frequency.
__device__ inline const float* Adjust(const SampleArguments& a, const SampleRow& row,
                                      const float* logits) {
  const bool repeats = row.repetition_penalty != 1.0f;
  const bool present = row.presence_penalty != 0.0f || row.frequency_penalty != 0.0f;
  if (row.bias_count == 0 && !repeats && !present) {
    return logits;
  }
  float* adjusted = a.adjusted + size_t{blockIdx.x} * a.vocabulary;
  uint32_t* counts = a.counts + size_t{blockIdx.x} * a.vocabulary;
  for (uint32_t id = threadIdx.x; id < a.vocabulary; id += kThreads) {
    adjusted[id] = logits[id];
  }
  const int32_t* tokens = a.tokens + row.tokens;
  for (uint32_t i = threadIdx.x; i < row.prompt_tokens + row.output_tokens; i += kThreads) {
    const auto id = static_cast<uint32_t>(tokens[i]);
    if (id < a.vocabulary) {
      if (i < row.prompt_tokens) {
        atomicOr(&counts[id], kInPrompt);
      } else {
        atomicAdd(&counts[id], 1u);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < row.bias_count; ++i) {
      const TokenBias bias = a.biases[row.biases + i];
      if (static_cast<uint32_t>(bias.token) < a.vocabulary) {
        adjusted[bias.token] = adjusted[bias.token] + bias.bias;
      }
    }
  }
  __syncthreads();
  for (uint32_t id = threadIdx.x; id < a.vocabulary; id += kThreads) {
    const uint32_t seen = counts[id];
    if (seen == 0) {
      continue;
    }
    counts[id] = 0;
    float logit = adjusted[id];
    if (repeats) {
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    const uint32_t in_output = seen & ~kInPrompt;
    if (present && in_output != 0) {
      logit =
          logit - (row.presence_penalty + row.frequency_penalty * static_cast<float>(in_output));
    }
    adjusted[id] = logit;
  }
  __syncthreads();
  return adjusted;
}

// The weight with which a candidate is drawn.
__device__ inline Word DrawWeight(const RowState& row, uint32_t id, Word last, double min_p) {
  const float logit = row.logits[id];
  if (KeyOf(logit, id) < last) {
    return 0;
  }
  const double weight = DoubleWeight(row, logit);
  return weight < min_p ? 0 : static_cast<Word>(weight * kUnitWeight + 0.5);
}

// Draws among the candidates of key >= `last`, walked by id. Each thread sums a run of ids.
__device__ inline int32_t Draw(const RowState& row, Word last, double min_p, double uniform,
                               Word* shared) {
  __shared__ int32_t token;
  const uint32_t run = (row.count + kThreads - 1) / kThreads;
  const uint32_t first = threadIdx.x * run < row.count ? threadIdx.x * run : row.count;
  const uint32_t end = first + run < row.count ? first + run : row.count;
  Word mine = 0;
  for (uint32_t id = first; id < end; ++id) {
    mine += DrawWeight(row, id, last, min_p);
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  Word before = 0;
  Word total = 0;
  for (unsigned i = 0; i < kThreads; ++i) {
    before += i < threadIdx.x ? shared[i] : 0;
    total += shared[i];
  }
  // uniform < 1, and total < 2^63 rounds to at most itself and 2^10: the last run catches that.
  Word target = static_cast<Word>(uniform * static_cast<double>(total));
  target = target < total ? target : total - 1;
  if (before <= target && target < before + mine) {  // One thread.
    Word sum = before;
    for (uint32_t id = first; id < end; ++id) {
      sum += DrawWeight(row, id, last, min_p);
      if (sum > target) {
        token = static_cast<int32_t>(id);
        break;
      }
    }
  }
  __syncthreads();
  return token;
}

__device__ inline int32_t DrawToken(const RowState& row, const SampleRow& parameters,
                                    Word* shared) {
  Word last = 0;
  if (parameters.top_k != 0 && parameters.top_k < row.count) {
    last = LastKey(row, 0, parameters.top_k, false, shared);
  }
  if (parameters.top_p < 1.0f) {
    Word mine = 0;
    for (uint32_t id = threadIdx.x; id < row.count; id += kThreads) {
      mine += DrawWeight(row, id, last, 0.0);
    }
    shared[threadIdx.x] = mine;
    __syncthreads();
    Word total = 0;
    for (unsigned i = 0; i < kThreads; ++i) {
      total += shared[i];
    }
    __syncthreads();
    const double share = static_cast<double>(parameters.top_p) * static_cast<double>(total);
    const auto rounded = static_cast<Word>(ceil(share));
    last = LastKey(row, last, rounded > 0 ? rounded : 1, true, shared);
  }
  return Draw(row, last, static_cast<double>(parameters.min_p),
              UniformOf(parameters.seed, parameters.position), shared);
}

__global__ void SampleKernel(const SampleArguments a) {
  __shared__ Word shared[kDigits];
  static_assert(kDigits == kThreads);
  const SampleRow parameters = a.rows[blockIdx.x];
  RowState row = {.logits = Adjust(a, parameters, a.logits + size_t{blockIdx.x} * a.stride),
                  .count = a.vocabulary,
                  .largest = 0,
                  .temperature = static_cast<double>(parameters.temperature)};
  const Word best = BestKey(row, shared);
  const auto id = static_cast<uint32_t>(~best);
  row.largest = row.logits[id];
  // All of them -inf or NaN: token 0, as the reference has it.
  const bool nothing = best >> 32 == KeyOf(kMinusInfinity, 0) >> 32;
  int32_t token = nothing ? 0 : static_cast<int32_t>(id);
  if (!nothing && parameters.temperature != 0.0f) {
    token = DrawToken(row, parameters, shared);
  }
  if (threadIdx.x == 0) {
    a.results[blockIdx.x] = token;
  }
}

}  // namespace

cudaError_t LoadSampling(KernelLimits& limits) { return LoadEach(limits, SampleKernel); }

cudaError_t SampleRows(const SampleArguments& arguments, uint32_t rows, cudaStream_t stream) {
  return Launch(SampleKernel,
                {.grid = dim3(rows), .block = dim3(kThreads), .shared_bytes = 0, .stream = stream},
                arguments);
}

}  // namespace lamina::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
//
// The kernel of sampling as sampling.cc calls it.

#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/kernel_limits.h"

namespace lamina::kernels::cuda {

// One row's parameters; tokens and biases are ranges of common arrays.
struct SampleRow {
  float temperature = 0;
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  uint32_t tokens = 0;  // First of the prompt's tokens, which the output's follow.
  uint32_t prompt_tokens = 0;
  uint32_t output_tokens = 0;
  uint32_t biases = 0;  // First bias.
  uint32_t bias_count = 0;
  uint64_t seed = 0;
  uint64_t position = 0;
};

struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

// Shapes: logits   [rows, vocabulary] f32, `stride` elements between rows; read only
//         adjusted [rows, vocabulary] f32, working memory
//         counts   [rows, vocabulary], working memory; all zero before and after
//         results  [rows]
struct SampleArguments {
  uint32_t vocabulary = 0;
  const float* logits = nullptr;
  size_t stride = 0;
  const SampleRow* rows = nullptr;
  const int32_t* tokens = nullptr;
  const TokenBias* biases = nullptr;
  float* adjusted = nullptr;
  uint32_t* counts = nullptr;
  int32_t* results = nullptr;
};

cudaError_t SampleRows(const SampleArguments& arguments, uint32_t rows, cudaStream_t stream);

// For LoadKernels(): all of these.
cudaError_t LoadSampling(KernelLimits& limits);

}  // namespace lamina::kernels::cuda

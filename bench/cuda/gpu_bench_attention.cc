// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/cuda/empty_launch.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention.h"

namespace lamina::bench {
namespace {

using kernels::cuda::ArenaKind;
using kernels::cuda::CudaAttention;
using kernels::cuda::CudaAttentionOptions;
using kernels::cuda::MemoryArena;
using kernels::cuda::StepItem;

// What a decode step reads.
struct Load {
  uint32_t rows = 0;
  uint32_t context = 0;
};
constexpr Load kFullLoad = {.rows = 64, .context = 4096};
// From little to much, at group kCurveGroup: where a launch bounds it, and where reading does.
constexpr Load kCurve[] = {{1, 256},   {1, 1024},  {1, 4096},   {4, 1024},  {4, 4096},
                           {16, 1024}, {16, 4096}, {16, 16384}, {64, 1024}, {64, 2048}};
constexpr uint32_t kCurveGroup = 4;
// The last `tokens` of a prompt.
struct Chunk {
  uint32_t tokens = 0;
  uint32_t context = 0;
};
constexpr Chunk kChunk = {.tokens = 512, .context = 4096};
// On tensor cores also a first chunk, a whole prompt, a short chunk, and one of a long prompt.
constexpr Chunk kChunks[] = {{512, 512}, {2048, 2048}, {128, 4096}, {512, 32768}};
constexpr std::pair<AttentionArithmetic, const char*> kKernels[] = {
    {AttentionArithmetic::kCanonical, "canonical"}, {AttentionArithmetic::kTensor, "tensor"}};

// Loads of a small model, SmolLM2-135M, whose layers a launch bounds.
constexpr Load kSmall[] = {{1, 1024}, {16, 1024}, {64, 1024}};

AttentionDescriptor Layer(uint32_t kv_heads, uint32_t group, uint32_t head_dim) {
  return {.query_heads = kv_heads * group,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim))};
}
// LLaMA-3-8B's heads, but for the group.
AttentionDescriptor Layer(uint32_t group) { return Layer(8, group, 128); }

// Milliseconds of one layer, in which each of `sequences` has `context` tokens, an extent each, of
// which the last `queries` attend.
absl::StatusOr<double> MeasureLayer(const GpuBench& bench, const AttentionDescriptor& d,
                                    AttentionArithmetic arithmetic, uint32_t sequences,
                                    uint32_t context, uint32_t queries) {
  const size_t head_stride = size_t{sequences} * context * d.head_dim;
  const size_t plane = d.kv_heads * head_stride;
  const uint32_t rows = sequences * queries;
  const CudaAttentionOptions options = {.descriptor = d,
                                        .arithmetic = arithmetic,
                                        .query_rows_max = rows,
                                        .partials_max = rows * (context / kernels::kBlockTokens),
                                        .extents_max = sequences};
  const size_t row_elements = size_t{rows} * d.q_width();
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena arena,
      MemoryArena::Create(ArenaKind::kDevice,
                          CudaAttention::DeviceBytes(options) +
                              (2 * plane + 2 * row_elements) * sizeof(BFloat16) + 4096));
  LAMINA_ASSIGN_OR_RETURN(
      MemoryArena pinned,
      MemoryArena::Create(ArenaKind::kPinnedHost, CudaAttention::PinnedBytes(options)));
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const k, arena.Take<BFloat16>(plane));
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const v, arena.Take<BFloat16>(plane));
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const q, arena.Take<BFloat16>(row_elements));
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const out, arena.Take<BFloat16>(row_elements));
  for (BFloat16* const place : {k, v}) {
    LAMINA_RETURN_IF_ERROR(FillRandom(bench, place, plane));
  }
  LAMINA_RETURN_IF_ERROR(FillRandom(bench, q, row_elements));
  LAMINA_ASSIGN_OR_RETURN(const auto attention, CudaAttention::Create(options, bench.device, arena,
                                                                      pinned, bench.stream));
  std::vector<Extent> extents;
  for (uint32_t i = 0; i < sequences; ++i) {
    extents.push_back({.first_slot = i * context, .tokens = context});
  }
  std::vector<StepItem> items;
  for (const Extent& extent : extents) {
    items.push_back(
        {.extents = {&extent, 1}, .first_position = context - queries, .query_tokens = queries});
  }
  LAMINA_RETURN_IF_ERROR(attention->LoadStep(items));
  return Milliseconds(bench, 10, [&] {
    return attention->Attend(d, {.k = k, .v = v, .head_stride = head_stride}, q, d.q_width(), out,
                             d.q_width());
  });
}

// One decode step of one layer.
absl::StatusOr<std::string> MeasureDecode(const GpuBench& bench, const AttentionDescriptor& d,
                                          AttentionArithmetic arithmetic, const char* name,
                                          const Load& load, double copy_gb_per_s) {
  LAMINA_ASSIGN_OR_RETURN(const double milliseconds,
                          MeasureLayer(bench, d, arithmetic, load.rows, load.context, 1));
  const double bytes = 2.0 * load.rows * load.context * d.kv_width() * sizeof(BFloat16);
  const double gb_per_s = bytes / milliseconds / 1e6;
  return absl::StrFormat(
      "{\"kernel\": \"%s\", \"kv_heads\": %d, \"group\": %d, \"head_dim\": %d, \"rows\": %d, "
      "\"context\": %d, \"ms\": %.4f, \"gb_per_s\": %.1f, \"share_of_copy\": %.4f}",
      name, d.kv_heads, d.group(), d.head_dim, load.rows, load.context, milliseconds, gb_per_s,
      gb_per_s / copy_gb_per_s);
}

// One decode step of one layer of the small model, and as many empty launches of one thread block
// for each unit of the former.
absl::StatusOr<std::string> MeasureSmall(const GpuBench& bench, AttentionArithmetic arithmetic,
                                         const char* name, const Load& load) {
  const AttentionDescriptor d = Layer(3, 3, 64);
  LAMINA_ASSIGN_OR_RETURN(const double milliseconds,
                          MeasureLayer(bench, d, arithmetic, load.rows, load.context, 1));
  const uint32_t units = load.rows * (load.context / kernels::kBlockTokens);
  LAMINA_ASSIGN_OR_RETURN(const double empty, Milliseconds(bench, 10, [&] {
                            LAMINA_RETURN_IF_ERROR(LaunchNothing(units, d.kv_heads, bench.stream));
                            return LaunchNothing(load.rows, d.query_heads, bench.stream);
                          }));
  return absl::StrFormat(
      "{\"kernel\": \"%s\", \"kv_heads\": %d, \"group\": %d, \"head_dim\": %d, \"rows\": %d, "
      "\"context\": %d, \"ms\": %.4f, \"empty_ms\": %.4f}",
      name, d.kv_heads, d.group(), d.head_dim, load.rows, load.context, milliseconds, empty);
}

// The last chunk of one prompt in one layer. Products: two flops for each of Q K and P V.
absl::StatusOr<std::string> MeasurePrefill(const GpuBench& bench, const AttentionDescriptor& d,
                                           AttentionArithmetic arithmetic, const char* name,
                                           const Chunk& chunk) {
  LAMINA_ASSIGN_OR_RETURN(const double milliseconds,
                          MeasureLayer(bench, d, arithmetic, 1, chunk.context, chunk.tokens));
  const double pairs = chunk.tokens * (chunk.context - (chunk.tokens - 1) / 2.0);
  return absl::StrFormat(
      "{\"kernel\": \"%s\", \"kv_heads\": %d, \"group\": %d, \"head_dim\": %d, \"tokens\": %d, "
      "\"context\": %d, \"ms\": %.4f, \"tflop_per_s\": %.2f}",
      name, d.kv_heads, d.group(), d.head_dim, chunk.tokens, chunk.context, milliseconds,
      4 * pairs * d.q_width() / milliseconds / 1e9);
}

}  // namespace

absl::StatusOr<std::string> BenchAttention(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(const double copy, CopyBandwidth(bench));
  std::vector<std::string> decode;
  std::vector<std::string> small;
  std::vector<std::string> prefill;
  for (const auto& [arithmetic, name] : kKernels) {
    for (const uint32_t group : {1, 4, 8, 16}) {
      LAMINA_ASSIGN_OR_RETURN(
          std::string shape, MeasureDecode(bench, Layer(group), arithmetic, name, kFullLoad, copy));
      decode.push_back(std::move(shape));
    }
    for (const Load& load : kCurve) {
      LAMINA_ASSIGN_OR_RETURN(std::string shape, MeasureDecode(bench, Layer(kCurveGroup),
                                                               arithmetic, name, load, copy));
      decode.push_back(std::move(shape));
    }
    for (const Load& load : kSmall) {
      LAMINA_ASSIGN_OR_RETURN(std::string shape, MeasureSmall(bench, arithmetic, name, load));
      small.push_back(std::move(shape));
    }
    LAMINA_ASSIGN_OR_RETURN(std::string shape,
                            MeasurePrefill(bench, Layer(kCurveGroup), arithmetic, name, kChunk));
    prefill.push_back(std::move(shape));
  }
  const auto& [tensor, tensor_name] = kKernels[1];
  for (const Chunk& chunk : kChunks) {
    LAMINA_ASSIGN_OR_RETURN(std::string shape,
                            MeasurePrefill(bench, Layer(kCurveGroup), tensor, tensor_name, chunk));
    prefill.push_back(std::move(shape));
  }
  for (const auto& [layer, chunk] :
       {std::pair(Layer(1), kChunk), std::pair(Layer(3, 3, 64), kChunk)}) {
    LAMINA_ASSIGN_OR_RETURN(std::string shape,
                            MeasurePrefill(bench, layer, tensor, tensor_name, chunk));
    prefill.push_back(std::move(shape));
  }
  return absl::StrFormat(
      "{\"copy_gb_per_s\": %.1f, \"shapes\": [%s], \"small\": [%s], \"prefill\": [%s]}", copy,
      absl::StrJoin(decode, ", "), absl::StrJoin(small, ", "), absl::StrJoin(prefill, ", "));
}

}  // namespace lamina::bench

// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/attention.h"

namespace lamina::bench {
namespace {

using kernels::cuda::ArenaKind;
using kernels::cuda::CudaAttention;
using kernels::cuda::MemoryArena;
using kernels::cuda::StepItem;

constexpr uint32_t kRows = 64;
constexpr uint32_t kContext = 4096;

// One decode step of one layer: kRows sequences of kContext tokens, an extent each.
absl::StatusOr<std::string> MeasureGroup(const GpuBench& bench, uint32_t kv_heads, uint32_t group,
                                         double copy_gb_per_s) {
  const AttentionDescriptor d = {.query_heads = kv_heads * group,
                                 .kv_heads = kv_heads,
                                 .head_dim = 128,
                                 .scale = 0.088388348f};
  const size_t head_stride = size_t{kRows} * kContext * d.head_dim;
  const size_t plane = kv_heads * head_stride;
  const kernels::cuda::CudaAttentionOptions options = {
      .descriptor = d,
      .query_rows_max = kRows,
      .partials_max = kRows * (kContext / kernels::kBlockTokens),
      .extents_max = kRows};
  const size_t row_elements = size_t{kRows} * d.q_width();
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
  // 0x3c3c is 0.0115: a flat softmax. The time does not depend on the values.
  for (BFloat16* const place : {k, v}) {
    LAMINA_RETURN_IF_ERROR(
        kernels::cuda::FillAsync(place, 0x3c, plane * sizeof(BFloat16), bench.stream));
  }
  LAMINA_RETURN_IF_ERROR(
      kernels::cuda::FillAsync(q, 0x3c, row_elements * sizeof(BFloat16), bench.stream));
  LAMINA_ASSIGN_OR_RETURN(const auto attention, CudaAttention::Create(options, bench.device, arena,
                                                                      pinned, bench.stream));
  std::vector<Extent> extents;
  for (uint32_t row = 0; row < kRows; ++row) {
    extents.push_back({.first_slot = row * kContext, .tokens = kContext});
  }
  std::vector<StepItem> items;
  for (const Extent& extent : extents) {
    items.push_back({.extents = {&extent, 1}, .first_position = kContext - 1});
  }
  LAMINA_RETURN_IF_ERROR(attention->LoadStep(items));
  LAMINA_ASSIGN_OR_RETURN(const double milliseconds, Milliseconds(bench, 10, [&] {
                            return attention->Attend(d,
                                                     {.k = k, .v = v, .head_stride = head_stride},
                                                     q, d.q_width(), out, d.q_width());
                          }));
  const double gb_per_s = 2 * static_cast<double>(plane * sizeof(BFloat16)) / milliseconds / 1e6;
  return absl::StrFormat(
      "{\"kv_heads\": %d, \"group\": %d, \"head_dim\": %d, \"rows\": %d, \"context\": %d, "
      "\"ms\": %.4f, \"gb_per_s\": %.1f, \"share_of_copy\": %.4f}",
      kv_heads, group, d.head_dim, kRows, kContext, milliseconds, gb_per_s,
      gb_per_s / copy_gb_per_s);
}

}  // namespace

absl::StatusOr<std::string> BenchAttention(const GpuBench& bench) {
  LAMINA_ASSIGN_OR_RETURN(const double copy, CopyBandwidth(bench));
  std::string shapes;
  for (const uint32_t group : {1, 4, 8}) {
    LAMINA_ASSIGN_OR_RETURN(const std::string shape, MeasureGroup(bench, 8, group, copy));
    absl::StrAppend(&shapes, shapes.empty() ? "" : ", ", shape);
  }
  return absl::StrFormat("{\"copy_gb_per_s\": %.1f, \"shapes\": [%s]}", copy, shapes);
}

}  // namespace lamina::bench

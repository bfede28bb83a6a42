// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/cuda/gpu_bench.h"
#include "common/status_macros.h"
#include "kernels/cuda/dense.h"

namespace lamina::bench {
namespace {

using kernels::cuda::ArenaKind;
using kernels::cuda::MemoryArena;

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// Products take turns over as many copies of the weights as are more than a cache holds: in a
// model, too, each layer's come from memory.
constexpr size_t kCacheBytes = size_t{256} << 20;

struct Shape {
  const char* name;
  size_t in;
  size_t out;
};
// LLaMA-3-8B.
constexpr std::array<Shape, 4> kShapes = {{{"qkv", 4096, 6144},
                                           {"attention out", 4096, 4096},
                                           {"gate up", 4096, 28672},
                                           {"down", 14336, 4096}}};

absl::Status BlasOk(cublasStatus_t status, const char* call) {
  return status == CUBLAS_STATUS_SUCCESS
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(call, ": ", cublasLtGetStatusName(status)));
}

// Times the product with cuBLASLt's own first choice for exactly these rows.
absl::StatusOr<double> FreeChoice(const GpuBench& bench, const Shape& shape, size_t rows,
                                  absl::Span<const BFloat16* const> weights, const void* x,
                                  void* out, void* workspace) {
  cublasLtHandle_t handle = nullptr;
  LAMINA_RETURN_IF_ERROR(BlasOk(cublasLtCreate(&handle), "cublasLtCreate"));
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a;
  cublasLtMatrixLayoutOpaque_t b;
  cublasLtMatrixLayoutOpaque_t d;
  cublasLtMatmulPreferenceOpaque_t preference;
  const cublasOperation_t transpose = CUBLAS_OP_T;
  const size_t workspace_bytes = kWorkspaceBytes;
  cublasLtMatmulHeuristicResult_t found;
  int count = 0;
  for (const cublasStatus_t status :
       {cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                       sizeof(transpose)),
        cublasLtMatrixLayoutInit(&a, CUDA_R_16BF, shape.in, shape.out,
                                 static_cast<int64_t>(shape.in)),
        cublasLtMatrixLayoutInit(&b, CUDA_R_16BF, shape.in, rows, static_cast<int64_t>(shape.in)),
        cublasLtMatrixLayoutInit(&d, CUDA_R_32F, shape.out, rows, static_cast<int64_t>(shape.out)),
        cublasLtMatmulPreferenceInit(&preference),
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof(workspace_bytes)),
        cublasLtMatmulAlgoGetHeuristic(handle, &product, &a, &b, &d, &d, &preference, 1, &found,
                                       &count)}) {
    LAMINA_RETURN_IF_ERROR(BlasOk(status, "describing a product"));
  }
  if (count == 0) {
    return absl::InternalError("cuBLASLt offers nothing");
  }
  const float one = 1.0f;
  const float zero = 0.0f;
  size_t turn = 0;
  auto milliseconds = Milliseconds(bench, 20, [&] {
    return BlasOk(cublasLtMatmul(handle, &product, &one, weights[turn++ % weights.size()], &a, x,
                                 &b, &zero, out, &d, out, &d, &found.algo, workspace,
                                 kWorkspaceBytes, static_cast<cudaStream_t>(bench.stream.get())),
                  "cublasLtMatmul");
  });
  cublasLtDestroy(handle);
  return milliseconds;
}

absl::StatusOr<std::string> MeasureShape(const GpuBench& bench, const Shape& shape, size_t rows) {
  LAMINA_ASSIGN_OR_RETURN(MemoryArena arena,
                          MemoryArena::Create(ArenaKind::kDevice, uint64_t{1} << 30));
  LAMINA_ASSIGN_OR_RETURN(
      const auto dense,
      kernels::cuda::MakeCudaDense({.workspace_bytes = kWorkspaceBytes}, arena, bench.stream));
  std::vector<BFloat16> weights(shape.in * shape.out);
  std::minstd_rand random(1);
  for (BFloat16& weight : weights) {
    weight = ToBFloat16(static_cast<float>(random()) * 0x1p-36f - 0x1p-6f);
  }
  std::vector<std::unique_ptr<kernels::PackedLinear>> copies;
  std::vector<const BFloat16*> raw;
  for (size_t bytes = 0; bytes < kCacheBytes; bytes += weights.size() * sizeof(BFloat16)) {
    LAMINA_ASSIGN_OR_RETURN(auto packed, dense->Pack(weights.data(), DType::kBF16, shape.out,
                                                     shape.in, absl::Span<const float>()));
    LAMINA_RETURN_IF_ERROR(dense->Prepare(*packed, rows));
    copies.push_back(std::move(packed));
    LAMINA_ASSIGN_OR_RETURN(BFloat16* const place, arena.Take<BFloat16>(weights.size()));
    LAMINA_RETURN_IF_ERROR(FillRandom(bench, place, weights.size()));
    raw.push_back(place);
  }
  LAMINA_ASSIGN_OR_RETURN(BFloat16* const x, arena.Take<BFloat16>(rows * shape.in));
  LAMINA_ASSIGN_OR_RETURN(float* const out, arena.Take<float>(rows * shape.out));
  LAMINA_ASSIGN_OR_RETURN(std::byte* const workspace, arena.Take<std::byte>(kWorkspaceBytes));
  LAMINA_RETURN_IF_ERROR(FillRandom(bench, x, rows * shape.in));
  size_t turn = 0;
  LAMINA_ASSIGN_OR_RETURN(const double ours, Milliseconds(bench, 20, [&] {
                            dense->Linear(*copies[turn++ % copies.size()],
                                          {x, rows, shape.in, shape.in, DType::kBF16}, 0,
                                          {out, rows, shape.out, shape.out});
                            return dense->Check();
                          }));
  LAMINA_ASSIGN_OR_RETURN(const double theirs,
                          FreeChoice(bench, shape, rows, raw, x, out, workspace));
  const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(shape.in) *
                      static_cast<double>(shape.out);
  return absl::StrFormat(
      "{\"layer\": \"%s\", \"rows\": %d, \"ms\": %.4f, \"cublaslt_ms\": %.4f, \"ratio\": %.4f, "
      "\"tflop_per_s\": %.1f, \"weights_gb_per_s\": %.1f}",
      shape.name, rows, ours, theirs, theirs / ours, flop / ours / 1e9,
      static_cast<double>(weights.size() * sizeof(BFloat16)) / ours / 1e6);
}

}  // namespace

absl::StatusOr<std::string> BenchLinear(const GpuBench& bench) {
  std::string shapes;
  for (const Shape& shape : kShapes) {
    for (const size_t rows : {1, 16, 64, 128, 512}) {
      LAMINA_ASSIGN_OR_RETURN(const std::string line, MeasureShape(bench, shape, rows));
      absl::StrAppend(&shapes, shapes.empty() ? "" : ", ", line);
    }
  }
  return absl::StrFormat("{\"shapes\": [%s]}", shapes);
}

}  // namespace lamina::bench

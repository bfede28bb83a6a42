// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by cuBLASLt, with one algorithm for each shape of weights and range of rows.
//
// cuBLASLt's matrices are column-major. A row-major [rows, n] is its n x rows, so with W row-major
// [out, in], out = in W^T becomes D = op(A) B: A the in x out matrix of W, transposed; B the
// in x rows matrix of the activations; D out x rows.

#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/linear_engine_internal.h"

namespace lamina::kernels::cuda {
namespace {

// Rows that the algorithms of the two ranges are chosen for.
constexpr std::array<size_t, 2> kTypicalRows = {64, 512};
constexpr int kCandidates = 32;
// What rows of activations, outputs and weights are aligned to.
constexpr uint32_t kAlignmentBytes = 16;

absl::Status BlasToStatus(cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) {
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat(call, ": ", cublasLtGetStatusName(status), ": ",
                                           cublasLtGetStatusString(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                              : absl::InternalError(message);
}

size_t RangeOf(size_t rows) { return rows <= kDecodeRows ? 0 : 1; }

// A product's description, on the stack: these calls allocate nothing.
struct Problem {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a;
  cublasLtMatrixLayoutOpaque_t b;
  cublasLtMatrixLayoutOpaque_t d;
};

struct ProblemShape {
  size_t in_features = 0;
  size_t out_features = 0;
  size_t rows = 0;
  size_t in_stride = 0;
  size_t out_stride = 0;
  const float* bias = nullptr;
};

absl::Status Describe(const ProblemShape& shape, cudaDataType_t type, Problem& problem) {
  LAMINA_RETURN_IF_ERROR(
      BlasToStatus(cublasLtMatmulDescInit(&problem.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "cublasLtMatmulDescInit"));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  LAMINA_RETURN_IF_ERROR(
      BlasToStatus(cublasLtMatmulDescSetAttribute(&problem.product, CUBLASLT_MATMUL_DESC_TRANSA,
                                                  &transpose, sizeof(transpose)),
                   "cublasLtMatmulDescSetAttribute(TRANSA)"));
  if (shape.bias != nullptr) {
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    LAMINA_RETURN_IF_ERROR(
        BlasToStatus(cublasLtMatmulDescSetAttribute(&problem.product, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                    &epilogue, sizeof(epilogue)),
                     "cublasLtMatmulDescSetAttribute(EPILOGUE)"));
    LAMINA_RETURN_IF_ERROR(BlasToStatus(
        cublasLtMatmulDescSetAttribute(&problem.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       &shape.bias, sizeof(shape.bias)),
        "cublasLtMatmulDescSetAttribute(BIAS_POINTER)"));
  }
  LAMINA_RETURN_IF_ERROR(
      BlasToStatus(cublasLtMatrixLayoutInit(&problem.a, type, shape.in_features, shape.out_features,
                                            static_cast<int64_t>(shape.in_features)),
                   "cublasLtMatrixLayoutInit(weights)"));
  LAMINA_RETURN_IF_ERROR(
      BlasToStatus(cublasLtMatrixLayoutInit(&problem.b, type, shape.in_features, shape.rows,
                                            static_cast<int64_t>(shape.in_stride)),
                   "cublasLtMatrixLayoutInit(activations)"));
  return BlasToStatus(cublasLtMatrixLayoutInit(&problem.d, CUDA_R_32F, shape.out_features,
                                               shape.rows, static_cast<int64_t>(shape.out_stride)),
                      "cublasLtMatrixLayoutInit(output)");
}

// What algorithms may need and do.
class Preference {
 public:
  static absl::StatusOr<Preference> Create(size_t workspace_bytes) {
    Preference preference;
    LAMINA_RETURN_IF_ERROR(BlasToStatus(cublasLtMatmulPreferenceInit(&preference.opaque_),
                                        "cublasLtMatmulPreferenceInit"));
    const uint64_t workspace = workspace_bytes;
    LAMINA_RETURN_IF_ERROR(
        preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    // Sums that are split over thread blocks would depend on how many rows there are.
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    LAMINA_RETURN_IF_ERROR(preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                                          sizeof(no_reduction)));
    for (const cublasLtMatmulPreferenceAttributes_t attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      LAMINA_RETURN_IF_ERROR(preference.Set(attribute, &kAlignmentBytes, sizeof(kAlignmentBytes)));
    }
    return preference;
  }

  cublasLtMatmulPreference_t get() { return &opaque_; }

 private:
  absl::Status Set(cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                   size_t bytes) {
    return BlasToStatus(cublasLtMatmulPreferenceSetAttribute(&opaque_, attribute, value, bytes),
                        "cublasLtMatmulPreferenceSetAttribute");
  }

  cublasLtMatmulPreferenceOpaque_t opaque_;
};

bool SplitsSums(const cublasLtMatmulAlgo_t& algorithm) {
  int32_t splits = 0;
  size_t written = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(
      &algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits, sizeof(splits), &written);
  return status != CUBLAS_STATUS_SUCCESS || splits > 1;
}

// Owns a cuBLASLt handle.
class Handle {
 public:
  static absl::StatusOr<std::unique_ptr<Handle>> Create() {
    auto handle = std::unique_ptr<Handle>(new Handle);
    LAMINA_RETURN_IF_ERROR(BlasToStatus(cublasLtCreate(&handle->handle_), "cublasLtCreate"));
    return handle;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_ != nullptr) {
      cublasLtDestroy(handle_);
    }
  }
  cublasLtHandle_t get() const { return handle_; }

 private:
  Handle() = default;
  cublasLtHandle_t handle_ = nullptr;
};

class CublasLtEngine final : public LinearEngine {
 public:
  CublasLtEngine(std::unique_ptr<Handle> handle, DType compute_type,
                 absl::Span<std::byte> workspace, const Stream& stream)
      : handle_(std::move(handle)),
        type_(compute_type == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F),
        workspace_(workspace),
        stream_(stream) {}

  std::string description() const override {
    return absl::StrCat("cublaslt ", cublasLtGetVersion());
  }

  absl::Status Prepare(const DeviceLinear& weights) override {
    for (size_t range = 0; range < kTypicalRows.size(); ++range) {
      LAMINA_RETURN_IF_ERROR(
          Algorithm(weights.in_features(), weights.out_features(), weights.bias(), range).status());
    }
    return absl::OkStatus();
  }

  absl::Status Linear(const DeviceLinear& weights, const ActivationView& in, size_t first_out,
                      MatrixView<float> out) override {
    const ProblemShape shape = {
        .in_features = weights.in_features(),
        .out_features = out.cols,
        .rows = in.rows,
        .in_stride = in.stride,
        .out_stride = out.stride,
        .bias = weights.bias() != nullptr ? weights.bias() + first_out : nullptr};
    LAMINA_ASSIGN_OR_RETURN(
        const cublasLtMatmulAlgo_t* const algorithm,
        Algorithm(shape.in_features, shape.out_features, shape.bias, RangeOf(shape.rows)));
    Problem problem;
    LAMINA_RETURN_IF_ERROR(Describe(shape, type_, problem));
    const size_t element_bytes = type_ == CUDA_R_16BF ? sizeof(BFloat16) : sizeof(float);
    const void* const first_weights = static_cast<const std::byte*>(weights.weights()) +
                                      first_out * weights.in_features() * element_bytes;
    const float one = 1.0f;
    const float zero = 0.0f;
    return BlasToStatus(cublasLtMatmul(handle_->get(), &problem.product, &one, first_weights,
                                       &problem.a, in.data, &problem.b, &zero, out.data, &problem.d,
                                       out.data, &problem.d, algorithm, workspace_.data(),
                                       workspace_.size(), static_cast<cudaStream_t>(stream_.get())),
                        absl::StrCat("cublasLtMatmul(", shape.rows, " x ", shape.in_features, " x ",
                                     shape.out_features, ")"));
  }

 private:
  using Key = std::tuple<size_t, size_t, bool, size_t>;  // in, out, bias or none, range

  // The algorithm of a shape, chosen when it is first asked for; cuBLASLt's order of preference
  // depends on the shape, the device and its version alone.
  absl::StatusOr<const cublasLtMatmulAlgo_t*> Algorithm(size_t in_features, size_t out_features,
                                                        const float* bias, size_t range) {
    const Key key = {in_features, out_features, bias != nullptr, range};
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) {
      return &found->second;
    }
    const ProblemShape shape = {.in_features = in_features,
                                .out_features = out_features,
                                .rows = kTypicalRows[range],
                                .in_stride = in_features,
                                .out_stride = out_features,
                                .bias = bias};
    LAMINA_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t algorithm, Choose(shape));
    return &algorithms_.emplace(key, algorithm).first->second;
  }

  absl::StatusOr<cublasLtMatmulAlgo_t> Choose(const ProblemShape& shape) {
    Problem problem;
    LAMINA_RETURN_IF_ERROR(Describe(shape, type_, problem));
    LAMINA_ASSIGN_OR_RETURN(Preference preference, Preference::Create(workspace_.size()));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates;
    int count = 0;
    LAMINA_RETURN_IF_ERROR(BlasToStatus(
        cublasLtMatmulAlgoGetHeuristic(handle_->get(), &problem.product, &problem.a, &problem.b,
                                       &problem.d, &problem.d, preference.get(), kCandidates,
                                       candidates.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = candidates[static_cast<size_t>(i)];
      if (candidate.state == CUBLAS_STATUS_SUCCESS && !SplitsSums(candidate.algo) &&
          ServesOneRow(shape, candidate.algo)) {
        return candidate.algo;
      }
    }
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt has no algorithm without split sums for ", shape.in_features, " x ",
                     shape.out_features, " among ", count));
  }

  // The algorithm was offered for kTypicalRows; it must do for the fewest too.
  bool ServesOneRow(ProblemShape shape, const cublasLtMatmulAlgo_t& algorithm) {
    shape.rows = 1;
    Problem problem;
    if (!Describe(shape, type_, problem).ok()) {
      return false;
    }
    cublasLtMatmulHeuristicResult_t result;
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_->get(), &problem.product, &problem.a, &problem.b,
                                &problem.d, &problem.d, &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_.size();
  }

  std::unique_ptr<Handle> handle_;
  const cudaDataType_t type_;
  const absl::Span<std::byte> workspace_;
  const Stream& stream_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeLinearEngine(DType compute_type,
                                                               absl::Span<std::byte> workspace,
                                                               const Stream& stream) {
  LAMINA_ASSIGN_OR_RETURN(auto handle, Handle::Create());
  return std::make_unique<CublasLtEngine>(std::move(handle), compute_type, workspace, stream);
}

}  // namespace lamina::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
//
// Matrix products by cuBLASLt, with one algorithm for each shape of weights and range of rows.
//
// Where none of cuBLASLt's candidates does for a whole range, each number of rows has its own: the
// log says so, since a row's bits may then depend on how many there are.
//
// cuBLASLt's matrices are column-major. A row-major [rows, n] is its n x rows, so with W row-major
// [out, in], out = in W^T becomes D = op(A) B: A the in x out matrix of W, transposed; B the
// in x rows matrix of the activations; D out x rows.

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/linear_engine_internal.h"

namespace lamina::kernels::cuda {
namespace {

// A range of rows: those that its algorithm is chosen for, and those that it is asked about.
struct Range {
  size_t typical = 0;
  std::array<size_t, 4> samples;
};
constexpr std::array<Range, 2> kRanges = {
    Range{.typical = 64, .samples = {1, 7, 33, kDecodeRows}},
    Range{.typical = 512, .samples = {kDecodeRows + 1, 500, 1024, 4096}}};
// Rows of each range for which Prepare() runs a product.
constexpr std::array<size_t, 2> kTriedRows = {1, kDecodeRows + 1};
constexpr int kCandidates = 32;
constexpr uint64_t kPieceAlignment = 256;  // Alignment of a MemoryArena's pieces.
// The most that an algorithm may rely on; rows of activations and outputs usually have it.
constexpr uint32_t kAlignmentMax = 16;

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
  // Alignment of the first elements, in bytes.
  uint32_t weights_alignment = kAlignmentMax;
  uint32_t in_alignment = kAlignmentMax;
  uint32_t out_alignment = kAlignmentMax;
};

uint32_t AlignmentOf(const void* data) {
  uint32_t alignment = kAlignmentMax;
  while (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    alignment /= 2;
  }
  return alignment;
}

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
  static absl::StatusOr<Preference> Create(const ProblemShape& shape, size_t workspace_bytes) {
    Preference preference;
    LAMINA_RETURN_IF_ERROR(BlasToStatus(cublasLtMatmulPreferenceInit(&preference.opaque_),
                                        "cublasLtMatmulPreferenceInit"));
    const uint64_t workspace = workspace_bytes;
    LAMINA_RETURN_IF_ERROR(
        preference.Set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)));
    // Narrow layers need sums that are split over thread blocks. The parts are added in one order,
    // in the workspace; in place, the order would be that in which thread blocks end.
    const uint32_t in_workspace = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    LAMINA_RETURN_IF_ERROR(preference.Set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &in_workspace,
                                          sizeof(in_workspace)));
    for (const auto& [attribute, alignment] :
         {std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, shape.weights_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, shape.in_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, shape.out_alignment),
          std::pair(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, shape.out_alignment)}) {
      LAMINA_RETURN_IF_ERROR(preference.Set(attribute, &alignment, sizeof(alignment)));
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

template <typename T>
std::optional<T> ConfigOf(const cublasLtMatmulAlgo_t& algorithm,
                          cublasLtMatmulAlgoConfigAttributes_t attribute) {
  T value{};
  size_t written = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written);
  return status == CUBLAS_STATUS_SUCCESS ? std::optional<T>(value) : std::nullopt;
}

// Whether the algorithm adds a row's products in an order that it alone determines: in as many
// parts as it says, which are then added in the workspace.
bool HasOneOrder(const cublasLtMatmulAlgo_t& algorithm) {
  const auto splits = ConfigOf<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  const auto scheme = ConfigOf<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
  return splits.has_value() && scheme.has_value() &&
         ((*splits >= 0 && *splits <= 1) ||
          (*splits > 1 && *scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
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

  // Each algorithm runs once: loading its kernel later would wait for those that run, one that
  // polls among them (launch.cuh).
  absl::Status Prepare(const DeviceLinear& weights) override {
    for (const size_t rows : kTriedRows) {
      ProblemShape shape = {.in_features = weights.in_features(),
                            .out_features = weights.out_features(),
                            .rows = rows,
                            .in_stride = weights.in_features(),
                            .out_stride = weights.out_features(),
                            .bias = weights.bias()};
      if (!algorithms_.contains(KeyOf(shape))) {
        LAMINA_RETURN_IF_ERROR(Try(weights, rows));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Linear(const DeviceLinear& weights, const ActivationView& in, size_t first_out,
                      MatrixView<float> out) override {
    const void* const first_weights = static_cast<const std::byte*>(weights.weights()) +
                                      first_out * weights.in_features() * element_bytes();
    const ProblemShape shape = {
        .in_features = weights.in_features(),
        .out_features = out.cols,
        .rows = in.rows,
        .in_stride = in.stride,
        .out_stride = out.stride,
        .bias = weights.bias() != nullptr ? weights.bias() + first_out : nullptr,
        .weights_alignment = AlignmentOf(first_weights),
        .in_alignment = AlignmentOf(in.data),
        .out_alignment = AlignmentOf(out.data)};
    LAMINA_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* const algorithm, Algorithm(shape));
    Problem problem;
    LAMINA_RETURN_IF_ERROR(Describe(shape, type_, problem));
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
  // All of a ProblemShape but its rows and whose bias it is, and the range.
  using Key =
      std::tuple<size_t, size_t, size_t, size_t, bool, uint32_t, uint32_t, uint32_t, size_t>;

  static Key KeyOf(const ProblemShape& s) {
    return {s.in_features,       s.out_features, s.in_stride,     s.out_stride,   s.bias != nullptr,
            s.weights_alignment, s.in_alignment, s.out_alignment, RangeOf(s.rows)};
  }

  // The choice for a key: one algorithm, or one for each number of rows that was met.
  struct Chosen {
    std::optional<cublasLtMatmulAlgo_t> of_range;
    std::map<size_t, cublasLtMatmulAlgo_t> of_rows;
  };

  size_t element_bytes() const { return type_ == CUDA_R_16BF ? sizeof(BFloat16) : sizeof(float); }

  // Zeros times the weights, in memory that it takes and gives back. Waits for the stream.
  absl::Status Try(const DeviceLinear& weights, size_t rows) {
    const size_t in_bytes = rows * weights.in_features() * element_bytes();
    const size_t out_count = rows * weights.out_features();
    LAMINA_ASSIGN_OR_RETURN(
        MemoryArena arena,
        MemoryArena::Create(ArenaKind::kDevice,
                            in_bytes + out_count * sizeof(float) + 2 * kPieceAlignment));
    LAMINA_ASSIGN_OR_RETURN(std::byte* const in, arena.Take<std::byte>(in_bytes));
    LAMINA_ASSIGN_OR_RETURN(float* const out, arena.Take<float>(out_count));
    LAMINA_RETURN_IF_ERROR(FillAsync(in, 0, in_bytes, stream_));
    const DType dtype = type_ == CUDA_R_16BF ? DType::kBF16 : DType::kF32;
    const absl::Status tried =
        Linear(weights, {in, rows, weights.in_features(), weights.in_features(), dtype}, 0,
               {out, rows, weights.out_features(), weights.out_features()});
    absl::Status ended = stream_.Synchronize();  // In any case: the memory goes.
    return tried.ok() ? ended : tried;
  }

  // The algorithm of a shape, chosen when it is first asked for; cuBLASLt's order of preference
  // depends on the shape, the device and its version alone.
  absl::StatusOr<const cublasLtMatmulAlgo_t*> Algorithm(const ProblemShape& shape) {
    const Key key = KeyOf(shape);
    auto found = algorithms_.find(key);
    if (found == algorithms_.end()) {
      const Range& range = kRanges[RangeOf(shape.rows)];
      ProblemShape typical = shape;
      typical.rows = range.typical;
      LAMINA_ASSIGN_OR_RETURN(auto of_range, Choose(typical, range.samples));
      if (!of_range.has_value()) {
        LogWarning("cuBLASLt has no algorithm with one order of sums that does for up to ",
                   range.samples.back(), " rows of ", shape.in_features, " x ", shape.out_features,
                   ": bits of a row may depend on the other rows");
      }
      found = algorithms_.emplace(key, Chosen{.of_range = of_range, .of_rows = {}}).first;
    }
    Chosen& chosen = found->second;
    if (chosen.of_range.has_value()) {
      return &*chosen.of_range;
    }
    const auto own = chosen.of_rows.find(shape.rows);
    if (own != chosen.of_rows.end()) {
      return &own->second;
    }
    LAMINA_ASSIGN_OR_RETURN(const auto of_rows, Choose(shape, {}));
    if (!of_rows.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat("cuBLASLt has no algorithm with one order of sums for ", shape.rows,
                       " rows of ", shape.in_features, " x ", shape.out_features));
    }
    return &chosen.of_rows.emplace(shape.rows, *of_rows).first->second;
  }

  // The first candidate that serves all of `samples` too. Empty: there is none.
  absl::StatusOr<std::optional<cublasLtMatmulAlgo_t>> Choose(const ProblemShape& shape,
                                                             absl::Span<const size_t> samples) {
    Problem problem;
    LAMINA_RETURN_IF_ERROR(Describe(shape, type_, problem));
    LAMINA_ASSIGN_OR_RETURN(Preference preference, Preference::Create(shape, workspace_.size()));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> candidates;
    int count = 0;
    const cublasStatus_t asked = cublasLtMatmulAlgoGetHeuristic(
        handle_->get(), &problem.product, &problem.a, &problem.b, &problem.d, &problem.d,
        preference.get(), kCandidates, candidates.data(), &count);
    if (asked == CUBLAS_STATUS_NOT_SUPPORTED) {
      return std::nullopt;
    }
    LAMINA_RETURN_IF_ERROR(BlasToStatus(asked, "cublasLtMatmulAlgoGetHeuristic"));
    for (int i = 0; i < count; ++i) {
      const cublasLtMatmulHeuristicResult_t& candidate = candidates[static_cast<size_t>(i)];
      if (candidate.state == CUBLAS_STATUS_SUCCESS && HasOneOrder(candidate.algo) &&
          std::all_of(samples.begin(), samples.end(),
                      [&](size_t rows) { return Serves(shape, rows, candidate.algo); })) {
        return candidate.algo;
      }
    }
    return std::nullopt;
  }

  // Whether the algorithm, which was offered for other rows, does for these.
  bool Serves(ProblemShape shape, size_t rows, const cublasLtMatmulAlgo_t& algorithm) {
    shape.rows = rows;
    Problem problem;
    if (!Describe(shape, type_, problem).ok()) {
      return false;
    }
    cublasLtMatmulHeuristicResult_t result = {};
    const cublasStatus_t status =
        cublasLtMatmulAlgoCheck(handle_->get(), &problem.product, &problem.a, &problem.b,
                                &problem.d, &problem.d, &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_.size();
  }

  std::unique_ptr<Handle> handle_;
  const cudaDataType_t type_;
  const absl::Span<std::byte> workspace_;
  const Stream& stream_;
  std::map<Key, Chosen> algorithms_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearEngine>> MakeLinearEngine(DType compute_type,
                                                               absl::Span<std::byte> workspace,
                                                               const Stream& stream) {
  LAMINA_ASSIGN_OR_RETURN(auto handle, Handle::Create());
  return std::make_unique<CublasLtEngine>(std::move(handle), compute_type, workspace, stream);
}

}  // namespace lamina::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/dense.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "kernels/cuda/cuda_status_internal.h"
#include "kernels/cuda/linear_engine_internal.h"
#include "kernels/cuda/row_kernels.cuh"

namespace lamina::kernels::cuda {
namespace {

constexpr uint64_t kAlignment = 256;  // Alignment of a MemoryArena's pieces.

RowsIn In(const MatrixView<const float>& x) { return {.data = x.data, .stride = x.stride}; }

RowsOut Out(const ActivationView& out) {
  return {.data = out.data,
          .stride = out.stride,
          .type = out.dtype == DType::kF32 ? Element::kF32 : Element::kBF16};
}

RowsShape ShapeOf(size_t rows, size_t cols) {
  return {.rows = static_cast<uint32_t>(rows), .cols = static_cast<uint32_t>(cols)};
}

RowActivation Translate(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return RowActivation::kRelu;
    case Activation::kSilu:
      return RowActivation::kSilu;
    case Activation::kGeluErf:
      return RowActivation::kGeluErf;
    case Activation::kGeluTanh:
      return RowActivation::kGeluTanh;
    case Activation::kClampedSwiglu:
      return RowActivation::kClampedSwiglu;
  }
  LAMINA_CHECK(false && "every activation has its kernel");
  return RowActivation::kRelu;
}

// `count` host weights of `from`'s type, as bytes of `to`.
std::vector<std::byte> Converted(const void* weights, DType from, DType to, size_t count) {
  std::vector<std::byte> bytes(count * DTypeBytes(to));
  if (from == to) {
    std::memcpy(bytes.data(), weights, bytes.size());
  } else if (to == DType::kBF16) {
    for (size_t i = 0; i < count; ++i) {
      reinterpret_cast<BFloat16*>(bytes.data())[i] =
          ToBFloat16(static_cast<const float*>(weights)[i]);
    }
  } else {
    for (size_t i = 0; i < count; ++i) {
      reinterpret_cast<float*>(bytes.data())[i] = ToFloat(static_cast<const BFloat16*>(weights)[i]);
    }
  }
  return bytes;
}

NormHeadsArguments NormsOf(const MatrixView<const float>& x, const HeadNorms& norms) {
  return {.shape = ShapeOf(x.rows, x.cols),
          .x = In(x),
          .query_heads = static_cast<uint32_t>(norms.query_heads),
          .kv_heads = static_cast<uint32_t>(norms.kv_heads),
          .head_dim = static_cast<uint32_t>(norms.head_dim),
          .whole = norms.whole,
          .epsilon = norms.epsilon,
          .q_weight = norms.q_weight.data(),
          .k_weight = norms.k_weight.data()};
}

RopeArguments RopeOf(const MatrixView<const float>& x, const QkvFinish& finish,
                     const MatrixView<BFloat16>& out) {
  const RopeTable& table = finish.table;
  LAMINA_CHECK(finish.positions.size() == x.rows && out.rows == x.rows && out.cols == x.cols);
  LAMINA_CHECK(finish.heads * finish.head_dim <= x.cols && table.rotary_dim <= finish.head_dim);
  LAMINA_CHECK(table.frequencies.size() * 2 == table.rotary_dim);
  RopeArguments arguments = {.shape = ShapeOf(x.rows, x.cols),
                             .x = In(x),
                             .heads = static_cast<uint32_t>(finish.heads),
                             .head_dim = static_cast<uint32_t>(finish.head_dim),
                             .rotary_dim = table.rotary_dim,
                             .interleaved = table.layout == RopeLayout::kInterleaved,
                             .magnitude = table.magnitude,
                             .frequencies = table.frequencies.data(),
                             .positions = finish.positions.data(),
                             .out = reinterpret_cast<uint16_t*>(out.data),
                             .out_stride = out.stride};
  if (finish.store != nullptr) {
    const KvRowStore& store = *finish.store;
    LAMINA_CHECK(store.slots.size() == x.rows && 2 * store.kv_heads * finish.head_dim <= x.cols);
    arguments.store = {.kv_heads = static_cast<uint32_t>(store.kv_heads),
                       .k = reinterpret_cast<uint16_t*>(store.k),
                       .v = reinterpret_cast<uint16_t*>(store.v),
                       .head_stride = store.head_stride,
                       .slots = store.slots.data()};
  }
  return arguments;
}

class CudaDenseImpl final : public CudaDense {
 public:
  CudaDenseImpl(const CudaDenseOptions& options, const Stream& stream,
                std::unique_ptr<LinearEngine> linear)
      : compute_type_(options.compute_type),
        launches_(options.launches),
        stream_(stream),
        linear_(std::move(linear)) {}

  std::string description() const override {
    return launches_.empty() ? linear_->description()
                             : absl::StrCat(linear_->description(), ", ", launches_);
  }
  DType compute_type() const override { return compute_type_; }

  absl::Status Check() override { return std::exchange(failure_, absl::OkStatus()); }

  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const void* weights, DType dtype,
                                                     size_t out_features, size_t in_features,
                                                     absl::Span<const float> bias) override {
    LAMINA_CHECK(bias.empty() || bias.size() == out_features);
    const std::vector<std::byte> bytes =
        Converted(weights, dtype, compute_type_, out_features * in_features);
    const uint64_t padded = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    LAMINA_ASSIGN_OR_RETURN(
        MemoryArena memory,
        MemoryArena::Create(ArenaKind::kDevice,
                            bias.empty() ? bytes.size() : padded + bias.size() * sizeof(float)));
    LAMINA_ASSIGN_OR_RETURN(std::byte* const data, memory.Take<std::byte>(bytes.size()));
    LAMINA_RETURN_IF_ERROR(CopyAsync(data, bytes.data(), bytes.size(), stream_));
    float* device_bias = nullptr;
    if (!bias.empty()) {
      LAMINA_ASSIGN_OR_RETURN(device_bias, memory.Take<float>(bias.size()));
      LAMINA_RETURN_IF_ERROR(
          CopyAsync(device_bias, bias.data(), bias.size() * sizeof(float), stream_));
    }
    LAMINA_RETURN_IF_ERROR(stream_.Synchronize());
    return std::make_unique<DeviceLinear>(in_features, out_features, std::move(memory), data,
                                          device_bias);
  }

  absl::Status Prepare(const PackedLinear& weights, size_t /*rows_max*/) override {
    return linear_->Prepare(static_cast<const DeviceLinear&>(weights));
  }

  void Linear(const PackedLinear& weights, const ActivationView& in, size_t first_out,
              MatrixView<float> out) override {
    const auto& packed = static_cast<const DeviceLinear&>(weights);
    LAMINA_CHECK(in.dtype == compute_type_ && in.cols == packed.in_features());
    LAMINA_CHECK(in.rows == out.rows && first_out + out.cols <= packed.out_features());
    if (out.rows != 0 && out.cols != 0) {
      Note(linear_->Linear(packed, in, first_out, out));
    }
  }

  void LinearEach(absl::Span<const LinearPart> parts) override {
    for (const LinearPart& part : parts) {
      Linear(*part.weights, part.in, 0, part.out);
    }
  }

  void RmsNorm(MatrixView<const float> x, absl::Span<const float> weight, float epsilon,
               const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols && weight.size() == x.cols);
    Note(NormRows({.shape = ShapeOf(x.rows, x.cols),
                   .x = In(x),
                   .weight = weight.data(),
                   .bias = nullptr,
                   .epsilon = epsilon,
                   .out = Out(out)},
                  handle()),
         "RmsNorm");
  }

  void AddRmsNorm(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> sum,
                  absl::Span<const float> weight, float epsilon,
                  const ActivationView& out) override {
    LAMINA_CHECK(a.rows == out.rows && a.cols == out.cols && weight.size() == a.cols);
    LAMINA_CHECK(b.rows == a.rows && b.cols == a.cols);
    LAMINA_CHECK(sum.rows == a.rows && sum.cols == a.cols);
    Note(NormRows({.shape = ShapeOf(a.rows, a.cols),
                   .x = In(a),
                   .added = In(b),
                   .sum = sum.data,
                   .sum_stride = sum.stride,
                   .weight = weight.data(),
                   .bias = nullptr,
                   .epsilon = epsilon,
                   .out = Out(out)},
                  handle()),
         "AddRmsNorm");
  }

  void LayerNorm(MatrixView<const float> x, absl::Span<const float> weight,
                 absl::Span<const float> bias, float epsilon, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    LAMINA_CHECK(weight.size() == x.cols && bias.size() == x.cols);
    Note(NormRows({.shape = ShapeOf(x.rows, x.cols),
                   .x = In(x),
                   .weight = weight.data(),
                   .bias = bias.data(),
                   .epsilon = epsilon,
                   .out = Out(out)},
                  handle()),
         "LayerNorm");
  }

  void RopeAndRound(MatrixView<const float> x, size_t heads, size_t head_dim,
                    const RopeTable& table, absl::Span<const uint32_t> positions,
                    MatrixView<BFloat16> out) override {
    FinishQkv(x, {.heads = heads, .head_dim = head_dim, .table = table, .positions = positions},
              /*normed=*/{}, out);
  }

  void FinishQkv(MatrixView<const float> x, const QkvFinish& finish, MatrixView<float> /*normed*/,
                 MatrixView<BFloat16> out) override {
    const RopeArguments rope = RopeOf(x, finish, out);
    if (finish.norms == nullptr) {
      Note(RopeRows(rope, handle()), "RopeRows");
      return;
    }
    LAMINA_CHECK(finish.norms->head_dim == finish.head_dim);
    Note(NormRopeRows(NormsOf(x, *finish.norms), rope, handle()), "NormRopeRows");
  }

  void GatedActivation(Activation activation, MatrixView<const float> x,
                       const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == 2 * out.cols);
    Note(ActivateRows({.shape = ShapeOf(out.rows, out.cols),
                       .x = In(x),
                       .activation = Translate(activation),
                       .gated = true,
                       .out = Out(out)},
                      handle()),
         "GatedActivation");
  }

  void Activate(Activation activation, MatrixView<const float> x,
                const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    Note(ActivateRows({.shape = ShapeOf(out.rows, out.cols),
                       .x = In(x),
                       .activation = Translate(activation),
                       .gated = false,
                       .out = Out(out)},
                      handle()),
         "Activate");
  }

  void Add(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) override {
    LAMINA_CHECK(a.rows == b.rows && a.rows == out.rows && a.cols == b.cols && a.cols == out.cols);
    Note(AddRows({.shape = ShapeOf(a.rows, a.cols),
                  .a = In(a),
                  .b = In(b),
                  .out = out.data,
                  .out_stride = out.stride},
                 handle()),
         "Add");
  }

  void Convert(MatrixView<const BFloat16> x, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    Note(ConvertRows({.shape = ShapeOf(x.rows, x.cols),
                      .x = reinterpret_cast<const uint16_t*>(x.data),
                      .x_stride = x.stride,
                      .out = Out(out)},
                     handle()),
         "Convert");
  }

  void Round(MatrixView<const float> x, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    Note(ScaleRows({.shape = ShapeOf(x.rows, x.cols), .x = In(x), .out = Out(out)}, handle()),
         "Round");
  }

  void NormHeads(MatrixView<const float> x, const HeadNorms& norms,
                 MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    NormHeadsArguments arguments = NormsOf(x, norms);
    arguments.out = out.data;
    arguments.out_stride = out.stride;
    Note(NormHeadsRows(arguments, handle()), "NormHeads");
  }

  void Scale(MatrixView<const float> x, float factor, float soft_cap,
             MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    Note(ScaleRows({.shape = ShapeOf(x.rows, x.cols),
                    .x = In(x),
                    .factor = factor,
                    .soft_cap = soft_cap,
                    .out = {.data = out.data, .stride = out.stride, .type = Element::kF32}},
                   handle()),
         "Scale");
  }

  void Embed(const void* table, DType dtype, size_t width, absl::Span<const uint32_t> ids,
             MatrixView<float> out) override {
    LAMINA_CHECK(out.rows == ids.size() && out.cols == width);
    Note(EmbedRows({.shape = ShapeOf(out.rows, out.cols),
                    .table = table,
                    .type = dtype == DType::kF32 ? Element::kF32 : Element::kBF16,
                    .ids = ids.data(),
                    .out = out.data,
                    .out_stride = out.stride},
                   handle()),
         "Embed");
  }

 private:
  cudaStream_t handle() const { return static_cast<cudaStream_t>(stream_.get()); }

  void Note(absl::Status status) {
    if (failure_.ok()) {
      failure_ = std::move(status);
    }
  }
  void Note(cudaError_t error, const char* call) { Note(CudaToStatus(error, call)); }

  const DType compute_type_;
  const std::string launches_;
  const Stream& stream_;
  std::unique_ptr<LinearEngine> linear_;
  absl::Status failure_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDense>> MakeCudaDense(const CudaDenseOptions& options,
                                                         MemoryArena& arena, const Stream& stream) {
  LAMINA_ASSIGN_OR_RETURN(std::byte* const workspace,
                          arena.Take<std::byte>(options.workspace_bytes));
  LAMINA_ASSIGN_OR_RETURN(
      auto linear,
      MakeLinearEngine(options.compute_type, {workspace, options.workspace_bytes}, stream));
  return std::make_unique<CudaDenseImpl>(options, stream, std::move(linear));
}

}  // namespace lamina::kernels::cuda

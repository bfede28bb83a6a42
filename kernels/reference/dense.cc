// SPDX-License-Identifier: Apache-2.0
//
// The dense layers as plain loops: what the formulas of kernels/dense.h mean. The fast kernels are
// tested against this file, and a machine without a fast one can still run on it.
//
// Every reduction is in double, in index order, and rounds to f32 once at the end; so the results
// are also the most accurate that f32 outputs allow.
//
// Threading: one caller at a time, one thread.

#include "kernels/dense.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>
#include <vector>

#include "common/check.h"

namespace lamina::kernels {
namespace {

// Element `index` of an array of either type, as f32.
float Load(const void* data, DType dtype, size_t index) {
  return dtype == DType::kF32 ? static_cast<const float*>(data)[index]
                              : ToFloat(static_cast<const BFloat16*>(data)[index]);
}

void Store(void* data, DType dtype, size_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<BFloat16*>(data)[index] = ToBFloat16(value);
  }
}

class ReferenceLinear final : public PackedLinear {
 public:
  ReferenceLinear(const void* weights, DType dtype, DType compute_type, size_t out_features,
                  size_t in_features, absl::Span<const float> bias)
      : in_features_(in_features), out_features_(out_features), bias_(bias.begin(), bias.end()) {
    weights_.resize(out_features * in_features);
    at_ = weights_.data();
    for (size_t i = 0; i < weights_.size(); ++i) {
      const float weight = Load(weights, dtype, i);
      weights_[i] = compute_type == DType::kF32 ? weight : ToFloat(ToBFloat16(weight));
    }
  }

  size_t in_features() const override { return in_features_; }
  size_t out_features() const override { return out_features_; }
  // Values of bf16 are kept as f32, for simplicity.
  uint64_t bytes() const override {
    return (in_features_ * out_features_ + bias_.size()) * sizeof(float);
  }

  std::vector<absl::Span<std::byte>> Pieces() override {
    return {{reinterpret_cast<std::byte*>(at_), in_features_ * out_features_ * sizeof(float)}};
  }
  size_t FirstByte(size_t /*piece*/, size_t first_out) const override {
    return first_out * in_features_ * sizeof(float);
  }
  void Place(absl::Span<std::byte* const> at) override {
    weights_ = {};
    at_ = reinterpret_cast<float*>(at[0]);
  }

  const float* row(size_t out) const { return at_ + out * in_features_; }
  double bias(size_t out) const { return bias_.empty() ? 0.0 : bias_[out]; }

 private:
  size_t in_features_;
  size_t out_features_;
  // [out_features, in_features], rounded to the compute type; none where moved, and where it is
  // now.
  std::vector<float> weights_;
  float* at_ = nullptr;
  std::vector<float> bias_;  // [out_features] or empty.
};

double Activated(Activation activation, double x) {
  switch (activation) {
    case Activation::kRelu:
      return x < 0 ? 0 : x;
    case Activation::kSilu:
      return x / (1 + std::exp(-x));
    case Activation::kGeluErf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);  // 1 + erf, without cancellation
    case Activation::kGeluTanh:
      // (1 + tanh y) / 2 = 1 / (1 + exp(-2y)), without cancellation
      return x / (1 + std::exp(-std::sqrt(8 * std::numbers::inv_pi) * (x + 0.044715 * x * x * x)));
    case Activation::kClampedSwiglu: {
      const double gate = x > 7 ? 7 : x;  // So that NaN stays NaN.
      return gate / (1 + std::exp(-1.702 * gate));
    }
  }
  return x;
}

// What a gated activation multiplies by.
double UpOf(Activation activation, double up) {
  if (activation != Activation::kClampedSwiglu) {
    return up;
  }
  return (up > 7 ? 7 : up < -7 ? -7 : up) + 1;
}

class ReferenceDense final : public Dense {
 public:
  explicit ReferenceDense(DType compute_type) : compute_type_(compute_type) {}

  std::string description() const override { return "reference"; }
  DType compute_type() const override { return compute_type_; }

  absl::StatusOr<std::unique_ptr<PackedLinear>> Pack(const void* weights, DType dtype,
                                                     size_t out_features, size_t in_features,
                                                     absl::Span<const float> bias) override {
    LAMINA_CHECK(bias.empty() || bias.size() == out_features);
    return std::make_unique<ReferenceLinear>(weights, dtype, compute_type_, out_features,
                                             in_features, bias);
  }

  absl::Status Prepare(const PackedLinear& /*weights*/, size_t /*rows_max*/) override {
    return absl::OkStatus();
  }

  void Linear(const PackedLinear& weights, const ActivationView& in, size_t first_out,
              MatrixView<float> out) override {
    const auto& packed = static_cast<const ReferenceLinear&>(weights);
    LAMINA_CHECK(in.dtype == compute_type_ && in.cols == packed.in_features());
    LAMINA_CHECK(in.rows == out.rows && first_out + out.cols <= packed.out_features());
    for (size_t i = 0; i < in.rows; ++i) {
      for (size_t j = 0; j < out.cols; ++j) {
        const float* weight = packed.row(first_out + j);
        double sum = 0;
        for (size_t k = 0; k < in.cols; ++k) {
          sum += double{Load(in.data, in.dtype, i * in.stride + k)} * double{weight[k]};
        }
        out.row(i)[j] = static_cast<float>(sum + packed.bias(first_out + j));
      }
    }
  }

  void LinearEach(absl::Span<const LinearPart> parts) override {
    for (const LinearPart& part : parts) {
      Linear(*part.weights, part.in, 0, part.out);
    }
  }

  void RmsNorm(MatrixView<const float> x, absl::Span<const float> weight, float epsilon,
               const ActivationView& out) override {
    CheckShape(x, out);
    LAMINA_CHECK(weight.size() == x.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      double squares = 0;
      for (size_t j = 0; j < x.cols; ++j) {
        squares += double{x.row(i)[j]} * double{x.row(i)[j]};
      }
      const double scale =
          1 / std::sqrt(squares / static_cast<double>(x.cols) + static_cast<double>(epsilon));
      for (size_t j = 0; j < x.cols; ++j) {
        Put(out, i, j, double{x.row(i)[j]} * scale * double{weight[j]});
      }
    }
  }

  void LayerNorm(MatrixView<const float> x, absl::Span<const float> weight,
                 absl::Span<const float> bias, float epsilon, const ActivationView& out) override {
    CheckShape(x, out);
    LAMINA_CHECK(weight.size() == x.cols && bias.size() == x.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      double sum = 0;
      for (size_t j = 0; j < x.cols; ++j) {
        sum += double{x.row(i)[j]};
      }
      const double mean = sum / static_cast<double>(x.cols);
      double squares = 0;
      for (size_t j = 0; j < x.cols; ++j) {
        squares += (double{x.row(i)[j]} - mean) * (double{x.row(i)[j]} - mean);
      }
      const double scale =
          1 / std::sqrt(squares / static_cast<double>(x.cols) + static_cast<double>(epsilon));
      for (size_t j = 0; j < x.cols; ++j) {
        Put(out, i, j, (double{x.row(i)[j]} - mean) * scale * double{weight[j]} + double{bias[j]});
      }
    }
  }

  void RopeAndRound(MatrixView<const float> x, size_t heads, size_t head_dim,
                    const RopeTable& table, absl::Span<const uint32_t> positions,
                    MatrixView<BFloat16> out) override {
    LAMINA_CHECK(positions.size() == x.rows && out.rows == x.rows && out.cols == x.cols);
    LAMINA_CHECK(heads * head_dim <= x.cols && table.rotary_dim <= head_dim);
    LAMINA_CHECK(table.frequencies.size() * 2 == table.rotary_dim);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < x.cols; ++j) {
        out.row(i)[j] = ToBFloat16(x.row(i)[j]);
      }
      for (size_t h = 0; h < heads; ++h) {
        RotateHead(x.row(i) + h * head_dim, table, positions[i], out.row(i) + h * head_dim);
      }
    }
  }

  void GatedActivation(Activation activation, MatrixView<const float> x,
                       const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == 2 * out.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < out.cols; ++j) {
        Put(out, i, j,
            Activated(activation, x.row(i)[j]) * UpOf(activation, x.row(i)[out.cols + j]));
      }
    }
  }

  void Activate(Activation activation, MatrixView<const float> x,
                const ActivationView& out) override {
    CheckShape(x, out);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < x.cols; ++j) {
        Put(out, i, j, Activated(activation, x.row(i)[j]));
      }
    }
  }

  void Add(MatrixView<const float> a, MatrixView<const float> b, MatrixView<float> out) override {
    LAMINA_CHECK(a.rows == b.rows && a.rows == out.rows && a.cols == b.cols && a.cols == out.cols);
    for (size_t i = 0; i < a.rows; ++i) {
      for (size_t j = 0; j < a.cols; ++j) {
        out.row(i)[j] = a.row(i)[j] + b.row(i)[j];
      }
    }
  }

  void Convert(MatrixView<const BFloat16> x, const ActivationView& out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < x.cols; ++j) {
        Put(out, i, j, ToFloat(x.row(i)[j]));
      }
    }
  }

  void Round(MatrixView<const float> x, const ActivationView& out) override {
    CheckShape(x, out);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < x.cols; ++j) {
        Put(out, i, j, double{x.row(i)[j]});
      }
    }
  }

  void NormHeads(MatrixView<const float> x, const HeadNorms& norms,
                 MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    const auto norm = [&](size_t first, size_t heads, absl::Span<const float> weight) {
      const size_t cols = (norms.whole ? heads : 1) * norms.head_dim;
      for (size_t at = first; at < first + heads * norms.head_dim; at += cols) {
        const MatrixView<float> to = out.Cols(at, cols);
        RmsNorm(x.Cols(at, cols), weight, norms.epsilon,
                {to.data, to.rows, to.cols, to.stride, DType::kF32});
      }
    };
    const size_t k = norms.query_heads * norms.head_dim;
    const size_t v = k + norms.kv_heads * norms.head_dim;
    LAMINA_CHECK(x.cols == v + norms.kv_heads * norms.head_dim);
    norm(0, norms.query_heads, norms.q_weight);
    norm(k, norms.kv_heads, norms.k_weight);
    for (size_t i = 0; i < x.rows; ++i) {
      std::copy_n(x.row(i) + v, x.cols - v, out.row(i) + v);
    }
  }

  void Scale(MatrixView<const float> x, float factor, float soft_cap,
             MatrixView<float> out) override {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
    for (size_t i = 0; i < x.rows; ++i) {
      for (size_t j = 0; j < x.cols; ++j) {
        const float scaled = x.row(i)[j] * factor;
        out.row(i)[j] = soft_cap == 0.0f
                            ? scaled
                            : static_cast<float>(soft_cap * std::tanh(double{scaled} / soft_cap));
      }
    }
  }

  void Embed(const void* table, DType dtype, size_t width, absl::Span<const uint32_t> ids,
             MatrixView<float> out) override {
    LAMINA_CHECK(out.rows == ids.size() && out.cols == width);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t j = 0; j < width; ++j) {
        out.row(i)[j] = Load(table, dtype, size_t{ids[i]} * width + j);
      }
    }
  }

 private:
  static void CheckShape(MatrixView<const float> x, const ActivationView& out) {
    LAMINA_CHECK(x.rows == out.rows && x.cols == out.cols);
  }

  static void Put(const ActivationView& out, size_t row, size_t col, double value) {
    Store(out.data, out.dtype, row * out.stride + col, static_cast<float>(value));
  }

  // The angle is the f32 product, as in transformers; its cosine and sine are exact to f32.
  static void RotateHead(const float* x, const RopeTable& table, uint32_t position, BFloat16* out) {
    const size_t half = table.rotary_dim / 2;
    for (size_t i = 0; i < half; ++i) {
      const bool halves = table.layout == RopeLayout::kHalves;
      const size_t first = halves ? i : 2 * i;
      const size_t second = halves ? i + half : 2 * i + 1;
      const float angle = static_cast<float>(position) * table.frequencies[i];
      const double cosine = std::cos(double{angle}) * double{table.magnitude};
      const double sine = std::sin(double{angle}) * double{table.magnitude};
      const double a = x[first];
      const double b = x[second];
      out[first] = ToBFloat16(static_cast<float>(a * cosine - b * sine));
      out[second] = ToBFloat16(static_cast<float>(b * cosine + a * sine));
    }
  }

  DType compute_type_;
};

}  // namespace

std::unique_ptr<Dense> MakeReferenceDense(DType compute_type) {
  return std::make_unique<ReferenceDense>(compute_type);
}

}  // namespace lamina::kernels

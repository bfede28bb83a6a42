// SPDX-License-Identifier: Apache-2.0
//
// Activations, weights and comparisons for the tests of the dense layers.

#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/philox.h"
#include "kernels/dense.h"

namespace lamina::kernels {

inline std::vector<float> RandomFloats(size_t count, uint64_t seed, double deviation = 1) {
  Prng prng(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(prng.Normal() * deviation);
  }
  return values;
}

// A matrix of f32 or bf16 that owns its bytes; the gap between rows holds NaN, which must not
// reach any result.
class Activations {
 public:
  Activations(size_t rows, size_t cols, DType dtype, size_t gap = 0)
      : rows_(rows), cols_(cols), stride_(cols + gap), dtype_(dtype) {
    bytes_.resize(rows * stride_ * DTypeBytes(dtype) + 64);
    for (size_t i = 0; i < rows * stride_; ++i) {
      SetElement(i, std::nanf(""));
    }
  }

  static Activations Random(size_t rows, size_t cols, DType dtype, uint64_t seed, size_t gap = 0) {
    Activations result(rows, cols, dtype, gap);
    const std::vector<float> values = RandomFloats(rows * cols, seed);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < cols; ++j) {
        result.Set(i, j, values[i * cols + j]);
      }
    }
    return result;
  }

  ActivationView view() { return {bytes_.data(), rows_, cols_, stride_, dtype_}; }
  ActivationView rows(size_t first, size_t count) {
    return {bytes_.data() + first * stride_ * DTypeBytes(dtype_), count, cols_, stride_, dtype_};
  }
  MatrixView<float> floats() {
    return {reinterpret_cast<float*>(bytes_.data()), rows_, cols_, stride_};
  }

  void Set(size_t row, size_t col, float value) { SetElement(row * stride_ + col, value); }
  float Get(size_t row, size_t col) const {
    const size_t i = row * stride_ + col;
    return dtype_ == DType::kF32 ? reinterpret_cast<const float*>(bytes_.data())[i]
                                 : ToFloat(reinterpret_cast<const BFloat16*>(bytes_.data())[i]);
  }
  size_t row_count() const { return rows_; }
  size_t col_count() const { return cols_; }

 private:
  void SetElement(size_t i, float value) {
    if (dtype_ == DType::kF32) {
      reinterpret_cast<float*>(bytes_.data())[i] = value;
    } else {
      reinterpret_cast<BFloat16*>(bytes_.data())[i] = ToBFloat16(value);
    }
  }

  size_t rows_;
  size_t cols_;
  size_t stride_;
  DType dtype_;
  std::vector<char> bytes_;
};

inline std::unique_ptr<Dense> MakeDense(DType compute_type, DenseLoop loop, size_t threads) {
  return *MakeCpuDense({.compute_type = compute_type, .threads = threads, .loop = loop});
}
inline std::unique_ptr<Dense> MakeDense(DType compute_type, bool fallback_gemm, size_t threads) {
  return MakeDense(compute_type, fallback_gemm ? DenseLoop::kFallbackGemm : DenseLoop::kFastest,
                   threads);
}

// False where products go to oneDNN, whose loops take no blocks.
inline bool KeepsBlocks(Dense& dense) {
  return dense.description().find("onednn") == std::string::npos;
}

inline bool SameBits(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Both NaN, or the same infinity, or within `absolute` + `relative` |expected|.
inline void ExpectClose(float got, float expected, double relative, double absolute,
                        const std::string& where) {
  if (std::isnan(expected) || std::isinf(expected)) {
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(got) : got == expected)
        << where << ": got " << got << ", expected " << expected;
    return;
  }
  ASSERT_LE(std::abs(double{got} - double{expected}),
            absolute + relative * std::abs(double{expected}))
      << where << ": got " << got << ", expected " << expected;
}

// LinearGated() against the two calls that it stands for, bit by bit, and what it takes besides.
inline void ExpectGatedBits(Dense& dense, const PackedLinear& packed, Activation activation,
                            size_t rows, size_t gap) {
  const DType type = dense.compute_type();
  const size_t hidden = packed.out_features() / 2;
  Activations in = Activations::Random(rows, packed.in_features(), type, rows, gap);
  Activations gate_up(rows, 2 * hidden, DType::kF32, gap);
  Activations expected(rows, hidden, type, gap);
  Activations got(rows, hidden, type, gap);
  dense.Linear(packed, in.view(), 0, gate_up.floats());
  dense.GatedActivation(activation, gate_up.floats(), expected.view());
  const uint64_t bytes = dense.scratch_bytes();

  dense.LinearGated(packed, in.view(), activation, gate_up.floats(), got.view());

  EXPECT_EQ(dense.scratch_bytes(), bytes);
  ASSERT_EQ(
      std::memcmp(got.view().data, expected.view().data, rows * (hidden + gap) * DTypeBytes(type)),
      0)
      << dense.description() << ", " << rows << " rows of " << packed.in_features() << ", "
      << hidden << " gates";
}

}  // namespace lamina::kernels

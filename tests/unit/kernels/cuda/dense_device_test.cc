// SPDX-License-Identifier: Apache-2.0
//
// The dense layers on the device against the reference, over odd sizes and rows with gaps.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/dense.h"
#include "tests/unit/kernels/cuda/device_fixture.h"
#include "tests/unit/kernels/dense_test_util.h"
#include "tests/unit/kernels/finish_qkv_cases.h"

namespace lamina::kernels::cuda {
namespace {

struct RowsCase {
  size_t rows;
  size_t cols;
};

// Rows of f32 or bf16 with a gap behind each, on the host and on the device.
constexpr size_t kGap = 8;
// Everything but products rounds its result once more than the reference.
constexpr double kF32Error = 4e-6;
// Products sum in another order than the reference, and tensor cores keep about 22 bits of a sum:
// so many steps for each input, whose product with its weight is below 0.1 in the mean.
constexpr double kProductError = 0.1 / (1 << 22);
constexpr double kBF16Error = 0.0079;  // Two neighbours: 2^-7.

class CudaDenseTest : public DeviceTest, public testing::WithParamInterface<RowsCase> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    Use(DType::kBF16);
  }

  void Use(DType compute_type) {
    auto dense = MakeCudaDense({.compute_type = compute_type, .workspace_bytes = 8 << 20}, *arena_,
                               stream());
    ASSERT_TRUE(dense.ok()) << dense.status();
    dense_ = std::move(*dense);
    reference_ = MakeReferenceDense(compute_type);
  }

  MatrixView<const float> Upload(const std::vector<float>& packed, size_t rows, size_t cols) {
    std::vector<float> spread(rows * (cols + kGap), std::nanf(""));
    for (size_t i = 0; i < rows; ++i) {
      std::copy_n(packed.begin() + static_cast<ptrdiff_t>(i * cols), cols,
                  spread.begin() + static_cast<ptrdiff_t>(i * (cols + kGap)));
    }
    return {DeviceTest::Upload(spread), rows, cols, cols + kGap};
  }

  // Runs a layer whose output is `rows` x `cols` of `dtype` on both, and compares.
  void Compare(size_t rows, size_t cols, DType dtype,
               const std::function<void(Dense&, bool on_device, const ActivationView&)>& layer,
               double absolute = 1e-6) {
    const size_t stride = cols + kGap;
    const size_t bytes = rows * stride * DTypeBytes(dtype);
    std::vector<uint8_t> expected(bytes);
    layer(*reference_, false, {expected.data(), rows, cols, stride, dtype});
    auto* place = Make<uint8_t>(bytes);
    layer(*dense_, true, {place, rows, cols, stride, dtype});
    const absl::Status status = dense_->Check();
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<uint8_t> got = Download(place, bytes);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < stride; ++j) {
        const size_t at = i * stride + j;
        const std::string where = absl::StrCat(i, ",", j);
        if (dtype == DType::kF32) {
          const float value = reinterpret_cast<const float*>(got.data())[at];
          if (j < cols) {
            ExpectClose(value, reinterpret_cast<const float*>(expected.data())[at], kF32Error,
                        absolute, where);
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(value), 0xffffffffu)
                << "wrote into the gap " << where;
          }
        } else {
          const BFloat16 value = reinterpret_cast<const BFloat16*>(got.data())[at];
          if (j < cols) {
            ExpectClose(ToFloat(value),
                        ToFloat(reinterpret_cast<const BFloat16*>(expected.data())[at]), kBF16Error,
                        1e-6, where);
          } else {
            ASSERT_EQ(value.bits, 0xffffu) << "wrote into the gap " << where;
          }
        }
      }
    }
  }

  std::unique_ptr<CudaDense> dense_;
  std::unique_ptr<Dense> reference_;
};

TEST_P(CudaDenseTest, Norms) {
  const auto [rows, cols] = GetParam();
  const std::vector<float> x = RandomFloats(rows * cols, 1, 3);
  const std::vector<float> weight = RandomFloats(cols, 2);
  const std::vector<float> bias = RandomFloats(cols, 3);
  const auto device_x = Upload(x, rows, cols);
  const float* device_weight = DeviceTest::Upload(weight);
  const float* device_bias = DeviceTest::Upload(bias);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare(rows, cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.RmsNorm(device ? device_x : Packed(x.data(), rows, cols),
                    {device ? device_weight : weight.data(), cols}, 1e-5f, out);
    });
    Compare(rows, cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.LayerNorm(device ? device_x : Packed(x.data(), rows, cols),
                      {device ? device_weight : weight.data(), cols},
                      {device ? device_bias : bias.data(), cols}, 1e-5f, out);
    });
  }
}

TEST_P(CudaDenseTest, ASumAndItsNormHaveTheBitsOfBothCalls) {
  const auto [rows, cols] = GetParam();
  const std::vector<float> a = RandomFloats(rows * cols, 7, 3);
  const auto device_b = Upload(RandomFloats(rows * cols, 8, 3), rows, cols);
  const absl::Span<const float> weight(DeviceTest::Upload(RandomFloats(cols, 9)), cols);
  // In place, as residuals are.
  const auto apart = Packed(DeviceTest::Upload(a), rows, cols);
  const auto together = Packed(DeviceTest::Upload(a), rows, cols);
  auto* const norm_apart = Make<uint16_t>(rows * cols);
  auto* const norm_together = Make<uint16_t>(rows * cols);
  dense_->Add(apart, device_b, apart);
  dense_->RmsNorm(apart, weight, 1e-5f, {norm_apart, rows, cols, cols});
  dense_->AddRmsNorm(together, device_b, together, weight, 1e-5f,
                     {norm_together, rows, cols, cols});
  ASSERT_TRUE(dense_->Check().ok());
  EXPECT_EQ(Download(together.data, rows * cols), Download(apart.data, rows * cols));
  EXPECT_EQ(Download(norm_together, rows * cols), Download(norm_apart, rows * cols));
}

TEST_P(CudaDenseTest, Activations) {
  const auto [rows, cols] = GetParam();
  const std::vector<float> x = RandomFloats(rows * 2 * cols, 4, 4);
  const auto device_x = Upload(x, rows, 2 * cols);
  for (const Activation activation : {Activation::kRelu, Activation::kSilu, Activation::kGeluErf,
                                      Activation::kGeluTanh, Activation::kClampedSwiglu}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Compare(rows, cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
        dense.GatedActivation(activation, device ? device_x : Packed(x.data(), rows, 2 * cols),
                              out);
      });
      Compare(rows, 2 * cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
        dense.Activate(activation, device ? device_x : Packed(x.data(), rows, 2 * cols), out);
      });
    }
  }
}

TEST_P(CudaDenseTest, SumsAndConversions) {
  const auto [rows, cols] = GetParam();
  const std::vector<float> a = RandomFloats(rows * cols, 5);
  const std::vector<float> b = RandomFloats(rows * cols, 6);
  const auto device_a = Upload(a, rows, cols);
  const auto device_b = Upload(b, rows, cols);
  std::vector<BFloat16> half(rows * cols);
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = ToBFloat16(a[i]);
  }
  const BFloat16* device_half = DeviceTest::Upload(half);
  Compare(rows, cols, DType::kF32, [&](Dense& dense, bool device, const ActivationView& out) {
    dense.Add(device ? device_a : Packed(a.data(), rows, cols),
              device ? device_b : Packed(b.data(), rows, cols),
              {static_cast<float*>(out.data), out.rows, out.cols, out.stride});
  });
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare(rows, cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.Convert(Packed<const BFloat16>(device ? device_half : half.data(), rows, cols), out);
    });
  }
}

TEST_P(CudaDenseTest, FactorsSoftCapsAndRounding) {
  const auto [rows, cols] = GetParam();
  const std::vector<float> x = RandomFloats(rows * cols, 8, 4);
  const auto device_x = Upload(x, rows, cols);
  for (const float soft_cap : {0.0f, 3.0f}) {
    Compare(rows, cols, DType::kF32, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.Scale(device ? device_x : Packed(x.data(), rows, cols), 0.3f, soft_cap,
                  {static_cast<float*>(out.data), out.rows, out.cols, out.stride});
    });
  }
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare(rows, cols, dtype, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.Round(device ? device_x : Packed(x.data(), rows, cols), out);
    });
  }
}

TEST_F(CudaDenseTest, NormsOfHeads) {
  constexpr size_t kRows = 5;
  constexpr size_t kHeadDim = 48;
  constexpr size_t kCols = (6 + 2 * 2) * kHeadDim;
  const std::vector<float> x = RandomFloats(kRows * kCols, 9, 3);
  const auto device_x = Upload(x, kRows, kCols);
  for (const bool whole : {false, true}) {
    const std::vector<float> q_weight = RandomFloats((whole ? 6 : 1) * kHeadDim, 2);
    const std::vector<float> k_weight = RandomFloats((whole ? 2 : 1) * kHeadDim, 3);
    const float* device_q = DeviceTest::Upload(q_weight);
    const float* device_k = DeviceTest::Upload(k_weight);
    Compare(kRows, kCols, DType::kF32, [&](Dense& dense, bool device, const ActivationView& out) {
      dense.NormHeads(device ? device_x : Packed(x.data(), kRows, kCols),
                      {.query_heads = 6,
                       .kv_heads = 2,
                       .head_dim = kHeadDim,
                       .whole = whole,
                       .epsilon = 1e-5f,
                       .q_weight = {device ? device_q : q_weight.data(), q_weight.size()},
                       .k_weight = {device ? device_k : k_weight.data(), k_weight.size()}},
                      {static_cast<float*>(out.data), out.rows, out.cols, out.stride});
    });
  }
}

TEST_P(CudaDenseTest, Embedding) {
  const auto [rows, cols] = GetParam();
  constexpr size_t kVocabulary = 37;
  const std::vector<float> table = RandomFloats(kVocabulary * cols, 7);
  std::vector<BFloat16> half(table.size());
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = ToBFloat16(table[i]);
  }
  std::vector<uint32_t> ids(rows);
  for (size_t i = 0; i < rows; ++i) {
    ids[i] = static_cast<uint32_t>((i * 11 + 36) % kVocabulary);
  }
  const float* device_table = DeviceTest::Upload(table);
  const BFloat16* device_half = DeviceTest::Upload(half);
  const uint32_t* device_ids = DeviceTest::Upload(ids);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Compare(rows, cols, DType::kF32, [&](Dense& dense, bool device, const ActivationView& out) {
      const void* wide = device ? device_table : table.data();
      const void* narrow = device ? device_half : half.data();
      dense.Embed(dtype == DType::kF32 ? wide : narrow, dtype, cols,
                  {device ? device_ids : ids.data(), rows},
                  {static_cast<float*>(out.data), out.rows, out.cols, out.stride});
    });
  }
}

TEST_P(CudaDenseTest, Products) {
  const auto [rows, cols] = GetParam();
  const size_t in = (cols + 7) / 8 * 8;  // Rows of weights begin at multiples of 16 bytes.
  const size_t out_features = 200;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Use(dtype);
    for (const bool with_bias : {false, true}) {
      const std::vector<float> weights = RandomFloats(out_features * in, 8, 0.1);
      const std::vector<float> bias = RandomFloats(with_bias ? out_features : 0, 9);
      const auto device_weights = dense_->Pack(weights.data(), DType::kF32, out_features, in, bias);
      const auto host_weights =
          reference_->Pack(weights.data(), DType::kF32, out_features, in, bias);
      ASSERT_TRUE(device_weights.ok() && host_weights.ok()) << device_weights.status();
      ASSERT_TRUE(dense_->Prepare(**device_weights, rows).ok());
      Activations x = Activations::Random(rows, in, dtype, 10);
      const size_t bytes = rows * in * DTypeBytes(dtype);
      const auto* raw = static_cast<const uint8_t*>(x.view().data);
      uint8_t* device_x = DeviceTest::Upload(std::vector<uint8_t>(raw, raw + bytes));
      for (const size_t first_out : {size_t{0}, size_t{64}}) {
        const auto product = [&](Dense& dense, bool device, const ActivationView& out) {
          ActivationView view = x.view();
          view.data = device ? device_x : view.data;
          dense.Linear(device ? **device_weights : **host_weights, view, first_out,
                       {static_cast<float*>(out.data), out.rows, out.cols, out.stride});
        };
        Compare(rows, 128, DType::kF32, product, kProductError * static_cast<double>(in));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaDenseTest,
                         testing::Values(RowsCase{1, 1}, RowsCase{3, 255}, RowsCase{2, 256},
                                         RowsCase{5, 1027}, RowsCase{33, 64}, RowsCase{2, 5001}),
                         [](const testing::TestParamInfo<RowsCase>& tested) {
                           return absl::StrCat(tested.param.rows, "x", tested.param.cols);
                         });

TEST_F(CudaDenseTest, RopeOfBothLayouts) {
  for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kInterleaved}) {
    for (const uint32_t rotary : {64u, 16u, 2u, 0u}) {
      constexpr size_t kHeadDim = 64;
      constexpr size_t kHeads = 3;
      const size_t cols = 4 * kHeadDim + 5;  // A head that is not rotated, and more.
      const size_t rows = 7;
      const std::vector<float> x = RandomFloats(rows * cols, 11);
      std::vector<float> frequencies(rotary / 2);
      for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] = std::pow(10000.0f, -2.0f * static_cast<float>(i) / 64.0f);
      }
      const std::vector<uint32_t> positions = {0, 1, 2, 1000, 131071, 7, 123456};
      const auto device_x = Upload(x, rows, cols);
      const float* device_frequencies = DeviceTest::Upload(frequencies);
      const uint32_t* device_positions = DeviceTest::Upload(positions);
      Compare(rows, cols, DType::kBF16, [&](Dense& dense, bool device, const ActivationView& out) {
        const RopeTable table = {
            .layout = layout,
            .rotary_dim = rotary,
            .magnitude = 1.25f,
            .frequencies = {device ? device_frequencies : frequencies.data(), frequencies.size()}};
        dense.RopeAndRound(device ? device_x : Packed(x.data(), rows, cols), kHeads, kHeadDim,
                           table, {device ? device_positions : positions.data(), rows},
                           {static_cast<BFloat16*>(out.data), out.rows, out.cols, out.stride});
      });
    }
  }
}

TEST_F(CudaDenseTest, RowsAreFinishedAndStoredInOneCall) {
  const Mover mover = {
      .up = [this](const std::vector<std::byte>& bytes) { return DeviceTest::Upload(bytes); },
      .down = [this](const std::byte* from, size_t bytes) { return Download(from, bytes); }};
  for (const FinishCase& c : FinishCases()) {
    CheckFinishQkv(*dense_, c, mover);
    const absl::Status status = dense_->Check();
    EXPECT_TRUE(status.ok()) << c.name << ": " << status;
  }
}

TEST_F(CudaDenseTest, ARowOfAProductDoesNotDependOnTheOthers) {
  // The second is narrow and deep, so that sums may be split.
  for (const auto& [in, out_features] : {std::pair<size_t, size_t>{1024, 512}, {8192, 256}}) {
    const std::vector<float> weights = RandomFloats(out_features * in, 12, 0.05);
    const auto packed = dense_->Pack(weights.data(), DType::kF32, out_features, in, {});
    ASSERT_TRUE(packed.ok()) << packed.status();
    Activations x = Activations::Random(kDecodeRows, in, DType::kBF16, 13);
    const auto* raw = static_cast<const BFloat16*>(x.view().data);
    BFloat16* device_x = DeviceTest::Upload(std::vector<BFloat16>(raw, raw + kDecodeRows * in));
    float* out = Make<float>(kDecodeRows * out_features);
    const auto product = [&, in = in, n = out_features](size_t first, size_t rows) {
      dense_->Linear(**packed, {device_x + first * in, rows, in, in, DType::kBF16}, 0,
                     {out + first * n, rows, n, n});
      EXPECT_TRUE(dense_->Check().ok());
      return Download(out + first * n, rows * n);
    };

    const std::vector<float> together = product(0, kDecodeRows);

    for (const size_t rows : {1, 2, 7, 8, 33, 64, 127}) {
      const size_t first = kDecodeRows - rows;
      const std::vector<float> alone = product(first, rows);
      for (size_t i = 0; i < alone.size(); ++i) {
        ASSERT_TRUE(SameBits(alone[i], together[first * out_features + i]))
            << in << " inputs, " << rows << " rows, " << i;
      }
    }
  }
}

TEST_F(CudaDenseTest, NoRowsAreNoError) {
  float* x = Make<float>(16);
  dense_->Add({x, 0, 16, 16}, {x, 0, 16, 16}, {x, 0, 16, 16});
  dense_->Activate(Activation::kSilu, {x, 0, 16, 16}, {x, 0, 16, 16, DType::kF32});

  EXPECT_TRUE(dense_->Check().ok());
  EXPECT_TRUE(stream().Synchronize().ok());
}

TEST_F(CudaDenseTest, AnArenaWithoutRoomForTheWorkspaceIsAnError) {
  auto arena = MemoryArena::Create(ArenaKind::kDevice, 1 << 16);
  ASSERT_TRUE(arena.ok());

  const auto dense = MakeCudaDense({.workspace_bytes = 1 << 17}, *arena, stream());

  EXPECT_EQ(dense.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lamina::kernels::cuda

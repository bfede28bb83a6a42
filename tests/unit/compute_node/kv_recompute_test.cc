// SPDX-License-Identifier: Apache-2.0
//
// K and V that are made again, on a processor whose products of some columns alone have the bits of
// all columns together, and on one where they do not.

#include "compute_node/kv_recompute.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/philox.h"
#include "kernels/attention.h"
#include "kernels/dense.h"
#include "tests/unit/compute_node/slice_program.h"

namespace lamina::compute_node {
namespace {

// The reference, which counts products that leave columns out, and may give these other bits.
class ColumnsAlone final : public kernels::Dense {
 public:
  ColumnsAlone(float factor, int& products) : factor_(factor), products_(products) {}

  std::string description() const override { return reference_->description(); }
  DType compute_type() const override { return reference_->compute_type(); }
  absl::StatusOr<std::unique_ptr<kernels::PackedLinear>> Pack(
      const void* weights, DType dtype, size_t out_features, size_t in_features,
      absl::Span<const float> bias) override {
    return reference_->Pack(weights, dtype, out_features, in_features, bias);
  }
  absl::Status Prepare(const kernels::PackedLinear& weights, size_t rows_max) override {
    return reference_->Prepare(weights, rows_max);
  }
  void Linear(const kernels::PackedLinear& weights, const kernels::ActivationView& in,
              size_t first_out, kernels::MatrixView<float> out) override {
    reference_->Linear(weights, in, first_out, out);
    if (first_out == 0) {
      return;
    }
    ++products_;
    for (size_t row = 0; row < out.rows; ++row) {
      for (size_t col = 0; col < out.cols; ++col) {
        out.row(row)[col] *= factor_;
      }
    }
  }
  void LinearEach(absl::Span<const kernels::LinearPart> parts) override {
    reference_->LinearEach(parts);
  }
  void RmsNorm(kernels::MatrixView<const float> x, absl::Span<const float> weight, float epsilon,
               const kernels::ActivationView& out) override {
    reference_->RmsNorm(x, weight, epsilon, out);
  }
  void LayerNorm(kernels::MatrixView<const float> x, absl::Span<const float> weight,
                 absl::Span<const float> bias, float epsilon,
                 const kernels::ActivationView& out) override {
    reference_->LayerNorm(x, weight, bias, epsilon, out);
  }
  void RopeAndRound(kernels::MatrixView<const float> x, size_t heads, size_t head_dim,
                    const kernels::RopeTable& table, absl::Span<const uint32_t> positions,
                    kernels::MatrixView<BFloat16> out) override {
    reference_->RopeAndRound(x, heads, head_dim, table, positions, out);
  }
  void GatedActivation(kernels::Activation activation, kernels::MatrixView<const float> x,
                       const kernels::ActivationView& out) override {
    reference_->GatedActivation(activation, x, out);
  }
  void Activate(kernels::Activation activation, kernels::MatrixView<const float> x,
                const kernels::ActivationView& out) override {
    reference_->Activate(activation, x, out);
  }
  void Add(kernels::MatrixView<const float> a, kernels::MatrixView<const float> b,
           kernels::MatrixView<float> out) override {
    reference_->Add(a, b, out);
  }
  void Convert(kernels::MatrixView<const BFloat16> x, const kernels::ActivationView& out) override {
    reference_->Convert(x, out);
  }
  void Round(kernels::MatrixView<const float> x, const kernels::ActivationView& out) override {
    reference_->Round(x, out);
  }
  void NormHeads(kernels::MatrixView<const float> x, const kernels::HeadNorms& norms,
                 kernels::MatrixView<float> out) override {
    reference_->NormHeads(x, norms, out);
  }
  void Scale(kernels::MatrixView<const float> x, float factor, float soft_cap,
             kernels::MatrixView<float> out) override {
    reference_->Scale(x, factor, soft_cap, out);
  }
  void Embed(const void* table, DType dtype, size_t width, absl::Span<const uint32_t> ids,
             kernels::MatrixView<float> out) override {
    reference_->Embed(table, dtype, width, ids, out);
  }

 private:
  const std::unique_ptr<kernels::Dense> reference_ = kernels::MakeReferenceDense(DType::kBF16);
  const float factor_;
  int& products_;
};

constexpr float kSameBits = 1.0f;
constexpr float kOtherBits = 1.0f + 1.0f / 64;

class Recomputing {
 public:
  Recomputing(const test_support::RandomModelSpec& spec, float factor)
      : program_(spec, DType::kBF16, /*slices_end=*/UINT32_MAX, [this, factor](ThreadPool& pool) {
          return kernels::MakeCpuComputeDevice(std::make_unique<ColumnsAlone>(factor, products_),
                                               kernels::CpuAttention(), pool);
        }) {
    SliceExecutor& executor = program_.executor();
    EXPECT_TRUE(executor.Prepare(KvRecompute::kRows).ok());
    for (uint32_t slice = 0; slice + 1 < executor.slice_count(); ++slice) {
      config_.layers.push_back(executor.attention(slice).descriptor);
    }
    config_.activation_width = executor.program().Width(KvInputOf(executor.program(), 0));
  }

  uint32_t layers() const { return static_cast<uint32_t>(config_.layers.size()); }
  const AttentionDescriptor& shape(uint32_t layer) const { return config_.layers[layer]; }
  // Products without the first columns so far.
  int products() const { return products_; }
  plan::EpochConfig& config() { return config_; }
  KvRecompute& recompute() { return recompute_; }

  // Bits of K and V of some tokens.
  std::vector<uint16_t> Make(uint32_t layer) {
    constexpr uint32_t kTokens = 16;
    const size_t width = config_.activation_width;
    Prng random(layer);
    std::vector<BFloat16> activations(kTokens * width);
    for (BFloat16& value : activations) {
      value = ToBFloat16(static_cast<float>(random.Below(2001)) / 1000.0f - 1.0f);
    }
    std::vector<const BFloat16*> from;
    for (size_t token = 0; token < kTokens; ++token) {
      from.push_back(activations.data() + token * width);
    }
    std::vector<uint32_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), 0);
    const Extent slots{.first_slot = 0, .tokens = kTokens};
    std::vector<BFloat16> kv(2 * kTokens * shape(layer).kv_width());
    const KvRecompute::Planes planes{.heads = AllHeads(shape(layer)),
                                     .k = kv.data(),
                                     .v = kv.data() + kv.size() / 2,
                                     .head_stride = size_t{kTokens} * shape(layer).head_dim};
    const absl::Status made = recompute_.Run(layer,
                                             {.widths = {&config_.activation_width, 1},
                                              .activations = from,
                                              .positions = positions,
                                              .slots = {&slots, 1}},
                                             {&planes, 1});
    EXPECT_TRUE(made.ok()) << made;
    std::vector<uint16_t> bits;
    for (const BFloat16 value : kv) {
      bits.push_back(value.bits);
    }
    return bits;
  }

 private:
  int products_ = 0;
  Program program_;
  plan::EpochConfig config_;
  KvRecompute recompute_{config_, program_.executor()};
};

TEST(KvRecomputeTest, QueriesAreLeftOutWhereKAndVAloneHaveTheSameBits) {
  Recomputing model(Spec("llama"), kSameBits);
  ASSERT_TRUE(model.recompute().Prepare().ok());
  for (uint32_t layer = 0; layer < model.layers(); ++layer) {
    ASSERT_EQ(model.shape(layer).q_width(), 64u);
    EXPECT_EQ(model.recompute().first_column(layer), 64u) << layer;
    const int before = model.products();
    model.Make(layer);
    EXPECT_EQ(model.products(), before + 1) << layer;
  }
}

TEST(KvRecomputeTest, AllColumnsAreMadeWhereKAndVAloneHaveOtherBits) {
  for (const char* const type : {"llama", "qwen2", "opt", "gpt_neox_parallel"}) {
    SCOPED_TRACE(type);
    Recomputing same(Spec(type), kSameBits);
    Recomputing other(Spec(type), kOtherBits);
    ASSERT_TRUE(same.recompute().Prepare().ok());
    ASSERT_TRUE(other.recompute().Prepare().ok());
    const int probes = other.products();
    EXPECT_GT(probes, 0);
    for (uint32_t layer = 0; layer < other.layers(); ++layer) {
      EXPECT_EQ(other.recompute().first_column(layer), 0u) << layer;
      EXPECT_EQ(other.Make(layer), same.Make(layer)) << layer;
    }
    EXPECT_TRUE(other.recompute().Try(KvRecompute::kRows).ok());
    EXPECT_EQ(other.products(), probes) << "no column is left out any more";
  }
}

TEST(KvRecomputeTest, LayersOfOneShapeAreTriedOnce) {
  for (const float factor : {kSameBits, kOtherBits}) {
    Recomputing alike(Spec("qwen2"), factor);
    ASSERT_TRUE(alike.recompute().Prepare().ok());
    EXPECT_EQ(alike.products(), 1);
    test_support::RandomModelSpec windows = Spec("qwen2");
    windows.window = 8;
    windows.window_first_layer = 1;
    Recomputing different(windows, factor);
    ASSERT_NE(different.shape(0), different.shape(1));
    ASSERT_TRUE(different.recompute().Prepare().ok());
    EXPECT_EQ(different.products(), 2);
    for (uint32_t layer = 0; layer < different.layers(); ++layer) {
      EXPECT_EQ(different.recompute().first_column(layer), factor == kSameBits ? 64u : 0u) << layer;
    }
  }
}

TEST(KvRecomputeTest, AnotherActivationThanThatOfKAndVIsRefused) {
  Recomputing model(Spec("llama"), kSameBits);
  ++model.config().activation_width;
  const absl::Status prepared = model.recompute().Prepare();
  EXPECT_TRUE(absl::IsUnimplemented(prepared)) << prepared;
}

}  // namespace
}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// Our own linear layer: packs weights into panels and spreads panels over the pool. See
// own_linear_tiles.h for the layout and the order of the sums.

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "hwy/aligned_allocator.h"
#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/own_linear_tiles.h"

namespace lamina::kernels::cpu {
namespace {

// Rows that go through a panel before the next panel: their f32 copy stays in the second cache.
constexpr size_t kRowsAtOnce = 64;

uint32_t Bits(const WeightView& weights, DType compute_type, size_t out, size_t in) {
  if (out >= weights.out_features || in >= weights.in_features) {
    return 0;
  }
  const size_t index = out * weights.in_features + in;
  if (weights.dtype == DType::kBF16) {
    const BFloat16 value = static_cast<const BFloat16*>(weights.data)[index];
    return compute_type == DType::kBF16 ? value.bits : std::bit_cast<uint32_t>(ToFloat(value));
  }
  const float value = static_cast<const float*>(weights.data)[index];
  return compute_type == DType::kBF16 ? ToBFloat16(value).bits : std::bit_cast<uint32_t>(value);
}

class OwnWeights final : public EngineWeights {
 public:
  OwnWeights(LinearEngine& engine, const WeightView& weights, DType compute_type)
      : EngineWeights(engine, weights),
        steps_(compute_type == DType::kBF16 ? (weights.in_features + 1) / 2 : weights.in_features),
        panels_((weights.out_features + kPanelFeatures - 1) / kPanelFeatures),
        words_(hwy::AllocateAligned<uint32_t>(std::max<size_t>(1, word_count()))),
        bias_(panels_ * kPanelFeatures, 0.0f) {
    std::copy(weights.bias.begin(), weights.bias.end(), bias_.begin());
  }

  bool allocated() const { return words_ != nullptr; }

  void Fill(const WeightView& weights, DType compute_type) {
    uint32_t* word = words_.get();
    for (size_t panel = 0; panel < panels_; ++panel) {
      for (size_t strip = 0; strip < kPanelFeatures; strip += kStripFeatures) {
        for (size_t step = 0; step < steps_; ++step) {
          for (size_t feature = strip; feature < strip + kStripFeatures; ++feature) {
            *word++ = Word(weights, compute_type, panel * kPanelFeatures + feature, step);
          }
        }
      }
    }
  }

  uint64_t bytes() const override {
    return word_count() * sizeof(uint32_t) + bias_.size() * sizeof(float);
  }
  size_t steps() const { return steps_; }
  // Null behind the last.
  const uint32_t* panel(size_t index) const {
    return index < panels_ ? words_.get() + index * steps_ * kPanelFeatures : nullptr;
  }
  const float* bias(size_t panel) const { return bias_.data() + panel * kPanelFeatures; }

 private:
  static uint32_t Word(const WeightView& weights, DType compute_type, size_t out, size_t step) {
    if (compute_type == DType::kF32) {
      return Bits(weights, compute_type, out, step);
    }
    return Bits(weights, compute_type, out, 2 * step) |
           Bits(weights, compute_type, out, 2 * step + 1) << 16;
  }
  size_t word_count() const { return panels_ * steps_ * kPanelFeatures; }

  size_t steps_;
  size_t panels_;
  hwy::AlignedFreeUniquePtr<uint32_t[]> words_;  // [panels][4][steps][16]
  std::vector<float> bias_;                      // [panels * 64]
};

class OwnLinearEngine final : public LinearEngine {
 public:
  OwnLinearEngine(DType compute_type, ThreadPool& pool)
      : compute_type_(compute_type), pool_(pool) {}

  std::string description() const override {
    return absl::StrCat("highway rows ", PanelTargetName());
  }

  absl::StatusOr<std::unique_ptr<EngineWeights>> Pack(const WeightView& weights) override {
    auto packed = std::make_unique<OwnWeights>(*this, weights, compute_type_);
    if (!packed->allocated()) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory to pack a linear layer of ",
                                                       weights.out_features, " x ",
                                                       weights.in_features));
    }
    packed->Fill(weights, compute_type_);
    return packed;
  }

  absl::Status Prepare(const EngineWeights& weights, size_t rows_max) override {
    Reserve(static_cast<const OwnWeights&>(weights), rows_max);
    return absl::OkStatus();
  }

  void Linear(const EngineWeights& weights, const ActivationView& in, size_t first_out,
              MatrixView<float> out) override {
    const auto& own = static_cast<const OwnWeights&>(weights);
    LAMINA_CHECK(first_out % kPanelFeatures == 0);
    const MatrixView<const float> x = Widen(own, in);
    const size_t panels = (out.cols + kPanelFeatures - 1) / kPanelFeatures;
    const size_t row_blocks = (x.rows + kRowsAtOnce - 1) / kRowsAtOnce;
    const auto body = [&](size_t index, size_t /*worker*/) {
      const size_t row_block = index / panels;
      Multiply(
          own,
          x.Rows(row_block * kRowsAtOnce, std::min(kRowsAtOnce, x.rows - row_block * kRowsAtOnce)),
          first_out / kPanelFeatures, index % panels, row_block * kRowsAtOnce, out);
    };
    pool_.Run(panels * row_blocks, std::ref(body));
  }

 private:
  void Reserve(const OwnWeights& weights, size_t rows) {
    if (compute_type_ == DType::kBF16 && widened_.size() < rows * 2 * weights.steps()) {
      widened_.resize(rows * 2 * weights.steps());
    }
  }

  // The input as f32, an odd last feature completed by a zero.
  MatrixView<const float> Widen(const OwnWeights& weights, const ActivationView& in) {
    if (compute_type_ == DType::kF32) {
      return {static_cast<const float*>(in.data), in.rows, in.cols, in.stride};
    }
    Reserve(weights, in.rows);
    const size_t stride = 2 * weights.steps();
    for (size_t i = 0; i < in.rows; ++i) {
      const BFloat16* from = static_cast<const BFloat16*>(in.data) + i * in.stride;
      float* to = widened_.data() + i * stride;
      for (size_t k = 0; k < in.cols; ++k) {
        to[k] = ToFloat(from[k]);
      }
      std::fill(to + in.cols, to + stride, 0.0f);
    }
    return {widened_.data(), in.rows, stride, stride};
  }

  void Multiply(const OwnWeights& weights, MatrixView<const float> x, size_t first_panel,
                size_t panel, size_t row, MatrixView<float> out) const {
    PanelTask task;
    task.panel = weights.panel(first_panel + panel);
    task.next = weights.panel(first_panel + panel + pool_.threads_in_use());
    task.steps = weights.steps();
    task.in = x.data;
    task.in_stride = x.stride;
    task.rows = x.rows;
    task.bias = weights.bias(first_panel + panel);
    task.out = out.row(row) + panel * kPanelFeatures;
    task.out_stride = out.stride;
    task.features = std::min(kPanelFeatures, out.cols - panel * kPanelFeatures);
    compute_type_ == DType::kBF16 ? MultiplyPanelBF16(task) : MultiplyPanelF32(task);
  }

  DType compute_type_;
  ThreadPool& pool_;
  std::vector<float> widened_;
};

}  // namespace

std::unique_ptr<LinearEngine> MakeOwnLinearEngine(DType compute_type, ThreadPool& pool) {
  return std::make_unique<OwnLinearEngine>(compute_type, pool);
}

}  // namespace lamina::kernels::cpu

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

// Steps of a strip that are filled feature by feature: what is read and what is written stay in the
// first cache.
constexpr size_t kStepsAtOnce = 64;

uint32_t Half(BFloat16 value) { return value.bits; }
uint32_t Half(float value) { return ToBFloat16(value).bits; }
uint32_t Whole(BFloat16 value) { return std::bit_cast<uint32_t>(ToFloat(value)); }
uint32_t Whole(float value) { return std::bit_cast<uint32_t>(value); }

// Words [first, last) of one feature, whose `inputs` weights are at `row`, to every 16th word from
// `to` on. An odd last input is completed by a zero.
template <class Element>
void FillFeature(const Element* row, size_t inputs, DType compute_type, size_t first, size_t last,
                 uint32_t* to) {
  for (size_t step = first; step < last; ++step, to += kStripFeatures) {
    if (compute_type == DType::kF32) {
      *to = Whole(row[step]);
    } else {
      const uint32_t odd = 2 * step + 1 < inputs ? Half(row[2 * step + 1]) : 0;
      *to = Half(row[2 * step]) | odd << 16;
    }
  }
}

class OwnWeights final : public EngineWeights {
 public:
  OwnWeights(LinearEngine& engine, const WeightView& weights, DType compute_type)
      : EngineWeights(engine, weights),
        steps_(compute_type == DType::kBF16 ? (weights.in_features + 1) / 2 : weights.in_features),
        panels_((weights.out_features + kPanelFeatures - 1) / kPanelFeatures),
        words_(hwy::AllocateAligned<uint32_t>(std::max<size_t>(1, word_count()))),
        at_(words_.get()),
        bias_(panels_ * kPanelFeatures, 0.0f) {
    std::copy(weights.bias.begin(), weights.bias.end(), bias_.begin());
  }

  bool allocated() const { return words_ != nullptr; }

  void Fill(const WeightView& weights, DType compute_type) {
    uint32_t* strip = words_.get();
    for (size_t first = 0; first < panels_ * kPanelFeatures; first += kStripFeatures) {
      for (size_t step = 0; step < steps_; step += kStepsAtOnce) {
        const size_t end = std::min(step + kStepsAtOnce, steps_);
        for (size_t feature = 0; feature < kStripFeatures; ++feature) {
          FillWords(weights, compute_type, first + feature, step, end,
                    strip + step * kStripFeatures + feature);
        }
      }
      strip += steps_ * kStripFeatures;
    }
  }

  uint64_t bytes() const override {
    return word_count() * sizeof(uint32_t) + bias_.size() * sizeof(float);
  }
  std::vector<absl::Span<std::byte>> Pieces() override {
    return {{reinterpret_cast<std::byte*>(at_), word_count() * sizeof(uint32_t)}};
  }
  void Place(absl::Span<std::byte* const> at) override {
    words_.reset();
    at_ = reinterpret_cast<uint32_t*>(at[0]);
  }

  size_t steps() const { return steps_; }
  const uint32_t* panel(size_t index) const { return at_ + index * steps_ * kPanelFeatures; }
  const float* bias(size_t panel) const { return bias_.data() + panel * kPanelFeatures; }

 private:
  // Features behind the last are zeros.
  static void FillWords(const WeightView& weights, DType compute_type, size_t feature, size_t first,
                        size_t last, uint32_t* to) {
    if (feature >= weights.out_features) {
      for (size_t step = first; step < last; ++step, to += kStripFeatures) {
        *to = 0;
      }
      return;
    }
    const size_t inputs = weights.in_features;
    const size_t row = feature * inputs;
    if (weights.dtype == DType::kBF16) {
      FillFeature(static_cast<const BFloat16*>(weights.data) + row, inputs, compute_type, first,
                  last, to);
    } else {
      FillFeature(static_cast<const float*>(weights.data) + row, inputs, compute_type, first, last,
                  to);
    }
  }
  size_t word_count() const { return panels_ * steps_ * kPanelFeatures; }

  size_t steps_;
  size_t panels_;
  hwy::AlignedFreeUniquePtr<uint32_t[]> words_;  // [panels][4][steps][16]; none where moved.
  uint32_t* at_;                                 // Where these are now.
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
    Reserve(rows_max * 2 * static_cast<const OwnWeights&>(weights).steps());
    return absl::OkStatus();
  }

  void Multiply(absl::Span<const EngineProduct> products) override {
    tasks_.clear();
    WidenAll(products);
    for (size_t i = 0; i < products.size(); ++i) {
      ListTasks(products[i], inputs_[i]);
    }
    const auto body = [&](size_t index, size_t /*worker*/) { Run(index); };
    pool_.Run(tasks_.size(), std::ref(body));
  }

 private:
  // One panel for at most kRowsAtOnce rows.
  struct Task {
    const OwnWeights* weights;
    size_t panel;
    MatrixView<const float> in;
    MatrixView<float> out;  // The panel's columns.
  };

  void Reserve(size_t floats) {
    if (compute_type_ == DType::kBF16 && widened_.size() < floats) {
      widened_.resize(floats);
    }
  }

  // inputs_: each product's input as f32, an odd last feature completed by a zero.
  void WidenAll(absl::Span<const EngineProduct> products) {
    size_t floats = 0;
    for (const EngineProduct& product : products) {
      floats += product.in.rows * 2 * WeightsOf(product).steps();
    }
    Reserve(floats);
    inputs_.clear();
    float* to = widened_.data();
    for (const EngineProduct& product : products) {
      const ActivationView& in = product.in;
      if (compute_type_ == DType::kF32) {
        inputs_.push_back({static_cast<const float*>(in.data), in.rows, in.cols, in.stride});
        continue;
      }
      const size_t stride = 2 * WeightsOf(product).steps();
      inputs_.push_back({to, in.rows, stride, stride});
      for (size_t i = 0; i < in.rows; ++i, to += stride) {
        const BFloat16* from = static_cast<const BFloat16*>(in.data) + i * in.stride;
        std::transform(from, from + in.cols, to, [](BFloat16 x) { return ToFloat(x); });
        std::fill(to + in.cols, to + stride, 0.0f);
      }
    }
  }

  void ListTasks(const EngineProduct& product, MatrixView<const float> x) {
    LAMINA_CHECK(product.first_out % kPanelFeatures == 0);
    const MatrixView<float>& out = product.out;
    const size_t first_panel = product.first_out / kPanelFeatures;
    for (size_t row = 0; row < x.rows; row += kRowsAtOnce) {
      const size_t rows = std::min(kRowsAtOnce, x.rows - row);
      for (size_t col = 0; col < out.cols; col += kPanelFeatures) {
        tasks_.push_back(
            {&WeightsOf(product),
             first_panel + col / kPanelFeatures,
             x.Rows(row, rows),
             {out.row(row) + col, rows, std::min(kPanelFeatures, out.cols - col), out.stride}});
      }
    }
  }

  void Run(size_t index) const {
    const Task& task = tasks_[index];
    PanelTask panel;
    panel.panel = task.weights->panel(task.panel);
    panel.steps = task.weights->steps();
    const size_t next = index + pool_.threads_in_use();
    if (next < tasks_.size() && tasks_[next].weights->steps() == panel.steps) {
      panel.next = tasks_[next].weights->panel(tasks_[next].panel);
    }
    panel.in = task.in.data;
    panel.in_stride = task.in.stride;
    panel.rows = task.in.rows;
    panel.bias = task.weights->bias(task.panel);
    panel.out = task.out.data;
    panel.out_stride = task.out.stride;
    panel.features = task.out.cols;
    compute_type_ == DType::kBF16 ? MultiplyPanelBF16(panel) : MultiplyPanelF32(panel);
  }

  static const OwnWeights& WeightsOf(const EngineProduct& product) {
    return static_cast<const OwnWeights&>(*product.weights);
  }

  DType compute_type_;
  ThreadPool& pool_;
  std::vector<float> widened_;
  std::vector<MatrixView<const float>> inputs_;
  std::vector<Task> tasks_;
};

}  // namespace

std::unique_ptr<LinearEngine> MakeOwnLinearEngine(DType compute_type, ThreadPool& pool) {
  return std::make_unique<OwnLinearEngine>(compute_type, pool);
}

}  // namespace lamina::kernels::cpu

// SPDX-License-Identifier: Apache-2.0
//
// Weights as panels of words: [panels][4][steps][16].

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kernels/cpu/panel_weights.h"
#include "kernels/cpu/weight_memory.h"

namespace lamina::kernels::cpu {
namespace {

// Steps of a strip that are filled feature by feature: what is read and what is written stay in the
// first cache.
constexpr size_t kStepsAtOnce = 64;

uint32_t Half(BFloat16 value) { return value.bits; }
uint32_t Half(float value) { return ToBFloat16(value).bits; }
uint32_t Whole(BFloat16 value) { return std::bit_cast<uint32_t>(ToFloat(value)); }
uint32_t Whole(float value) { return std::bit_cast<uint32_t>(value); }

// Words [first, last) of one feature, whose `inputs` weights are at `row`, to every 16th word from
// `to` on. Zeros stand behind the last input.
template <class Element>
void FillFeature(const Element* row, size_t inputs, DType compute_type, size_t first, size_t last,
                 uint32_t* to) {
  for (size_t step = first; step < last; ++step, to += kStripFeatures) {
    if (compute_type == DType::kF32) {
      *to = Whole(row[step]);
    } else {
      const uint32_t even = 2 * step < inputs ? Half(row[2 * step]) : 0;
      const uint32_t odd = 2 * step + 1 < inputs ? Half(row[2 * step + 1]) : 0;
      *to = even | odd << 16;
    }
  }
}

class WordPanels final : public PanelWeights {
 public:
  WordPanels(LinearEngine& engine, const WeightView& weights, DType compute_type,
             size_t steps_together)
      : PanelWeights(engine,
                     {.in_features = weights.in_features,
                      .out_features = weights.out_features,
                      .bias = weights.bias,
                      .steps_together = steps_together},
                     compute_type == DType::kBF16 ? 2 : 1),
        words_(word_count() * sizeof(uint32_t)),
        at_(reinterpret_cast<uint32_t*>(words_.data())) {}

  bool allocated() const { return at_ != nullptr; }

  void Fill(const WeightView& weights, DType compute_type) {
    uint32_t* strip = at_;
    for (size_t first = 0; first < panels() * kPanelFeatures; first += kStripFeatures) {
      for (size_t step = 0; step < steps(); step += kStepsAtOnce) {
        const size_t end = std::min(step + kStepsAtOnce, steps());
        for (size_t feature = 0; feature < kStripFeatures; ++feature) {
          FillWords(weights, compute_type, first + feature, step, end,
                    strip + step * kStripFeatures + feature);
        }
      }
      strip += steps() * kStripFeatures;
    }
  }

  uint64_t bytes() const override { return word_count() * sizeof(uint32_t) + bias_bytes(); }
  std::vector<absl::Span<std::byte>> Pieces() override {
    return {{reinterpret_cast<std::byte*>(at_), word_count() * sizeof(uint32_t)}};
  }
  // Panels follow each other.
  size_t FirstByte(size_t /*piece*/, size_t first_out) const override {
    return first_out * steps() * sizeof(uint32_t);
  }
  void Place(absl::Span<std::byte* const> at) override {
    words_ = WeightMemory();
    at_ = reinterpret_cast<uint32_t*>(at[0]);
  }

  PanelWords Words(const PanelPart& part, size_t first, size_t /*count*/,
                   uint32_t* /*scratch*/) const override {
    const size_t strip_words = steps() * kStripFeatures;
    return {Ahead(part.panel) + part.strip * strip_words + first * kStripFeatures, strip_words};
  }
  bool widens() const override { return false; }
  bool words_are_exact() const override { return true; }
  const uint32_t* Ahead(size_t panel) const override {
    return at_ + panel * steps() * kPanelFeatures;
  }

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
  size_t word_count() const { return panels() * steps() * kPanelFeatures; }

  WeightMemory words_;  // [panels][4][steps][16]; none where moved.
  uint32_t* at_;        // Where these are now.
};

}  // namespace

absl::StatusOr<std::unique_ptr<PanelWeights>> PackWords(LinearEngine& engine,
                                                        const WeightView& weights,
                                                        DType compute_type, size_t steps_together) {
  LAMINA_CHECK(compute_type == DType::kBF16 || steps_together == 1);
  auto packed = std::make_unique<WordPanels>(engine, weights, compute_type, steps_together);
  if (!packed->allocated()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory to pack a linear layer of ", weights.out_features, " x ", weights.in_features));
  }
  packed->Fill(weights, compute_type);
  return packed;
}

}  // namespace lamina::kernels::cpu

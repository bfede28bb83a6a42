// SPDX-License-Identifier: Apache-2.0
//
// PanelWeights: weights of our own linear layers, in panels of words (panel_task.h), or in a form
// that becomes such words right before a product.
//
// Threading: constant while products run; Place() between them.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/block_pairs.h"
#include "kernels/cpu/linear_engine.h"
#include "kernels/cpu/panel_task.h"

namespace lamina::kernels::cpu {

// Some steps of some strips: words of the s-th one from `words + s * strip_words` on.
struct PanelWords {
  const uint32_t* words = nullptr;
  size_t strip_words = 0;
};

// Strips [strip, strip + strips) of a panel.
struct PanelPart {
  size_t panel = 0;
  size_t strip = 0;
  size_t strips = kPanelStrips;

  bool whole() const { return strips == kPanelStrips; }
};

class PanelWeights : public EngineWeights {
 public:
  struct Shape {
    size_t in_features = 0;  // Completed by zeros to whole steps, and to whole blocks of int8.
    size_t out_features = 0;
    absl::Span<const float> bias;  // [out_features] or empty.
    size_t steps_together = 1;     // Their number is a multiple of this.
  };

  // `inputs_per_step`: 2 for words of bf16, 1 for f32.
  PanelWeights(LinearEngine& engine, const Shape& shape, size_t inputs_per_step)
      : EngineWeights(engine, shape.in_features, shape.out_features),
        steps_(StepsOf(shape, inputs_per_step)),
        panels_((shape.out_features + kPanelFeatures - 1) / kPanelFeatures),
        has_bias_(!shape.bias.empty()),
        bias_(panels_ * kPanelFeatures, 0.0f) {
    std::copy(shape.bias.begin(), shape.bias.end(), bias_.begin());
  }

  // Steps [first, first + count) of a part of a panel. `scratch` has room for count words of each
  // of its features, aligned to a cache line; what is returned stays valid as long as that is not
  // written to. Requires: `first` a multiple of kStepsTogether.
  virtual PanelWords Words(const PanelPart& part, size_t first, size_t count,
                           uint32_t* scratch) const = 0;

  // Whether Words() makes them anew, in `scratch`; else they lie in memory.
  virtual bool widens() const = 0;

  // Whether words have the weights' subnormals too, which products of pairs take for zeros.
  virtual bool words_are_exact() const = 0;

  // How few rows are multiplied by a panel as it lies; `multiply` is null where they are not.
  struct FewRows {
    MultiplyFewRows multiply = nullptr;
    const uint8_t* panel = nullptr;
  };
  virtual FewRows FewRowsOf(size_t /*panel*/) const { return {}; }

  // A panel as it lies in memory, to be fetched ahead of time; null where that does not pay.
  virtual const uint32_t* Ahead(size_t panel) const = 0;

  // Steps of the largest block of any type.
  static constexpr size_t kStepsTogether = 128;

  size_t steps() const { return steps_; }
  size_t panels() const { return panels_; }
  bool has_bias() const { return has_bias_; }
  const float* bias(size_t panel) const { return bias_.data() + panel * kPanelFeatures; }
  uint64_t bias_bytes() const { return bias_.size() * sizeof(float); }

 private:
  static size_t StepsOf(const Shape& shape, size_t inputs_per_step) {
    const size_t together = inputs_per_step * shape.steps_together;
    return (shape.in_features + together - 1) / together * shape.steps_together;
  }

  size_t steps_;
  size_t panels_;
  bool has_bias_;
  std::vector<float> bias_;  // [panels * 64]
};

// Words as they are, in a multiple of `steps_together` steps. Errors: kResourceExhausted.
absl::StatusOr<std::unique_ptr<PanelWeights>> PackWords(LinearEngine& engine,
                                                        const WeightView& weights,
                                                        DType compute_type, size_t steps_together);

}  // namespace lamina::kernels::cpu

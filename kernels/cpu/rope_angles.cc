// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/rope_angles.h"

#include <cmath>

namespace lamina::kernels::cpu {

void RopeAngles::Update(const RopeTable& table, absl::Span<const uint32_t> positions) {
  if (positions == absl::MakeConstSpan(positions_) && magnitude_ == table.magnitude &&
      table.frequencies == absl::MakeConstSpan(frequencies_)) {
    return;
  }
  positions_.assign(positions.begin(), positions.end());
  frequencies_.assign(table.frequencies.begin(), table.frequencies.end());
  magnitude_ = table.magnitude;
  const size_t half = frequencies_.size();
  cosines_.resize(positions.size() * half);
  sines_.resize(positions.size() * half);
  for (size_t i = 0; i < positions.size(); ++i) {
    for (size_t j = 0; j < half; ++j) {
      // The product in f32, as transformers has it; cosine and sine of that exactly, then rounded.
      const float angle = static_cast<float>(positions[i]) * frequencies_[j];
      cosines_[i * half + j] = static_cast<float>(std::cos(double{angle}) * double{magnitude_});
      sines_[i * half + j] = static_cast<float>(std::sin(double{angle}) * double{magnitude_});
    }
  }
}

}  // namespace lamina::kernels::cpu

// SPDX-License-Identifier: Apache-2.0
//
// RopeAngles: cosines and sines of the rows of a step. Every layer of a kind asks for the same ones
// in a step, so the last answer is kept.
//
// Threading: one caller at a time.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/dense.h"

namespace lamina::kernels::cpu {

class RopeAngles {
 public:
  // Makes cosines() and sines() those of `positions`. Allocates when there are more than ever.
  void Update(const RopeTable& table, absl::Span<const uint32_t> positions);

  // Whether the last Update() was for this table.
  bool Is(const RopeTable& table) const {
    return magnitude_ == table.magnitude && table.frequencies == absl::MakeConstSpan(frequencies_);
  }

  // [positions, rotary_dim / 2] f32, times the table's magnitude.
  const float* cosines() const { return cosines_.data(); }
  const float* sines() const { return sines_.data(); }

 private:
  // What the arrays below were made from.
  std::vector<uint32_t> positions_;
  std::vector<float> frequencies_;
  float magnitude_ = 0;

  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace lamina::kernels::cpu

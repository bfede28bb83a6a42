// SPDX-License-Identifier: Apache-2.0
//
// Bounds on what a template may cost. A template is a stranger's program over a stranger's text:
// nothing that it does may take unbounded time, memory or stack.
//
// Budget: counts what one rendering has used. Belongs to one thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace lamina::jinja {

inline constexpr size_t kSourceBytesMax = size_t{1} << 20;
inline constexpr uint64_t kStepsMax = 5'000'000;
// Making or reading this many bytes of text counts as a step, so a rendering makes at most
// kStepsMax * kBytesPerStep = 160 MB of it.
inline constexpr size_t kBytesPerStep = 32;
// How deep expressions and statements nest, and data structures.
inline constexpr int kNestingMax = 100;
// How deep all that runs nests, macro calls included: bounds the stack.
inline constexpr int kDepthMax = 500;
// What Jinja's sandbox allows.
inline constexpr int64_t kRangeMax = 100'000;

class Budget {
 public:
  // Errors: kInvalidArgument  the rendering has used kStepsMax steps.
  absl::Status Spend(uint64_t steps) {
    if (steps > left_) {
      return absl::InvalidArgumentError("rendering takes too long; the limit is 5000000 steps");
    }
    left_ -= steps;
    return absl::OkStatus();
  }
  absl::Status SpendBytes(size_t bytes) { return Spend(1 + bytes / kBytesPerStep); }

  uint64_t used() const { return kStepsMax - left_; }

 private:
  uint64_t left_ = kStepsMax;
};

}  // namespace lamina::jinja

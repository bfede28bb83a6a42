// SPDX-License-Identifier: Apache-2.0
//
// CapturedSlices: the runs of slices that have been captured for one ValueBuffers, where the
// device can (kernels/compute_device.h, Capture()): which ranges of ops, for which numbers of rows.
//
// A run takes the next number of rows that is captured. The rows behind its own are computed on
// whatever lies there, with token 0 at position 0, and nobody reads them: a row depends on itself
// alone.
//
// Threading: one thread. Ownership: the buffers' memory, which captured graphs name, must stay in
// place.

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "compute_node/slice_program.h"
#include "kernels/compute_device.h"

namespace lamina::compute_node {

class CapturedSlices {
 public:
  // Rows that runs are captured for. Twice as many at first, where a slice takes as long as its
  // weights are read; then at most half as many again. All within the rows that a device's products
  // have one algorithm for (kernels/cuda/dense.h), so that a row keeps its bits.
  static constexpr std::array<size_t, 11> kRows = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};

  struct Work {
    std::vector<OpRange> ranges;  // Ranges run if their weights are here.
    size_t rows_max = 0;          // At least so many rows, as far as kRows goes.
    size_t rows_limit = 0;        // Never more rows than these.
    absl::FunctionRef<bool(const OpRange&)> has_weights;
    // Runs on rows that are in the buffers.
    absl::FunctionRef<void(const OpRange&, size_t rows)> run;
  };

  // Captures the work; runs each range once, on one row. Nothing is captured if the device captures
  // nothing, or for no rows. Takes memory of the device.
  // Errors: those of the device. Nothing is captured then; everything runs op by op.
  absl::Status Capture(const Work& work, kernels::ComputeDevice& device);

  // Null: the range was not captured for so many rows.
  kernels::CapturedGraph* Find(const OpRange& range, size_t rows) const;

  // How many rows a run of `count` rows computes: the next number that is captured, or `count`.
  size_t RowsComputed(size_t count) const;

  // Numbers of rows that runs are captured for, ascending; empty: none are.
  absl::Span<const size_t> rows() const { return rows_; }
  size_t count() const;

 private:
  absl::Status CaptureRanges(const Work& work, kernels::ComputeDevice& device);

  std::vector<OpRange> ranges_;
  std::vector<size_t> rows_;
  // [ranges_][rows_]; null where the weights were not there.
  std::vector<std::unique_ptr<kernels::CapturedGraph>> captured_;
};

}  // namespace lamina::compute_node

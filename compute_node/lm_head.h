// SPDX-License-Identifier: Apache-2.0
//
// LmHead: the end of the last slice (final norm, LM head), on the rows that are sampled or scored.
//
// These rows are gathered into buffers of their own, at most kRows at once. The LM head is much
// wider than any other layer, so it runs in chunks of the vocabulary, each about as long as a
// slice, between which other lanes can run.
//
//   Begin(rows) --> Run(0) --> Run(column) ... --> width(): Logits()
//
// Threading: one thread.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/model_weights.h"
#include "compute_node/op_runner.h"
#include "compute_node/slice_program.h"
#include "compute_node/value_buffers.h"
#include "kernels/compute_device.h"
#include "kernels/matrix_view.h"

namespace lamina::compute_node {

class LmHead {
 public:
  // Rows at once: bounds the memory of the logits.
  static constexpr size_t kRows = 64;

  // References must outlive the head. `columns`: at once, a multiple of 64; 0 takes as many as have
  // about the weights of a slice, or all where a launch does not keep the caller.
  LmHead(const SliceProgram& program, const ModelWeights& weights, const OpRunner& runner,
         kernels::ComputeDevice& device, size_t columns);

  // For what Begin() and Run() make. Errors: those of the device.
  absl::StatusOr<ValueBuffers> MakeBuffers() const;

  // Gathers rows `chosen`, ascending, of what the last slice's body left in `body`, and runs all
  // that comes before the LM head on them. Requires: at most kRows.
  void Begin(ValueBuffers& body, absl::Span<const uint32_t> chosen, ValueBuffers& tail) const;
  // Runs the next chunk of the LM head on these `rows`, from column `first` (0 at first), and
  // returns the column after it, which is width() when all are done.
  size_t Run(size_t rows, size_t first, ValueBuffers& tail) const;
  size_t width() const { return program_.Width(program_.graph().logits); }

  // [rows, width()], when all chunks have run: on the host, once they have been brought there, and
  // on the device.
  kernels::MatrixView<const float> Logits(size_t rows, ValueBuffers& tail) const;
  kernels::MatrixView<const float> DeviceLogits(size_t rows, ValueBuffers& tail) const;
  // Brings the logits of these rows, if any, to the host; waits for what runs on logits too.
  // Errors: those of the device.
  absl::Status LogitsToHost(absl::Span<const uint32_t> rows, ValueBuffers& tail) const;

 private:
  size_t ColumnsLikeASlice() const;

  const SliceProgram& program_;
  const ModelWeights& weights_;
  const OpRunner& runner_;
  kernels::ComputeDevice& device_;
  const size_t columns_;
};

}  // namespace lamina::compute_node

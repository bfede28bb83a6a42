// SPDX-License-Identifier: Apache-2.0
//
// KvStepAttention: decode steps whose rows lie in the memory of a KvDevice, for whoever moves rows
// there and outputs away without the processor (kernels/window_channel.h). Every lane has a stream,
// tables and row buffers of its own. Units are enqueued ahead of their rows:
//
//   BeginStep(lane, rows)      when the lane's plan is there and the step before is over
//   ... q, k, v into rows(lane), on the lane's stream ...
//   Attend(lane, layer)        stores k and v, attends
//   ... outputs(lane) to their peer ...
//
// The bits are those of KvDevice::Store() and Attend().
//
// Threading:  the device's thread.
// Allocation: memory is reserved when it is made; none while steps are served.

#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/extent.h"

namespace lamina::kernels {

// A decode row of a step: one query token of a sequence that lies on the device as a whole.
struct StepRow {
  absl::Span<const Extent> extents;  // The sequence's, this token's slot included.
  uint32_t position = 0;
  uint32_t slot = 0;  // Where its own k and v go.
};

// What a KvStepAttention is made for.
struct StepLanes {
  uint32_t lanes = 0;
  uint32_t rows_max = 0;  // Rows of one lane's step.
  friend bool operator==(const StepLanes&, const StepLanes&) = default;
};

class KvStepAttention {
 public:
  virtual ~KvStepAttention() = default;

  // The lane's buffers in the device's memory, of the unit that its stream is at. Constant.
  // Shapes: rows     [rows, q | k | v] bf16
  //         outputs  [rows, q] bf16
  virtual BFloat16* rows(uint32_t lane) = 0;
  virtual const BFloat16* outputs(uint32_t lane) const = 0;

  // Whether a step of these rows has room. If not, KvDevice::Store() and Attend() serve it.
  virtual bool Fits(absl::Span<const StepRow> rows) const = 0;

  // Takes the tables of a step. Waits for what KvDevice::Store() has begun, and for nothing else.
  // Requires: all units of the lane's step before are done.
  // Errors:   kInvalidArgument  no such lane, rows that do not fit, or a slot that the device does
  //                             not have; nothing was begun.
  //           kInternal         the device failed and is not usable() any more.
  virtual absl::Status BeginStep(uint32_t lane, absl::Span<const StepRow> rows) = 0;

  // Enqueues one layer's unit over all rows of the step, on the lane's stream: k and v of
  // rows(lane) go into their slots, outputs into outputs(lane). Does not wait. Errors: kInternal,
  // as BeginStep().
  virtual absl::Status Attend(uint32_t lane, uint32_t layer) = 0;
};

}  // namespace lamina::kernels

// SPDX-License-Identifier: Apache-2.0
//
// KvWaits: decode steps that a KvDevice serves by itself. Units are launched ahead of their data;
// for each the device waits for the query window, stores k and v, attends, writes the reply window
// and raises its word. The caller only looks now and then how far it is.
//
//   Open(windows)                    once an epoch
//   BeginStep(lane, rows)            when the lane's plan is there and the step before is over
//   Launch(lane, unit) ...           its units in order, some ahead of what Look() has shown
//   Look(lane, i) -> kOk, nanoseconds
//   Close()
//
// The bits are those of Store() and Attend(). A unit that fails silences those behind it in its
// lane: nothing is put for any of them, and K and V that they store are worthless.
//
// Threading:  the device's thread; Abort() from any.
// Allocation: memory is reserved when the device is made; none while steps are served.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/extent.h"
#include "kernels/window_wait.h"

namespace lamina::kernels {

// A decode row of a step: one query token of a sequence that lies here as a whole.
struct WaitingRow {
  absl::Span<const Extent> extents;  // Of the sequence, this token's slot included.
  uint32_t position = 0;
  uint32_t slot = 0;  // Where its own k and v go.
};

// One attention over all rows of the lane's step. All addresses are the host's, inside the windows
// that were opened; signal words are 8-byte aligned, windows 16-byte.
// Shapes: query  kWindowHeaderBytes, then [rows, q | k | v] bf16
//         reply  kWindowHeaderBytes, then [rows, q] bf16
struct WaitingUnit {
  uint32_t layer = 0;
  const uint64_t* signal = nullptr;
  uint64_t at_least = 0;
  const std::byte* query = nullptr;
  WindowStamp expected;
  std::byte* reply = nullptr;
  WindowStamp stamp;
  uint64_t* reply_signal = nullptr;
  uint64_t reply_value = 0;
};

struct UnitState {
  WaitOutcome outcome = WaitOutcome::kPending;  // kOk: the reply's word was raised.
  Nanos nanos = 0;                              // With kOk: from its query's coming to its reply.
};

class KvWaits {
 public:
  virtual ~KvWaits() = default;

  // Makes windows reachable: whole pages of the host's memory, mapped until Close(). Waits end once
  // Beat() has not been called for `silence_max`.
  // Errors: those of the device, by name; then nothing is open.
  virtual absl::Status Open(absl::Span<const absl::Span<std::byte>> windows, Nanos silence_max) = 0;

  // Aborts what waits, and returns when the device uses no window any more. Then they are let go.
  virtual void Close() = 0;

  // Ends all waits, now and later, until the next Open().
  virtual void Abort() = 0;

  virtual void Beat() = 0;

  // Whether a step of these rows has room. Else Store() and Attend() serve it.
  virtual bool Fits(absl::Span<const WaitingRow> rows) const = 0;

  // Takes the tables of a step. Waits for what Store() has begun, and for nothing else.
  // Requires: all units of the lane's step before are done.
  // Errors:   kInvalidArgument  no such lane, rows that do not fit, or a slot that the device does
  //                             not have; nothing was begun.
  //           kInternal         the device failed and is not usable() any more.
  virtual absl::Status BeginStep(uint32_t lane, absl::Span<const WaitingRow> rows) = 0;

  // Launches the next unit; does not wait for it. At most one unit of each layer a step.
  // Errors: kInternal, as BeginStep.
  virtual absl::Status Launch(uint32_t lane, const WaitingUnit& unit) = 0;

  // Of the lane's step, its `unit`-th launched. A failure is that of the first unit that failed.
  virtual UnitState Look(uint32_t lane, uint32_t unit) const = 0;

  // Whether the device still works, for lanes that seem to stand. Errors: kInternal, as
  // BeginStep.
  virtual absl::Status Check(uint32_t lane) = 0;
};

}  // namespace lamina::kernels

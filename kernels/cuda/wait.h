// SPDX-License-Identifier: Apache-2.0
//
// Waiting and signalling on a stream: the device polls a signal word itself, so that the host may
// launch the wait, the attention behind it and the answer before the data is there.
//
//   WaitForWindow(signal >= n, header)   polls; outcome into a WaitRecord
//   ... kernels that read the window ...
//   PutBytes(...), RaiseSignal(...)      the answer; left out once a wait of this record failed
//
// A wait ends in bounded time: by the signal, a deadline, or the abort word. Its outcome is a word
// of pinned host memory that the host reads when it likes; on the good path nobody synchronises.
// After a failure the work in between runs on what the window holds, harmlessly, since its answer
// is not sent.
//
// Threading: the stream's thread; the abort word any thread.
// Memory:    signal words, windows and heartbeat are memory that the device can read: its own,
//            pinned, or registered with the driver. 8-byte aligned.
// See:       transport/transport.h (signals), docs/formats/windows.md (headers).

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device.h"
#include "kernels/window_wait.h"

namespace lamina::kernels::cuda {

using kernels::kWindowHeaderBytes;
using kernels::WaitOutcome;
using kernels::WindowStamp;

// Outcomes of the waits of one lane, in pinned host memory; zeroed before use and after a failure
// was dealt with. The device writes `sequence` last, so that who sees it sees the rest.
struct WaitRecord {
  uint32_t failed = 0;  // A WaitOutcome other than kPending and kOk; the first failure stays.
  uint32_t outcome =
      0;  // How the last wait ended. After a failure, waits end at once with that failure.
  uint64_t signal = 0;           // What the signal word showed then.
  uint64_t polls = 0;            // Looks at it.
  uint64_t sequence = 0;         // The `sequence` of the last wait that ended.
  uint64_t ended = 0;            // When it did, in nanoseconds of the device's clock.
  uint64_t failed_sequence = 0;  // That of the wait that failed first.
  WindowStamp refused;           // What that wait found, if it refused a header.
};
static_assert(sizeof(WaitRecord) == 88);

// What of a record the device itself looks at, in its own memory: zeroed before use. Each thread
// block of a put asks whether a wait has failed, and loads of one word of the host's by many of
// them come one after the other, about a microsecond each.
struct LaneState {
  uint32_t failed = 0;
  uint64_t ended = 0;
  uint64_t waited = 0;  // How long the last wait polled, in nanoseconds.
};

// That a unit is over: written behind its signal, `sequence` last. In pinned host memory.
struct UnitRecord {
  uint64_t nanos = 0;   // Since the last wait of the WaitRecord ended.
  uint64_t waited = 0;  // How long that wait polled, if there is a LaneState.
  uint64_t sequence = 0;
};

struct WaitRequest {
  const uint64_t* signal = nullptr;
  uint64_t at_least = 0;
  const WindowStamp* window = nullptr;  // Null: no header to check.
  WindowStamp expected;
  const uint64_t* heartbeat = nullptr;  // Optional: when it changes, the time starts anew.
  uint64_t timeout_nanos = 0;           // From the start of polling on the device.
  const uint32_t* abort = nullptr;      // Nonzero: give up. Looked at with every poll.
  WaitRecord* record = nullptr;
  LaneState* state = nullptr;  // Optional: kept as the record is. One for all requests of a record.
  uint64_t sequence = 0;       // The caller's number of this wait; grows.
  // Optional: two words for the device's clock, when it began to poll and when it ended.
  uint64_t* times = nullptr;
};

// Errors: kInvalidArgument  a null signal, abort or record, or no timeout.
absl::Status WaitForWindow(const WaitRequest& request, const Stream& stream);

struct RaiseRequest {
  uint64_t* signal = nullptr;
  uint64_t value = 0;
  const WaitRecord* record = nullptr;  // Optional: nothing is raised after a failure.
  const LaneState* state = nullptr;    // Optional: looked at instead.
  UnitRecord* unit = nullptr;          // Optional, with a record: is told what was raised when.
  uint64_t sequence = 0;               // For `unit`.
  // Right before it the stream has a kernel of ours that does not poll, or a copy: the launch may
  // be dependent (dependent_launches.h).
  bool behind_kernel = false;
};

// Raises a signal word after everything that the stream did before, as a transport's signal covers
// all earlier puts. Errors: kInvalidArgument  a null signal, or a unit without a record.
absl::Status RaiseSignal(const RaiseRequest& request, const Stream& stream);

struct PutRequest {
  void* to = nullptr;  // 16-byte aligned, as is `from`; bytes a multiple of 16.
  const void* from = nullptr;
  size_t bytes = 0;
  const WaitRecord* record = nullptr;  // Optional: nothing is written after a failure.
  const LaneState* state = nullptr;    // Optional: looked at instead.
  // With it a window is written whole: the stamp, zeros up to kWindowHeaderBytes, and behind these
  // the bytes, of which there may be none.
  bool stamped = false;
  WindowStamp stamp;
  bool behind_kernel = false;  // As RaiseRequest has it.
};

// Copies with the device's own stores, into memory of the host or a peer that it can reach.
// Empty:  without bytes and stamp nothing is launched.
// Errors: kInvalidArgument  an address or size that is no multiple of 16.
absl::Status PutBytes(const PutRequest& request, const Stream& stream);

}  // namespace lamina::kernels::cuda

// SPDX-License-Identifier: Apache-2.0
//
// WindowExchange: a device's own exchange with windows of this host. It copies rows from its memory
// into windows of peers, raises their signals, waits for the answers and copies these into its
// memory. The processor only gives orders, ahead of time; the device follows them in one order with
// all else that it is given.
//
//   Send(rows to peer 0), Send(rows to peer 1)
//   Take(rows of peers 0 and 1)     here the device stands still until both have answered
//   ... what reads them ...
//
// So nothing that a take waits for may follow from an order behind it, of whatever lane. A lane
// orders a take only when the one before it has ended, HasTaken(): so no lane is more than a unit
// ahead of the device, and others find their turn.
//
// A window begins with a header of kWindowHeaderBytes: a stamp, which a take compares, and zeros.
// The first fault of a lane stays: what follows of the lane neither sends nor waits nor takes, so
// nothing of it leaves the device. What is computed in between runs on whatever is there.
//
// Threading: the device's thread; Abort() from any.
// Allocation: Send() and Take() take no memory.
// Ownership: the windows stay mapped until this is gone, and everything it was given is done.
// See: transport/transport.h (direct(), signals), docs/formats/windows.md (headers).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "kernels/window_wait.h"

namespace lamina::kernels {

inline constexpr size_t kExchangeAlignment = 16;  // Of addresses and sizes of rows.

// Windows in memory of this host, shared with another process, and their signal words: word w is a
// uint64_t at words + w * word_stride. `pages` are whole pages that hold all of it.
struct HostWindows {
  absl::Span<std::byte> bytes;
  std::byte* words = nullptr;
  size_t word_stride = 0;
  absl::Span<std::byte> pages;
};

struct ExchangeOptions {
  HostWindows own;     // Where answers come in.
  uint32_t peers = 0;  // Those of a lane.
  uint32_t lanes = 0;
  Nanos timeout = 0;  // Of one take with one peer, from when the device comes to it.
};

// Rows of one unit for one peer.
struct RowsOut {
  uint32_t peer = 0;
  size_t window = 0;  // Where it begins in the peer's bytes.
  WindowStamp stamp;
  const void* rows = nullptr;  // In the device's memory.
  size_t bytes = 0;
  uint32_t word = 0;  // Is raised to `value` when they are there.
  uint64_t value = 0;
};

// Rows of one unit from one peer.
struct RowsIn {
  uint32_t peer = 0;
  size_t window = 0;     // Where it begins in the own bytes.
  WindowStamp stamp;     // What it must begin with.
  void* rows = nullptr;  // In the device's memory.
  size_t bytes = 0;
  uint32_t word = 0;  // Shows `value`, or more, when they are there.
  uint64_t value = 0;
};

struct FailedTake {
  WaitOutcome outcome = WaitOutcome::kTimeout;
  uint32_t peer = 0;  // Whose answer it was to be,
  uint64_t unit = 0;  // and to which unit.
};

class WindowExchange {
 public:
  virtual ~WindowExchange() = default;

  // Peer i has windows[i]. Once, before the first Send().
  // Errors: kInvalidArgument  another number of peers, or windows that the device cannot reach.
  //         the device's, with its name for it.
  virtual absl::Status SetPeers(absl::Span<const HostWindows> windows) = 0;

  // Orders a copy of rows of unit `unit` of the lane, with a header before them, and its signal.
  // Units of a lane grow, by one at a time while a take is awaited. Errors: kInternal  the device
  // failed; says how. Requires: inside the peer's bytes; kExchangeAlignment.
  virtual absl::Status Send(uint32_t lane, uint64_t unit, const RowsOut& out) = 0;

  // Orders a wait for all of `in`, the answers to unit `unit` of the lane, and a copy of each.
  // Errors: kInternal  the device failed; says how.
  // Requires: HasTaken(); inside the own bytes; kExchangeAlignment; one of each peer at most, at
  //           least one.
  virtual absl::Status Take(uint32_t lane, uint64_t unit, absl::Span<const RowsIn> in) = 0;

  // Whether the waits of the lane's last take have ended, well or not; true before the first one.
  // Never waits. Errors: kInternal  the device has failed, and will not end them.
  virtual absl::StatusOr<bool> HasTaken(uint32_t lane) = 0;

  // The first take of the lane that failed, if one did.
  virtual std::optional<FailedTake> FailureOf(uint32_t lane) const = 0;

  // Of the lane's last take, by the device's clock: how long the device stood still for a peer; 0
  // if its answer was there. Requires: HasTaken(), no failure, and an answer of this peer.
  virtual Nanos WaitedFor(uint32_t lane, uint32_t peer) const = 0;
  // How long after the answers to the unit before it this unit's rows had left: what was ordered
  // between. Requires: the same, and a take before the last one.
  virtual Nanos SentAfter(uint32_t lane) const = 0;

  // Ends all takes, now and from now on, with kAborted. A signal that is there still counts.
  virtual void Abort() = 0;
};

}  // namespace lamina::kernels

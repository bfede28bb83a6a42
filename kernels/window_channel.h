// SPDX-License-Identifier: Apache-2.0
//
// WindowChannel: a device's own exchange of rows by windows. The device copies rows from its memory
// into windows of peers and raises their signals; it waits for signals of its own windows and
// copies what came into its memory. The processor only enqueues this, ahead of the data, and looks
// at records to see how far the device is. Windows of peers are shared with them, or an outbox's,
// from which a proxy sends what the device has raised (common/outbox.h).
//
// A channel has lanes, each with a stream of the device; several lanes may share one stream. What
// is enqueued for a lane runs in order with whatever else the stream has been given:
//
//   a compute node, whose lanes share a stream     a memory node, with a stream for each lane
//     Send(unit 1, rows to peers 0 and 1)            Take(unit 1, rows from peer 0)
//     Take(unit 1, rows from peers 0 and 1)          ... store, attend ...
//     ... the next slice ...                         Send(unit 1, outputs to peer 0)
//     Send(unit 2, ...)                              Take(unit 2, ...)
//
// A take holds its stream up until the signals are there. So it must not depend on anything that is
// enqueued behind it on the same stream, for whatever lane.
//
// A window begins with a header of kWindowHeaderBytes: a stamp, which a take compares, and zeros.
// The first fault of a lane stays for the life of the channel: what follows on the lane neither
// sends, nor waits, nor takes, so nothing of it leaves the device. What is computed in between runs
// on whatever the memory holds.
//
// Units of a lane are numbered from 1 on, and their numbers only grow. So no record is ever reset.
//
// Threading:  the device's thread; Abort() from any thread.
// Allocation: everything is taken when the channel is made and peers are set.
// Ownership:  windows and streams outlive the channel; windows are registered until Close().
// See:        transport/transport.h (direct(), signals), docs/formats/windows.md (headers).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/outbox.h"
#include "kernels/window_wait.h"

namespace lamina::kernels {

inline constexpr size_t kChannelAlignment = 16;  // Addresses and sizes of rows are multiples.

// Windows and their signal words: word w is a uint64_t at words + w * word_stride. `pages` are
// whole pages of this host that hold what is the host's of it; the rest are addresses of the
// device. The `outbox` of a peer's windows is told of each send; null: the peer shares the memory.
struct HostWindows {
  absl::Span<std::byte> bytes;
  std::byte* words = nullptr;
  size_t word_stride = 0;
  absl::Span<std::byte> pages;
  Outbox* outbox = nullptr;
};

// Windows of a region, by its transport::DirectMemory.
template <typename DirectMemory>
HostWindows HostWindowsOf(const DirectMemory& memory) {
  return {.bytes = memory.bytes,
          .words = memory.words,
          .word_stride = memory.word_stride,
          .pages = memory.pages,
          .outbox = memory.outbox};
}

struct ChannelOptions {
  HostWindows own;     // Where rows of peers come in.
  uint32_t peers = 0;  // Every lane has these peers.
  uint32_t lanes = 0;
  // How long one wait for one peer may last: from when the device begins to wait, or, with
  // `counts_beats`, from the last Beat() since then. Beats cost one more load over the bus in each
  // poll.
  Nanos timeout = 0;
  bool counts_beats = false;
  uint32_t sends_kept = 2;  // SentAfter() knows the last so many units of a lane.
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
  uint32_t peer = 0;  // Whose rows were awaited,
  uint64_t unit = 0;  // and those of which unit.
  WindowStamp stamp;  // What the window began with, where that is why it failed.
};

class WindowChannel {
 public:
  virtual ~WindowChannel() = default;  // As Close().

  // Peer i has windows[i]. Called once, before the first Send().
  // Errors: kInvalidArgument  another number of peers, or windows that the device cannot reach.
  //         the device's, with its name for it; then no window of a peer is registered.
  virtual absl::Status SetPeers(absl::Span<const HostWindows> windows) = 0;

  // Enqueues a copy of rows of unit `unit` into a window, behind a header, and its signal. Waits
  // for nothing. A unit may have several sends, one to a peer.
  // Errors:   kInternal  the device failed; says how. Those of Outbox::Announce().
  // Requires: inside the peer's bytes; kChannelAlignment.
  virtual absl::Status Send(uint32_t lane, uint64_t unit, const RowsOut& out) = 0;

  // Enqueues a wait for all of `in`, rows of unit `unit`, and a copy of each. Waits for nothing.
  // Errors:   kInternal  the device failed; says how.
  // Requires: inside the own bytes; kChannelAlignment; one of each peer at most, at least one.
  virtual absl::Status Take(uint32_t lane, uint64_t unit, absl::Span<const RowsIn> in) = 0;

  // Whether the waits of the lane's last take have ended, well or not; true before the first one.
  // Never waits. Asks the device now and then whether it still works.
  // Errors: kInternal  the device has failed, and will not end them.
  virtual absl::StatusOr<bool> HasTaken(uint32_t lane) = 0;

  // The first take of the lane that failed, if one did. What was sent before it shows in
  // SentAfter() from then on, so whoever looks at both looks here first.
  virtual std::optional<FailedTake> FailureOf(uint32_t lane) const = 0;

  // Whether rows of the unit have left, and how long after the end of the wait before them, by the
  // device's clock: the time of what was enqueued in between. With several sends of the unit it is
  // that of the last one that has left. Never waits.
  // Requires: one of the lane's last `sends_kept` units; the time, a take before the send.
  virtual std::optional<Nanos> SentAfter(uint32_t lane, uint64_t unit) const = 0;

  // How long the device stood still in the last wait before that unit was sent, by its clock; 0 if
  // the rows were there. Never waits. Requires: SentAfter() has told of the unit.
  virtual Nanos WaitedBefore(uint32_t lane, uint64_t unit) const = 0;

  // How long the device stood still for a peer in the lane's last take, by its clock; 0 if the rows
  // were there. Requires: HasTaken(), no failure, and rows of this peer in that take.
  virtual Nanos WaitedFor(uint32_t lane, uint32_t peer) const = 0;

  // Restarts the timeout of all waits, if the channel counts beats. Never waits.
  virtual void Beat() = 0;

  // Whether the device still works, for a lane that seems to stand. Never waits.
  // Errors: kInternal  the device failed; says how.
  virtual absl::Status Check(uint32_t lane) = 0;

  // Ends all takes, now and from now on, with kAborted. A signal that is there still counts.
  virtual void Abort() = 0;

  // Aborts, waits until the device has done all that the lanes' streams were given, has outboxes
  // send what was raised, and unregisters the windows. Nothing may be enqueued any more. Has no
  // effect a second time.
  virtual void Close() = 0;
};

}  // namespace lamina::kernels

// SPDX-License-Identifier: Apache-2.0
//
// Transport: moves bytes between registered regions of two processes, one-sided.
//
// The receiver creates a Region: bytes that peers write, and 64-bit signal words that peers raise.
// Its descriptor travels over the control plane; a sender opens it once and then only Puts. The
// receiver learns of a Put by waiting for its signal word, never by a message. Nothing here knows
// of models.
//
//   receiver                                     sender
//   CreateRegion() -> Region
//   region->Descriptor()  ---- control plane -->  OpenRegion() -> RemoteRegion
//                                                 Put(bytes, signal word := value)
//   Wait(word >= value)
//
// To add a backend: implement Transport in transport/<scheme>/, add it to registry.cc, and add one
// line to tests/conformance/transport_test.cc. That suite is the full definition of correct.
//
// Signals:    each word is written by one sender alone, with absolute values that only grow; no
//             read-modify-write anywhere. Words start at 0.
// Ordering:   none between Puts, but what a signal promises (SignalUpdate). So bytes that two
//             Puts both write are unspecified, unless the peer's answer to the first came before
//             the second; Pending() 0 is no such answer.
// Threading:  CreateRegion, OpenRegion and RegisterSource from any thread, before data flows. Put,
//             Progress and Wait from one thread per Transport (the owner's polling thread), which
//             may change only with a happens-before edge. Raising an AbortWord: any thread.
// Progress:   some backends move data only inside Progress() or Wait(), on either side.
// Devices:    some backends show where a region's memory lies (direct()), so that a device of this
//             host may write, read and raise it without them, or have an outbox for what a device
//             writes (device_region.h).
// Allocation: Put, Progress and Wait do not allocate and take no lock while they succeed; the
//             message of an error may allocate. fake:// is exempt.
// Ownership:  a Transport outlives its Regions and RemoteRegions, and these the Puts and Waits that
//             name them. They are used with the Transport that made them, no other.
// Fork:       a child process uses none of its parent's Transports.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/thread_beat.h"
#include "transport/device_region.h"
#include "transport/memory_choice.h"

namespace lamina::transport {

// What a backend can do. Constant for the life of the Transport.
struct Capabilities {
  bool device_memory = false;    // Regions may be of MemoryKind::kDevice.
  bool device_sources = false;   // Puts may read MemoryKind::kDevice.
  bool one_sided = false;        // The target's CPU takes no part in a Put.
  bool local_host_only = false;  // Reaches only processes of this host.
  uint64_t put_bytes_max = 0;    // Largest single Put.
  uint32_t in_flight_max = 0;    // Puts accepted before kResourceExhausted.
};

// Raised by any thread to make a Wait return kCancelled. Not reset by the transport. A sleeping
// waiter looks at it at least every millisecond.
using AbortWord = std::atomic<uint32_t>;

struct RegionOptions {
  std::string name;  // For messages: "m0 lane 1 from c0".
  size_t bytes = 0;  // Data bytes, zeroed; may be 0.
  uint32_t signal_words = 0;
  MemoryKind kind = MemoryKind::kHost;
  bool may_stage = true;  // A kDevice region may be reached through a staging buffer alone.
  uint64_t epoch = 0;     // Part of the descriptor; OpenRegion refuses another epoch.
  // Devices may raise its words, past the transport: where it has direct() memory, waiters on it
  // nap for some 50 us where they would sleep for a millisecond.
  bool written_by_devices = false;
  // The device that has a kDevice region is to wait for it itself: direct() is where, if the
  // backend can do that.
  bool polled_by_device = false;
};

// Memory of this process that peers may write. Unmapped and unregistered when destroyed: later Puts
// of a peer fail there or vanish, they never touch other memory. The same holds when the process
// dies.
class Region {
 public:
  virtual ~Region() = default;
  // 64-byte aligned at least. Of kDevice: addresses of the device, not for the processor.
  virtual absl::Span<std::byte> bytes() = 0;
  virtual uint32_t signal_words() const = 0;

  // Null: the data lies in the host's memory. Else what there is to know and to do for a device's.
  virtual const DeviceRegion* device() const = 0;
  // Where the memory lies for a device that uses it by itself. Constant. Empty where the backend
  // does not show it, and where device() is not null but for polled_by_device.
  virtual DirectMemory direct() = 0;

  // device()'s, or those of the host's memory, which needs no last step.
  MemoryChoice memory() const { return device() == nullptr ? MemoryChoice{} : device()->memory(); }
  absl::Status Land(size_t offset, size_t bytes) const {
    return device() == nullptr ? absl::OkStatus() : device()->Land(offset, bytes);
  }

  // The last value raised that is visible here, with acquire ordering: the data that its signal
  // covers is visible too. Requires: word < signal_words().
  virtual uint64_t LoadSignal(uint32_t word) const = 0;

  // Opaque bytes for OpenRegion() of the same backend.
  virtual std::string Descriptor() const = 0;
};

// A prepared view of a peer's Region. Destroying it ends its use: sources are not read any more
// once the destructor returned; Puts in flight may still land, with what their signals promise.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  virtual size_t size_bytes() const = 0;
  virtual uint32_t signal_words() const = 0;

  // What carries the data, for people: "shm", "ucx tcp/eth0". Constant.
  virtual std::string path() const = 0;

  // The peer's memory, or an outbox for it, which the first call makes (device_region.h). Constant
  // then. Empty where the backend has neither; where an outbox is refused, the log says why. Who
  // writes it asks nobody whether the peer is still there: what is written to a region that is gone
  // is lost.
  virtual DirectMemory direct() = 0;
};

// A receiver that sees a value sees the bytes of the Put that carries it, and of all earlier Puts
// of this Transport to this peer (any Region of it). Values of one word become visible in the order
// of their Puts, so a word that shows v stands for all the values put to it up to v; those of
// different words may overtake each other, and a later one may hide an earlier one.
struct SignalUpdate {
  uint32_t word = 0;
  uint64_t value = 0;  // Greater than any value raised on this word before, by whatever way.
};

struct SignalCondition {
  uint32_t word = 0;
  uint64_t at_least = 0;
};

struct WaitOptions {
  Nanos deadline = 0;                // On RealClock(). There is no "forever".
  const AbortWord* abort = nullptr;  // Optional.
  // Optional: raised at each nap of what waits in several calls (put_all.h). One Wait() raises
  // none.
  ThreadBeat* beat = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual absl::string_view scheme() const = 0;  // "shm", "ucx", ...
  virtual const Capabilities& capabilities() const = 0;

  // Errors: kInvalidArgument    zero size and no words, more than 2^20 words, or a kind that the
  //                             backend lacks.
  //         kResourceExhausted  the host refused the memory; says how much was asked for and which
  //                             limit applies.
  //         kFailedPrecondition the device's memory is not reached, without may_stage; says why.
  virtual absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options) = 0;

  // Opens a peer's region; `epoch` must be the descriptor's. The bytes of a descriptor may be any.
  // Errors: kInvalidArgument  not a descriptor of this backend and version, or a damaged one.
  //         kAborted          the descriptor is of another epoch.
  //         kUnavailable      the peer or its region is gone (also when another one took its name),
  //                           or not reachable; says what was tried.
  virtual absl::StatusOr<std::unique_ptr<RemoteRegion>> OpenRegion(absl::string_view descriptor,
                                                                   uint64_t epoch) = 0;

  // Declares memory that Puts will read from, until the Transport dies. Backends that need no
  // registration accept everything in the host's memory. Memory inside an own Region needs none.
  virtual absl::Status RegisterSource(absl::Span<const std::byte> bytes, MemoryKind kind) = 0;

  // Starts copying `source` to `offset` in `target`, then raises the signal if there is one. The
  // source may be overwritten once Pending(target) is 0, or when the peer's answer to it has been
  // seen. Never waits for the peer; a device's copy it may wait for. When it returns an error,
  // nothing was sent and no word was raised.
  //
  // Empty:  no bytes with a signal only raises the signal; without one, nothing happens.
  // Errors: kResourceExhausted  in_flight_max reached; Progress() and retry.
  //         kInvalidArgument    outside the target, more than put_bytes_max, a source that is not
  //                             registered, a signal word that the target lacks, or a value that
  //                             is not greater than the last one put to its word.
  //         kUnavailable        the peer is known to be gone. Later calls say the same. OK does
  //                             not mean that it is there: a peer that was killed may look silent.
  //         kInternal           the device that has the source, or the target, failed.
  virtual absl::Status Put(RemoteRegion& target, size_t offset, absl::Span<const std::byte> source,
                           const SignalUpdate* signal) = 0;

  // Puts by this view of a target whose source may still be read. A backend that makes several
  // operations of a Put counts these.
  virtual uint32_t Pending(const RemoteRegion& target) const = 0;

  // Drives the backend; never blocks. Returns the completions it ran.
  virtual uint32_t Progress() = 0;

  // Waits until one of `conditions` holds on `region` and returns its index (the first that holds).
  // Spins for about the time of one message, then yields, then sleeps. A condition that holds is
  // returned even when the deadline has passed or the abort word is raised.
  //
  // Empty:    no conditions: pauses until the deadline or the abort word.
  // Requires: every word is less than region.signal_words().
  // Errors:   kDeadlineExceeded  none held by the deadline.
  //           kCancelled         the abort word was raised.
  //           kUnavailable       a peer that writes this region is known to be gone (not every
  //                              backend can tell).
  virtual absl::StatusOr<size_t> Wait(const Region& region,
                                      absl::Span<const SignalCondition> conditions,
                                      const WaitOptions& options) = 0;
};

}  // namespace lamina::transport

// SPDX-License-Identifier: Apache-2.0
//
// Outbox: how rows that a device wrote leave this host, where no peer shares the memory that it
// wrote. What is to be sent is announced while the device is given its work; the device itself says
// when, by a word that it raises.
//
//   device's thread   Announce(bytes, word, value), then enqueues the work
//   device            writes the bytes, raises the word to the value
//   a proxy's thread  sees the word, and sends the bytes and the signal to the peer
//
// Implementation: transport/outbox/outboxes.h. Users: kernels/window_channel.h.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/clock.h"

namespace lamina {

// One word has so many sends announced that have not left, at most.
inline constexpr uint32_t kOutboxSendsMax = 32;

struct OutboxSend {
  size_t offset = 0;  // In the outbox's bytes, as in the peer's.
  size_t bytes = 0;
  uint32_t word = 0;
  uint64_t value = 0;
};

// When a send left, by this host's clock.
struct OutboxTimes {
  uint32_t word = 0;
  uint64_t value = 0;
  size_t bytes = 0;
  Nanos unraised = 0;  // The last moment at which the word was known not to show the value.
  Nanos posted = 0;    // The transport has taken the put.
  Nanos complete = 0;  // The proxy saw that as many puts of the outbox were complete.
};

class Outbox {
 public:
  virtual ~Outbox() = default;

  // Has the bytes sent, and the peer's word raised, as soon as the outbox's own word shows the
  // value. The device must not overwrite the bytes before the peer has answered. Sends of one word
  // are announced in the order of their values, and each before the device can raise it. By the
  // thread of the transport. Never waits.
  // Errors: kInvalidArgument    outside the outbox, or a value that is not greater than the last.
  //         kResourceExhausted  kOutboxSendsMax of the word have not left; the send is not taken.
  //         kUnavailable        a send failed: the peer is gone. What is raised from now on is
  //                             lost.
  virtual absl::Status Announce(const OutboxSend& send) = 0;

  // Sends what the device has raised, and forgets what was announced besides: it will not be
  // raised. The values of each word may then begin behind what the peer has seen. Waits for the
  // proxy, for no peer. By the thread of the transport.
  virtual void Forget() = 0;

  // Whether to note the times of what is announced from now on; not at first. By the thread of the
  // transport.
  virtual void NoteTimes(bool wanted) = 0;

  // The times of one more complete send, in the order of their puts; none: there is no other yet.
  // Some hundred that nobody takes are kept, the later ones are dropped. By the thread of the
  // transport; never waits.
  virtual std::optional<OutboxTimes> TakeTimes() = 0;
};

}  // namespace lamina

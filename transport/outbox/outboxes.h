// SPDX-License-Identifier: Apache-2.0
//
// Outboxes: for a transport between hosts, memory of this host in which a device writes what is
// meant for a peer's region, and the proxy that sends it (common/outbox.h).
//
// An outbox has the bytes and words of the peer's region at the same offsets. So the rules by which
// the peer's windows are written hold for it too: what is free there is free here, and it needs no
// places or credits of its own.
//
// The proxy is one thread. It has a transport to itself, and so connections of its own: the data
// path of the other transport shares nothing with it, and no lock stands in between. While sends
// are announced it looks at the words of their lanes, first without a pause; else it sleeps.
//
// Ordering:   a word that both transports raise, in turn, is raised in order only where the peer's
//             answer to one came before the other.
// Threading:  all calls by the transport's own thread. Open() and Forget(), and the end of an
//             outbox, stop the proxy for a moment.
// Allocation: Announce() and the proxy allocate nothing.
// Limits:     kOutboxSendsMax for each word, kOutboxWordsMax words.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/outbox.h"
#include "transport/outbox/send_times.h"
#include "transport/transport.h"

namespace lamina::transport {

inline constexpr uint32_t kOutboxWordsMax = 4096;

class Outboxes;

class RegionOutbox final : public Outbox {
 public:
  ~RegionOutbox() override;  // Sends what was raised.
  RegionOutbox(const RegionOutbox&) = delete;
  RegionOutbox& operator=(const RegionOutbox&) = delete;

  // Where the device writes and raises.
  DirectMemory memory() {
    DirectMemory memory = memory_;
    memory.outbox = this;
    return memory;
  }

  absl::Status Announce(const OutboxSend& send) override;
  void Forget() override;
  void NoteTimes(bool wanted) override { times_.Want(wanted); }
  std::optional<OutboxTimes> TakeTimes() override { return times_.Take(); }

 private:
  friend class Outboxes;

  // The sends of one word, a ring with one writer and one reader.
  struct Sends {
    std::array<OutboxSend, kOutboxSendsMax> ring;
    alignas(64) std::atomic<uint64_t> announced{0};
    alignas(64) std::atomic<uint64_t> sent{0};  // Written by the proxy.
    Nanos unraised = 0;  // When the proxy last looked and the next send was not raised.
    std::array<Nanos, kOutboxSendsMax> announced_at{};  // 0: times were not wanted.
    uint64_t last_value = 0;                            // That was announced.
    bool listed = false;                                // In `used_`.
  };

  RegionOutbox(Outboxes& outboxes, std::unique_ptr<Region> region,
               std::unique_ptr<RemoteRegion> peer)
      : outboxes_(outboxes),
        region_(std::move(region)),
        peer_(std::move(peer)),
        memory_(region_->direct()),
        sends_(peer_->signal_words()),
        used_(peer_->signal_words()) {}

  // The proxy's. Sends what has been raised; returns how many.
  uint32_t SendRaised(Transport& transport);
  uint32_t SendRaisedOf(uint32_t word, Nanos now, Transport& transport);
  void NotePosted(const Sends& sends, uint64_t number);
  void NoteComplete(const Transport& transport);
  // Whether something is announced, on its way, or not noted to be complete.
  bool IsBusy(const Transport& transport) const;

  Outboxes& outboxes_;
  std::unique_ptr<Region> region_;  // The proxy's, of its transport, as is
  std::unique_ptr<RemoteRegion> peer_;
  const DirectMemory memory_;            // The region's.
  std::vector<Sends> sends_;             // [words]
  std::vector<uint32_t> used_;           // Words that sends were announced of, in front.
  std::atomic<uint32_t> used_count_{0};  // How many.
  std::atomic<bool> failed_{false};      // Set by the proxy.
  SendTimes times_;
  uint64_t puts_ = 0;  // That the proxy has posted.
};

class Outboxes {
 public:
  // `transport` is the proxy's alone from now on. It must show its own regions (Region::direct()).
  // Times are those of `clock`, which must outlive this.
  explicit Outboxes(std::unique_ptr<Transport> transport, const Clock& clock = RealClock());
  Outboxes(const Outboxes&) = delete;
  Outboxes& operator=(const Outboxes&) = delete;
  ~Outboxes();  // Requires: no outbox is left.

  // An outbox for the region of that descriptor. Takes as much of the host's memory as the region
  // has, locked.
  // Errors: those of OpenRegion() and CreateRegion();
  //         kUnimplemented    the transport does not show its own regions.
  //         kInvalidArgument  more than kOutboxWordsMax words.
  absl::StatusOr<std::unique_ptr<RegionOutbox>> Open(absl::string_view descriptor, uint64_t epoch);

 private:
  friend class RegionOutbox;
  // While one lives the proxy stands still, and its transport is the caller's.
  class Pause;

  void Run();
  bool IsBusy() const;
  void Announced();

  const std::unique_ptr<Transport> transport_;
  const Clock& clock_;
  std::vector<RegionOutbox*> open_;  // Changed while the proxy stands still.
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> events_{0};  // Counts what a sleeping proxy wakes for.
  std::thread proxy_;                // None: it stands still.
};

}  // namespace lamina::transport

// SPDX-License-Identifier: Apache-2.0
//
// VerbsLocal: the port that this process uses. VerbsQueue: one end of a reliable connected queue
// pair; the end that sends has the data path in it.
//
// Threading: Post() and Poll() from the polling thread; the rest before, or after it let go.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_handles_internal.h"

namespace lamina::transport {

struct VerbsLocal {
  VerbsContext context;
  VerbsDomain domain;
  VerbsChoice choice;
  VerbsOptions options;
  std::array<uint8_t, 16> gid = {};
  uint16_t lid = 0;
  uint64_t message_bytes_max = 0;

  // Errors: of MakeVerbsTransport.
  static absl::StatusOr<std::unique_ptr<VerbsLocal>> Open(const VerbsOptions& options);
};

// Travels in control frames, little-endian.
struct QueueAddress {
  uint32_t number = 0;
  uint32_t first_packet = 0;  // 24 bits.
  uint16_t lid = 0;
  uint16_t mtu = 0;  // Bytes.
  uint32_t ethernet = 0;
  std::array<uint8_t, 16> gid = {};
};
static_assert(sizeof(QueueAddress) == 32);

// A view's counters, shared with the control thread.
//
// Put:     raises `pending`, then looks at `closed`. Control thread: sets `closed`, then looks at
//          `pending`. Sequentially consistent, so that one of them sees the other: when the control
//          thread says "drained", nothing more is posted.
struct ViewState {
  std::atomic<uint32_t> pending{0};  // Written by the polling thread alone.
  std::atomic<bool> closed{false};   // The owner destroyed the region.
};

class VerbsQueue {
 public:
  struct Write {
    uint64_t remote_address = 0;
    uint32_t rkey = 0;
    absl::Span<const std::byte> source;
    uint32_t lkey = 0;
  };
  struct Signal {
    uint64_t remote_address = 0;
    uint32_t rkey = 0;
    uint64_t value = 0;
  };

  // An end that sends has room for options.queue work requests, one that only receives for none.
  static absl::StatusOr<std::unique_ptr<VerbsQueue>> Create(const VerbsLocal& local, bool sends);

  const QueueAddress& address() const { return address_; }
  absl::Status Connect(const QueueAddress& peer);

  // Work requests that a Put of that size takes.
  uint32_t Cost(size_t bytes, uint32_t signals) const {
    return static_cast<uint32_t>((bytes + message_bytes_max_ - 1) / message_bytes_max_) + signals;
  }
  bool HasRoom(uint32_t cost) const { return free_ >= cost; }

  // One doorbell; the signals behind the data, in their order. The view's `pending` has been raised
  // by the caller and falls when all of it is complete. Requires: HasRoom(Cost(...)), and a cost
  // that is not 0. Errors: the device refused it. Nothing of it is in flight then; where the device
  // had taken a
  //         part of it, the queue pair is destroyed() with all else that was in flight.
  absl::Status Post(const Write& write, absl::Span<const Signal> signals, ViewState* view);

  // Completed Puts. An error says that the queue pair has failed; Destroy() then.
  absl::StatusOr<uint32_t> Poll();

  bool idle() const { return in_flight_.empty() || tail_ == head_; }

  // Nothing is read or written on its account any more; what was pending is not.
  void Destroy();
  bool destroyed() const { return pair_ == nullptr; }

 private:
  struct InFlight {
    ViewState* view = nullptr;
    uint32_t cost = 0;
  };

  VerbsQueue(const VerbsLocal& local, bool sends);
  absl::Status ToInit();
  absl::Status ToReceive(const QueueAddress& peer);
  absl::Status ToSend();
  void CompleteOldest();

  const VerbsLocal& local_;
  const bool sends_;
  const uint64_t message_bytes_max_;
  VerbsCompletions completions_;
  VerbsPair pair_;
  QueueAddress address_;
  uint32_t free_ = 0;
  // A ring of Puts in the order of posting; head_ and tail_ only grow.
  std::vector<InFlight> in_flight_;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
  // Scratch of Post(), so that it allocates nothing.
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> pieces_;
};

}  // namespace lamina::transport

// SPDX-License-Identifier: Apache-2.0
//
// ControlThread: one thread of each Transport that makes and watches links, and none of the data.
//
// To senders it lends regions: it accepts their connections, has them prove that they know the
// cluster's secret, makes the receiving queue pairs, and tells them when a region is being
// destroyed. For this Transport's own views it hears the same from other owners. It also reads the
// device's asynchronous events.
//
// Threading: all public calls from any thread. Locks are held for moments, never over network I/O
//            that could block.

#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/verbs/control_frame_internal.h"
#include "transport/verbs/control_socket_internal.h"
#include "transport/verbs/inbound_views_internal.h"
#include "transport/verbs/verbs_descriptor.h"
#include "transport/verbs/verbs_queue_internal.h"
#include "transport/verbs/verbs_region_internal.h"

namespace lamina::transport {

// A connection to an owner of regions. All views of its regions that are of the same user, a
// number of the Transport's for who posts on it, share it.
struct VerbsLink {
  std::array<uint64_t, 2> owner = {};
  uint32_t user = 0;
  std::unique_ptr<VerbsQueue> queue;  // The polling thread's.
  std::atomic<bool> gone{false};      // Set by either thread; never reset.

  // Guarded by the control thread's mutex.
  ControlSocket socket;
  FrameReader reader;
  struct View {
    std::shared_ptr<ViewState> state;
    enum class Stage : uint8_t { kAsked, kOpen, kRefused, kDraining } stage = Stage::kAsked;
  };
  std::map<uint64_t, View> views;
};

class ControlThread {
 public:
  // `local` must outlive it.
  static absl::StatusOr<std::unique_ptr<ControlThread>> Start(const VerbsLocal& local,
                                                              const ClusterSecret& secret = {},
                                                              const ControlLimits& limits = {});
  ~ControlThread();
  ControlThread(const ControlThread&) = delete;
  ControlThread& operator=(const ControlThread&) = delete;

  // The fields of a descriptor that do not depend on the region.
  const VerbsDescriptor& self() const { return self_; }

  // The owner's side.
  uint64_t AddRegion(std::unique_ptr<RegionMemory> memory);
  // Returns when no sender posts to it any more. Its memory goes when they have drained.
  void CloseRegion(uint64_t region);

  // The sender's side. Errors: of OpenRegion().
  absl::StatusOr<std::shared_ptr<VerbsLink>> Connect(const VerbsDescriptor& descriptor,
                                                     uint32_t user = 0);
  struct OpenedView {
    uint64_t number = 0;
    std::shared_ptr<ViewState> state;
  };
  absl::StatusOr<OpenedView> OpenView(VerbsLink& link, uint64_t region);
  // Requires: nothing is pending.
  void DropView(VerbsLink& link, uint64_t view);

 private:
  struct Inbound {
    ControlSocket socket;
    ControlFrame challenge;
    FrameReader reader;
    std::unique_ptr<VerbsQueue> queue;  // Null before its hello.
    Nanos hello_due = 0;
    InboundViews views;
    bool ended = false;
  };
  struct LentRegion {
    std::unique_ptr<RegionMemory> memory;
    bool alive = true;
  };

  ControlThread(const VerbsLocal& local, const ClusterSecret& secret, const ControlLimits& limits,
                ControlListener listener);
  void Loop();
  void Wake() const;
  // Connects a link to one of its owner's addresses and answers the challenge there, until
  // `deadline` at the latest. The owner's queue pair. Errors: kUnavailable: nobody, or not the
  // owner, or it refuses this end.
  absl::StatusOr<QueueAddress> Greet(VerbsLink& link, const ControlAddress& at, uint16_t port,
                                     Nanos deadline) const;

  // All with mutex_ held.
  bool Accept();  // False: the process has no descriptor for one more.
  int PollMillis(bool draining);
  void EndSilent();
  void Read(Inbound& inbound);
  void Take(Inbound& inbound, const ControlFrame& frame);
  void TakeHello(Inbound& inbound, const ControlFrame& frame);
  void TakeOpen(Inbound& inbound, const ControlFrame& frame);
  void Read(VerbsLink& link);
  void Take(VerbsLink& link, const ControlFrame& frame);
  bool SendDrained();
  void RemoveEnded();
  void FreeRegions();
  bool IsInUse(uint64_t region, bool unacknowledged_only) const;
  void ReadEvents();
  void EndQueue(uint32_t number);
  static void End(VerbsLink& link);

  const VerbsLocal& local_;
  const ClusterSecret secret_;
  const ControlLimits limits_;
  const ControlListener listener_;
  VerbsDescriptor self_;  // Constant after construction.
  int wake_ = -1;

  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stop_ = false;
  uint64_t next_number_ = 1;
  std::map<uint64_t, LentRegion> regions_;
  std::vector<std::unique_ptr<Inbound>> inbound_;
  std::vector<std::shared_ptr<VerbsLink>> links_;

  std::thread thread_;
};

}  // namespace lamina::transport

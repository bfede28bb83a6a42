// SPDX-License-Identifier: Apache-2.0
//
// DeviceQueries: the source of steps that the device serves by itself: a channel takes the rows of
// a query window (kernels/window_channel.h), the device attends (kernels/kv_step_attention.h), and
// the channel sends the outputs to the reply window. This enqueues the units of what fits ahead of
// their data, and looks at how far the device is.
//
// The choice is made when a step begins, so the data thread and the device never serve the same
// unit. Units are counted as if the thread had served them; of their time the device tells how long
// it worked, the rest was waiting for queries.
//
// Threading: the data thread; Abort() from any. Allocation: none per unit.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_step_attention.h"
#include "kernels/window_channel.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/query_parts.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"
#include "telemetry/landing_spans.h"
#include "telemetry/outbox_spans.h"

namespace lamina::memory_node {

class DeviceQueries final : public WorkSource {
 public:
  // References must outlive this. `channel` is what MakeChannel() made of the epoch's device.
  DeviceQueries(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
                QueryParts& parts, std::unique_ptr<kernels::WindowChannel> channel);

  // Why the device cannot serve steps of an epoch by itself, whatever device it is; empty where it
  // can, and where it must not (pipeline.device_waits).
  static std::string Obstacle(const plan::EpochConfig& config, transport::Region& region);

  // The device's channel between the own query windows and the reply windows of the epoch's compute
  // nodes, whose waits last until the worker has not looked for `silence_max`. The device must have
  // step lanes for each of them. It uses the region until the channel is gone.
  // Errors: kUnimplemented  the device cannot wait. Others are the device's: the driver has the
  //         last word on which of the host's memory it takes.
  static absl::StatusOr<std::unique_ptr<kernels::WindowChannel>> MakeChannel(
      const plan::EpochConfig& config, transport::Region& region, kernels::KvDevice& device,
      Nanos silence_max);

  // If the driver does not take the windows of peers, it takes no step: others serve them.
  absl::Status Open() override;
  void Close() override;
  uint32_t share() const override { return 1; }
  absl::StatusOr<bool> TakeStep(Lane& lane) override;
  // The first query of the step behind one that it serves: that one is about to be seen to be done.
  void AppendAwaited(std::vector<transport::SignalCondition>& conditions) override;
  Nanos LookAt(Nanos now) const override;
  // Looks at how far the device is, and takes plans. Errors: the device's, and of windows that it
  // refused, blamed on the sender.
  absl::Status Look() override;
  absl::Status Serve(size_t) override { return Look(); }

  // Ends the device's waits, now and later.
  void Abort() { channel_->Abort(); }

 private:
  // For a lane whose step the device serves: its units that were enqueued, and of these the ones
  // that have been seen to be done.
  struct Progress {
    uint32_t enqueued = 0;
    uint32_t seen = 0;
  };
  // A unit that the device has served, until its time has been counted.
  struct DoneUnit {
    const Lane* lane = nullptr;
    uint32_t sender = 0;  // A compute node.
    uint64_t value = 0;
    Nanos nanos = 0;   // That the device worked,
    Nanos waited = 0;  // after it had stood still for so long.
    uint64_t read_bytes = 0;
  };

  absl::Status OpenPeers();
  uint32_t RunnerOf(const Lane& lane, uint32_t slice) {
    return epoch_.RunnerOf(parts_.of(lane).front().shard, lane, slice);
  }
  bool Fits(const Lane& lane);
  absl::Status EnqueueAhead(const Lane& lane);
  absl::Status EnqueueUnit(const Lane& lane, uint32_t layer);
  // `sender` becomes the compute node of the unit that was looked at last.
  absl::Status LookAtLane(Lane& lane, uint32_t& sender);
  void NoteUnit(const Lane& lane, Nanos nanos);
  void EndUnitIntervals();
  void RecordWaits(Nanos now);
  absl::Status Failure(const Lane& lane, const kernels::FailedTake& failed);

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  StepFeed& feed_;
  UnitMeter& meter_;
  QueryParts& parts_;
  kernels::KvStepAttention& attention_;  // The epoch's device's.
  const std::unique_ptr<kernels::WindowChannel> channel_;
  telemetry::OutboxSpans sends_;      // To compute nodes, of the device.
  telemetry::LandingSpans landings_;  // Queries, in the device's memory.
  bool open_ = false;                 // It reaches all peers.
  std::vector<Progress> progress_;    // [lanes]
  std::vector<kernels::StepRow> step_rows_;
  std::vector<DoneUnit> done_;  // Seen by this look.
  Nanos progressed_ = 0;        // When a unit was last seen to be done, or enqueued.
  Nanos looked_ = 0;
};

}  // namespace lamina::memory_node

// SPDX-License-Identifier: Apache-2.0
//
// DeviceQueries: the source of steps that the device serves by itself (kernels/kv_waits.h): what
// fits, launches ahead of the data, and looks at how far it is.
//
// The choice is made when a step begins, so the data thread and the device never serve the same
// unit. Units are counted as if the thread had served them; of their time the device tells how long
// it worked, the rest was waiting for queries.
//
// Threading: the data thread; Abort() from any. Allocation: none per unit.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kv_waits.h"
#include "memory_node/node_epoch.h"
#include "memory_node/query_checks.h"
#include "memory_node/query_parts.h"
#include "memory_node/step_feed.h"
#include "memory_node/unit_meter.h"
#include "memory_node/work_source.h"

namespace lamina::memory_node {

class DeviceQueries final : public WorkSource {
 public:
  // References must outlive this.
  DeviceQueries(const NodeEpoch& epoch, const QueryChecks& checks, StepFeed& feed, UnitMeter& meter,
                QueryParts& parts, kernels::KvWaits& waits);

  // Why the device cannot serve steps of an epoch by itself, whatever device it is; empty where it
  // can, and where it must not (pipeline.device_waits).
  static std::string Obstacle(const plan::EpochConfig& config, transport::Region& region);

  // Without windows that the driver takes, it takes no step: others serve them.
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
  void Abort() { waits_.Abort(); }

 private:
  // Of a lane whose step the device serves: its units that wait there or are done, and of these
  // the ones that have been seen to be done.
  struct Progress {
    uint32_t launched = 0;
    uint32_t seen = 0;
  };
  // A unit that the device has served, until its time has been counted.
  struct DoneUnit {
    const Lane* lane = nullptr;
    uint32_t sender = 0;  // A compute node.
    uint64_t value = 0;
    Nanos nanos = 0;
    uint64_t read_bytes = 0;
  };

  absl::Status OpenWindows();
  uint32_t RunnerOf(const Lane& lane, uint32_t slice) {
    return epoch_.RunnerOf(parts_.of(lane).front().shard, lane, slice);
  }
  bool Fits(const Lane& lane);
  absl::Status LaunchAhead(const Lane& lane);
  kernels::WaitingUnit UnitOf(const Lane& lane, uint32_t layer);
  // `sender` becomes the compute node of the unit that was looked at last.
  absl::Status LookAtLane(Lane& lane, uint32_t& sender);
  void NoteUnit(const Lane& lane, Nanos nanos);
  void EndUnitIntervals();
  absl::Status Failure(const Lane& lane, kernels::WaitOutcome outcome);

  const NodeEpoch& epoch_;
  const QueryChecks& checks_;
  StepFeed& feed_;
  UnitMeter& meter_;
  QueryParts& parts_;
  kernels::KvWaits& waits_;
  bool open_ = false;
  transport::DirectMemory queries_;                     // Of the own region,
  std::vector<transport::DirectMemory> reply_windows_;  // and of each compute node's.
  std::vector<Progress> progress_;                      // [lanes]
  std::vector<kernels::WaitingRow> waiting_rows_;
  std::vector<DoneUnit> done_;  // Seen by this look.
  Nanos progressed_ = 0;        // When a unit was last seen to be done, or launched.
  Nanos looked_ = 0;
};

}  // namespace lamina::memory_node

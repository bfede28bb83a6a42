// SPDX-License-Identifier: Apache-2.0
//
// AttentionWorker: the data thread of a memory node in one epoch. Polls query windows, copies k and
// v into slots, attends, and puts the outputs into reply windows.
//
// It decides nothing: slots, rows and order come from plans. A query window may arrive before its
// plan (shared memory outruns gRPC): the worker waits for the plan. Plans in which this node has no
// part never get a window; their changes to the tables are applied as soon as the step before is
// done.
//
// Rows of a unit come in chunks (coordinator/core/row_chunks.h), of rows or of heads; each is
// attended when it is here, and its outputs leave at once. Lanes take turns between chunks that
// have not come yet.
//
// Where compute nodes are shards, each sends the rows of its own heads: a unit comes in one part
// for each shard that has heads here, in any order, and is served part by part. The device stores
// and attends these heads by themselves, so that windows need no gathering. A replica for prompts
// alone may have other shards than those that decode.
//
// Where the device and all windows allow it, steps of decode rows in one piece are the device's:
// their units are launched ahead of the data, and the worker only looks how far they are. The
// choice is made when a step begins, so the worker and the device never serve the same unit.
//
// Where the query windows lie in the device's memory, rows stay there: the device reads them where
// they are, and outputs of whole rows are put from its memory. The header of a unit is copied to
// the host beside the first rows' attention and checked before anything is answered.
//
// Parts: step_rows.h the rows of a step that live here; unit_attention.h the arithmetic of a unit.
// Files: attention_worker.cc the loop, plans and tables; attention_unit.cc one unit, from window to
// window; attention_device_rows.cc windows in the device's memory; attention_waits.cc steps that
// the device serves.
//
// Threading: Run() on one thread; PushPlan() and Stop() from any other.
// Allocation: none per unit; tables grow when sequences join.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "control/inbox.h"
#include "control/node_handler.h"
#include "kernels/attention.h"
#include "kernels/kv_device.h"
#include "memory_node/lane.h"
#include "memory_node/unit_attention.h"
#include "memory_node/worker_counters.h"
#include "plan/epoch_shape.h"
#include "plan/pipeline_schedule.h"
#include "plan/slot_tables.h"
#include "plan/step_plan.h"
#include "plan/window_layout.h"
#include "telemetry/work_meter.h"
#include "transport/transport.h"

namespace lamina::memory_node {

class AttentionWorker {
 public:
  struct Options {
    plan::EpochConfig config;
    uint32_t node = 0;                  // Own index among the memory nodes.
    bool device_waits = false;          // Where the device waits for windows itself, it may.
    Nanos peer_deadline = Seconds(60);  // Longest wait inside a started unit.
  };

  // All references must outlive the worker.
  AttentionWorker(const Options& options, transport::Transport& transport,
                  transport::Region& region, kernels::KvDevice& device, ThreadPool& pool,
                  WorkerCounters& counters);
  ~AttentionWorker();
  AttentionWorker(const AttentionWorker&) = delete;
  AttentionWorker& operator=(const AttentionWorker&) = delete;

  // That the query windows lie in memory of the device, and outputs may, in `replies`, which has
  // room for so much and outlives the transport. Call before Run(). Errors: the device's.
  size_t device_reply_bytes() const;
  absl::Status UseDeviceMemory(absl::Span<std::byte> replies);

  // Replies of compute node i go to replies[i]. Call before Run().
  void SetPeers(std::vector<std::unique_ptr<transport::RemoteRegion>> replies);

  // What a device is asked for at most in this epoch, with `slots` of `layers`.
  static kernels::KvDeviceOptions DeviceOptions(const plan::EpochConfig& config,
                                                std::vector<AttentionDescriptor> layers,
                                                uint32_t slots);

  // Why the device cannot serve steps of an epoch by itself, whatever device it is; empty where it
  // can, and where it must not (pipeline.device_waits).
  static std::string WaitsObstacle(const plan::EpochConfig& config, transport::Region& region);

  // Works until Stop() (OK) or until something is wrong: an error that names the peer it blames.
  absl::Status Run();

  void PushPlan(plan::StepPlan plan);
  void Stop();

 private:
  // A unit that the device has served, until its time has been counted.
  struct DeviceUnit {
    uint32_t lane = 0;
    uint32_t sender = 0;  // A compute node.
    uint64_t value = 0;
    Nanos nanos = 0;
    uint64_t read_bytes = 0;
  };
  static constexpr uint32_t kNoPart = UINT32_MAX;

  // The time since the last lap went into `part` of a unit. Returns how much it was.
  Nanos Lap(telemetry::WorkPart part, uint32_t lane, uint64_t value, uint32_t replica,
            size_t bytes = 0);
  absl::Status AnswerLinks();
  absl::StatusOr<size_t> WaitForQueries();
  // Those with heads here of one replica that runs the lane.
  std::vector<Part> MakeParts(uint32_t lane) const;
  // Of the lane, for a compute node; null if it takes no part, or its shard has no heads here.
  Part* PartFor(uint32_t compute_node, uint32_t lane);
  uint32_t FindPart(uint32_t compute_node, uint32_t lane) const;
  absl::Status ServeUnit(uint32_t replica, uint32_t lane);
  absl::Status BeginUnit(uint32_t replica, uint32_t lane_index, Part& part, uint64_t value);
  absl::Status ServePiece(uint32_t replica, uint32_t lane_index, Part& part, uint64_t last);
  absl::Status EndUnit(uint32_t replica, uint32_t lane_index, Part& part);
  void NoteUnit(const Lane& lane, const Part& part);
  absl::Status CheckWindow(const plan::WindowHeader& header, const plan::WindowHeader& expected);
  // Whether a unit's header says what its signal says, and what the plan says.
  absl::Status CheckBySignal(const plan::WindowHeader& header, uint32_t replica,
                             uint32_t lane_index, uint64_t value);
  absl::Status CheckByPlan(const plan::WindowHeader& header, uint32_t replica, uint32_t lane_index,
                           uint64_t value);
  absl::StatusOr<plan::WindowHeader> ReadHeader(uint32_t replica, uint32_t lane_index,
                                                uint64_t value);
  absl::Status LandWindow(uint32_t replica, uint32_t lane_index, const Part& part, uint64_t value);
  absl::Status SettleWindow(uint32_t replica, uint32_t lane_index, Part& part, uint64_t value);
  absl::Status TakePlans();
  absl::Status Advance(Lane& lane);
  absl::Status AwaitPlan(const Lane& lane);
  absl::Status Reply(uint32_t lane_index, Part& part, const RowChunk& chunk);
  // attention_waits.cc
  void OpenWaits();
  absl::Status OpenWindows();
  // The compute node that runs a slice of the lane's step.
  uint32_t RunnerOf(uint32_t lane_index, uint32_t slice) const;
  absl::Status GiveToDevice(Lane& lane);
  absl::Status LaunchAhead(uint32_t lane_index);
  kernels::WaitingUnit UnitOf(uint32_t lane_index, uint32_t layer) const;
  plan::WindowHeader QueryHeader(uint32_t lane_index, uint32_t layer) const;
  absl::Status LookAtDevice();
  absl::Status LookAtLane(uint32_t lane_index, uint32_t& sender);
  void NoteDeviceUnit(uint32_t lane_index, Nanos nanos);
  void LapDeviceUnits();
  absl::Status DeviceFailure(uint32_t lane_index, kernels::WaitOutcome outcome);
  Nanos NextLook() const;
  absl::Status Serve();

  const Options options_;
  const std::vector<AttentionDescriptor> layers_;  // Over the heads that are here.
  const plan::WindowLayout layout_;
  std::vector<plan::PipelineSchedule> schedules_;  // By shard.
  std::vector<uint32_t> part_of_;  // [compute nodes, lanes]: index of the part, or kNoPart.
  transport::Transport& transport_;
  transport::Region& region_;
  kernels::KvDevice& device_;
  WorkerCounters& counters_;
  kernels::KvWaits* const waits_;  // Null: the device cannot, or must not.
  bool rows_on_device_ = false;    // The query windows lie in its memory.
  absl::Span<std::byte> device_replies_;
  std::vector<std::unique_ptr<transport::RemoteRegion>> replies_;
  control::Inbox<plan::StepPlan> inbox_;
  transport::AbortWord abort_{0};

  // Worker thread only.
  std::vector<Lane> lanes_;
  plan::SlotTables tables_;
  UnitAttention attention_;
  std::vector<transport::SignalCondition> conditions_;  // [compute node x lane], rotated.
  size_t first_condition_ = 0;
  std::vector<plan::StepPlan> taken_;
  LineFit unit_times_;
  std::vector<telemetry::LinkCounters*> links_;  // [compute nodes]
  Nanos lap_ = 0;                                // End of the last one.
  // With waits_:
  bool waits_open_ = false;
  transport::DirectMemory queries_;                     // Of the own region,
  std::vector<transport::DirectMemory> reply_windows_;  // and of each compute node's.
  std::vector<kernels::WaitingRow> waiting_rows_;
  std::vector<DeviceUnit> device_units_;  // Seen by this look.
  Nanos progress_ = 0;                    // When a unit was last seen to be done, or launched.
};

}  // namespace lamina::memory_node

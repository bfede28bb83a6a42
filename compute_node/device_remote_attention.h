// SPDX-License-Identifier: Apache-2.0
//
// DeviceRemoteAttention: rows attend at memory nodes, and the device exchanges them by itself
// (kernels/window_channel.h), in steps of decode rows alone, whole, in a lane all of whose slices
// run here: of the only node that decodes, or of a fixed replica. Steps that it cannot take go by
// way of the host (remote_attention.h).
//
// At each of the lane's turns the device is given a unit ahead of time: wait for the outputs
// before, take them, run the slice, send. The next turn comes when that wait has ended, so that the
// device always has one unit of the lane to go on with, and other lanes' units between.
//
//   ready --take, slice k, send--> waiting --take k - 1 has ended--> ready (k + 1) ... --tail-->
//   idle
//
// Behind the last outputs the tail goes as in every step: its end waits for the device.
//
// Threading: as AttentionPath. Allocation: per epoch.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/remote_attention.h"
#include "compute_node/worker_context.h"
#include "kernels/window_channel.h"
#include "telemetry/landing_spans.h"
#include "telemetry/outbox_spans.h"

namespace lamina::compute_node {

class DeviceRemoteAttention final : public AttentionPath {
 public:
  // Why the device of a compute node, whatever device it is, cannot exchange rows of an epoch;
  // empty where it can. `config` is as the node's shard works with it, whose index is `own`.
  static std::string Obstacle(const plan::EpochConfig& config, uint32_t own);

  // The context must outlive this.
  DeviceRemoteAttention(const WorkerContext& context, std::unique_ptr<RemoteAttention> by_host)
      : context_(context),
        by_host_(std::move(by_host)),
        sends_(context.counters.meter.ring(), context.layout,
               context.layout.query_word(context.node, 0)),
        landings_(context.counters.meter.ring(), context.layout),
        lanes_(context.config.lanes) {}

  // Takes memory of the executor's device, if it can exchange rows and nothing of the epoch is in
  // the way; the log says which.
  absl::Status Prepare() override;
  std::string Describe() const override;
  uint64_t buffer_bytes() const override { return by_host_->buffer_bytes(); }
  // If the device does not reach a peer, all steps go the host's way.
  absl::Status Open() override;
  // Unregisters the peers' windows.
  void Close() override {
    channel_.reset();
    sends_.Clear();
    landings_.Clear();
  }
  void Abort() override;

  absl::Status BeginStep(Lane& lane, const PathRows& rows) override;
  // Orders the outputs before the slice. Behind the last ones the lane waits until they came: the
  // tail waits for the device.
  absl::StatusOr<bool> BeforeSlice(Lane& lane) override;
  absl::Status Attend(Lane& lane) override;
  bool Await(Lane& lane) override;
  // Whether more can be ordered.
  absl::StatusOr<bool> Poll(Lane& lane) override;
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const override;
  std::optional<Nanos> PollPause(const Lane& lane) const override;
  bool TimesSlices(const Lane& lane) const override { return lanes_[lane.index].takes; }

 private:
  struct LaneState {
    bool stays = false;         // All slices of decode steps run on this node.
    bool takes = false;         // The device exchanges the rows of the lane's step.
    bool take_due = false;      // The outputs before lane.slice are not ordered yet.
    bool taking = false;        // An order of outputs has not been seen to end:
    uint32_t taking_layer = 0;  // these.
  };

  std::string WhyRowsAreCopied() const;
  bool CanTake(const Lane& lane, const PathRows& rows) const;
  absl::Status OrderTake(Lane& lane);
  absl::Status Send(Lane& lane);
  absl::Status FaultOf(const Lane& lane, const kernels::FailedTake& failed);
  void NoteTaken(Lane& lane);
  void EndTakeIntervals(const Lane& lane, Nanos waited);

  const WorkerContext& context_;
  const std::unique_ptr<RemoteAttention> by_host_;
  std::unique_ptr<kernels::WindowChannel> channel_;  // Null: there is none,
  std::string why_copied_;                           // and why.
  bool open_ = false;                                // It reaches all peers.
  telemetry::OutboxSpans sends_;                     // To memory nodes, of the device.
  telemetry::LandingSpans landings_;                 // Replies, in the device's memory.
  std::vector<LaneState> lanes_;
  std::vector<kernels::RowsIn> rows_in_;
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// DeviceExchange: steps whose rows the device exchanges with memory nodes by itself
// (kernels/window_exchange.h): decode rows alone, whole, in a lane all of whose slices run here: of
// the only node that decodes, or of a fixed replica. At each of the lane's turns the device is
// given a unit ahead of time: wait for the outputs before, take them, run the slice, send. The next
// turn comes when that wait has ended, so that the device always has one unit of the lane to go on
// with, and other lanes' units between.
//
//   ready --take, slice k, send--> ahead --take k - 1 has ended--> ready (k + 1) ... --tail--> idle
//
// Behind the last outputs the tail goes as in every step: its end waits for the device.
//
// Threading: the data thread; Abort() from any. Allocation: per epoch.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compute_node/worker_context.h"
#include "kernels/window_exchange.h"

namespace lamina::compute_node {

class DeviceExchange {
 public:
  // `patience`: of a wait for one peer. The context must outlive this.
  DeviceExchange(const WorkerContext& context, Nanos patience)
      : context_(context), patience_(patience), lanes_(context.config.lanes) {}

  // Takes memory of the executor's device, if it can exchange rows and nothing of the epoch is in
  // the way; the log says which. First of all calls.
  void Prepare();

  // For people, once prepared: how rows get to the device, and why not by itself. Empty on the
  // processor.
  std::string Describe() const;

  // By the thread that runs, when the peers are connected. If the device does not reach one, all
  // steps go the host's way.
  void Open();

  // Unregisters the peers' windows.
  void Close() { exchange_.reset(); }

  // Whether the lane's step, which is laid out, can go this way.
  bool Takes(const Lane& lane) const;

  // From now on the outputs of the slice before the lane's have to be ordered.
  void Await(const Lane& lane) { lanes_[lane.index].take_due = true; }

  // Orders these outputs, if they have to be. Whether it has. Errors: the device's.
  absl::StatusOr<bool> TakeIfDue(Lane& lane);

  // Orders that the rows of the lane's slice leave. Errors: the device's.
  absl::Status Send(Lane& lane);

  // Whether the outputs that were ordered last are there, so that more can be ordered.
  // Errors: the device's; as Peers::CheckWindow() and NothingFrom(); kCancelled.
  absl::StatusOr<bool> HasGotOn(Lane& lane);

  // While nothing can be ordered: device and peers get on without this thread.
  void Nap() const;

  // Ends what the device waits for, now and from now on.
  void Abort();

 private:
  struct LaneState {
    bool stays = false;         // All slices of a decode step run on this node.
    bool take_due = false;      // The outputs before lane.slice are not ordered yet.
    bool taking = false;        // An order of outputs has not been seen to end:
    uint32_t taking_layer = 0;  // these.
  };

  std::string WhyRowsAreCopied() const;
  bool Stays(uint32_t lane) const;
  absl::Status FaultOf(const Lane& lane, const kernels::FailedTake& failed);
  void NoteTaken(Lane& lane);

  const WorkerContext& context_;
  const Nanos patience_;
  std::unique_ptr<kernels::WindowExchange> exchange_;  // Null: there is none,
  std::string why_copied_;                             // and why.
  bool open_ = false;                                  // It reaches all peers.
  std::vector<LaneState> lanes_;
  std::vector<kernels::RowsIn> rows_in_;
};

}  // namespace lamina::compute_node

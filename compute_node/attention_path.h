// SPDX-License-Identifier: Apache-2.0
//
// AttentionPath: one way by which rows of a step attend: at memory nodes, over KV that is here, or
// as a KV strategy has it. The worker (step_worker.h) runs slices, and between slices k and k + 1
// every path makes the attention outputs of its own rows. A layer is ready when all paths that have
// rows in the step are.
//
//   Apply(plan)                                 every plan of the epoch
//   BeginStep(lane, rows)                       a step with rows of this path
//     WhileWeightsCome(lane)                    on the node that runs slice k, where they stream,
//     BeforeSlice(lane)    slice k runs         on that node,
//     Attend(lane)                              when q, k and v of slice k are there;
//     Await(lane), Poll(lane) until true        on the node that runs slice k + 1
//   EndStep(lane)                               the step's tokens are there
//
// With several compute nodes slice k + 1 may run elsewhere: outputs of decode rows go to the node
// that runs it. Chunks attend on the node that ran slice k, and their outputs move on with the
// context (replica_exchange.h); so do those of decode rows whose path attends there.
//
// What a path needs is its own: windows, registered memory, scratch, threads. It finds the rows'
// values in the lane's buffers, through WorkerContext::executor, and may run ops there on rows of
// its own. Work that is to overlap with a slice it starts in BeginStep() or Attend(), ahead of the
// slice that needs it.
//
// A new path is a class, a kind in plan/attention_paths.h and a maker (path_maker.h).
//
// Threading: Prepare(), PrepareLane() and Describe() before the data thread begins; Abort() on any
// thread; all else on the data thread. Allocation: per epoch and step, none per slice.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "compute_node/lane.h"
#include "compute_node/peers.h"

namespace lamina::compute_node {

class AttentionPath {
 public:
  AttentionPath() = default;
  virtual ~AttentionPath() = default;
  AttentionPath(const AttentionPath&) = delete;
  AttentionPath& operator=(const AttentionPath&) = delete;

  // Takes the memory that the epoch's steps need. Errors: those of the device.
  virtual absl::Status Prepare() { return absl::OkStatus(); }

  // The lane runs here, and its buffers are made, of which nothing has been captured: says what its
  // slices do for this path. After Prepare().
  virtual void PrepareLane(Lane& /*lane*/) {}

  // Bytes of the host that grow with lanes, rows or tokens, besides windows and what the maker has
  // reserved (PathMaker::kv_bytes()): sources of puts, sets of tokens. Once prepared.
  virtual uint64_t buffer_bytes() const { return 0; }

  // For people, once prepared: how rows get to where they attend. May be empty.
  virtual std::string Describe() const { return ""; }

  // The peers are connected. First call of the data thread.
  // Errors: those of the device; those of the transport, marked as its faults
  // (control/transport_fault.h). The epoch ends with them.
  virtual absl::Status Open() { return absl::OkStatus(); }

  // The peers are about to be disconnected: nothing of this path may reach for their regions later.
  virtual void Close() {}

  // Ends every wait of the path, now and from now on, with kCancelled.
  virtual void Abort() {}

  // A plan whose step begins: its changes to the tables, whether or not it has rows of this path.
  // Errors: kInternal  the plan does not follow from the tables.
  virtual absl::Status Apply(const plan::StepPlan& /*plan*/) { return absl::OkStatus(); }

  // The lane's step is laid out and has these rows. Also on nodes that run none of its slices.
  // Errors: kInternal  the plan does not follow from the tables, or does not fit the epoch.
  virtual absl::Status BeginStep(Lane& lane, const PathRows& rows) = 0;

  // The lane is at its slice, behind Poll() of the one before, and the slice's weights are still
  // coming: does some of what needs them in part, or not at all. Called again and again until they
  // are here. Errors: those of the device; as Peers::CheckWindow(), Peers::Put().
  virtual absl::Status WhileWeightsCome(Lane& /*lane*/) { return absl::OkStatus(); }

  // The thread has turned to the lane's slice, to begin it or to go on with it. False: something is
  // missing, for which the lane waits by Poll(). Errors: those of the device.
  virtual absl::StatusOr<bool> BeforeSlice(Lane& /*lane*/) { return true; }

  // q, k and v of the lane's slice are computed: sends the rows, attends, or orders both.
  // Errors: those of the device; as Peers::Put().
  virtual absl::Status Attend(Lane& lane) = 0;

  // From now on Poll() takes the outputs of the slice before the lane's. Whether any are missing.
  virtual bool Await(Lane& lane) = 0;

  // Takes what has come, or attends over what has come. Whether nothing is missing any more, which
  // stays so until the next Await(): then the outputs of this path's rows are where the executor
  // reads them, those of the model's last layer of the rows of lane.tail at least. Errors: those of
  // the device; as Peers::CheckWindow(), Peers::NothingFrom().
  virtual absl::StatusOr<bool> Poll(Lane& lane) = 0;

  // Appends the signals that Poll() waits for.
  virtual void AppendAwaited(const Lane& /*lane*/, std::vector<AwaitedSignal>& /*awaited*/) const {}

  // What Poll() waits for raises no signal of this host: how long the thread may pause before it
  // polls again; 0 is a yield. Nothing: the signals tell.
  virtual std::optional<Nanos> PollPause(const Lane& /*lane*/) const { return std::nullopt; }

  // Slices of the step are ordered ahead of their inputs, so that the thread's time is not theirs:
  // the path adds to Lane::slices_nanos and slices_run itself.
  virtual bool TimesSlices(const Lane& /*lane*/) const { return false; }

  // How many decode rows of the step, the first ones, have their outputs from elsewhere: those of
  // all others move on with the context. Given these rows of the path, whose count is not 0.
  virtual uint32_t RowsFromElsewhere(const PathRows& rows) const {
    return rows.decode.first + rows.decode.count;
  }

  // The step's tokens are there.
  virtual void EndStep(Lane& /*lane*/) {}
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// LocalKv: the KV that a compute node keeps itself, in slots of its own: it stores k and v of a
// step's rows there, and attends them. Of the model it has the layers of the node's stage, over the
// heads of its shard.
//
// Decode rows and prompt chunks alike: a chunk attends over the slots of its sequence, so there is
// no scratch KV. The bits are those of every other path, as attention's arithmetic is canonical.
//
//   Apply(plan)                       every plan
//   BeginStep(lane, rows)             once a step
//   Store(lane, layer, qkv)           then Attend(lane, layer, qkv, out): once a layer
//
// Where the device has Planes(), the call that makes k and v may store them: then SlotsOfRows() is
// what it stores by, and Store() is left out.
//
// Threading: one thread.   Allocation: per step, none per layer.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/lane.h"
#include "control/node_handler.h"
#include "kernels/int8_runs.h"
#include "kernels/kv_device.h"
#include "kernels/matrix_view.h"
#include "plan/slot_tables.h"
#include "plan/stages.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class LocalKv {
 public:
  // What a device is asked for in this epoch by a node that runs `stage` and has this index among
  // those that hold KV: replicas differ in slots. `config` is as the node's shard works with it.
  static kernels::KvDeviceOptions DeviceOptions(const plan::EpochConfig& config,
                                                const plan::Stage& stage, uint32_t node);

  // The device is one that was made for `config` and `stage`, and must outlive this. `tails`: as
  // SlotTables has it.
  LocalKv(const plan::EpochConfig& config, const plan::Stage& stage, kernels::KvDevice& device,
          plan::Tails* tails = nullptr);

  // By the thread that will call the others, before them. Errors: those of the device.
  absl::Status Begin() { return device_.Begin(); }

  // The plan's changes to the tables. Errors: kInternal  they do not fit the tables.
  absl::Status Apply(const plan::StepPlan& plan) { return tables_.Apply(plan); }

  // The lane's next step begins, without rows so far, or with these of a step that is laid out:
  // what the model's last layer makes of rows of prompts that are neither sampled nor scored is not
  // read by anyone, so that they do not attend there. Errors: as AddRows().
  void BeginStep(uint32_t lane) { steps_[lane].clear(); }
  absl::Status BeginStep(const Lane& lane, const PathRows& rows);

  // Rows [first_row, + tokens) of the lane's step are these consecutive tokens of the sequence.
  // Errors: kInternal  the sequence is not here, or has no slots for them.
  absl::Status AddRows(uint32_t lane, plan::SequenceId id, uint32_t first_row, uint32_t first_token,
                       uint32_t tokens);

  // Where Store() puts the layer's k and v. Nothing: it is not a layer of the stage, or Store()
  // alone puts them there.
  std::optional<kernels::KvPlanes> Planes(uint32_t layer) const;
  // Slots of the rows of the lane's step; rows of others are left as they are.
  // Requires: all rows of the step lie in `slots`.
  void SlotsOfRows(uint32_t lane, absl::Span<uint32_t> slots) const;

  // Copies k and v of all rows of the lane's step into their slots. Where these are INT8, rows are
  // stored by Attend().
  // `layer` is one of the model's that the node's stage has.
  // Shapes: qkv  [rows, q | k | v], of the layer. Errors: those of the device.
  absl::Status Store(uint32_t lane, uint32_t layer, const kernels::MatrixView<BFloat16>& qkv);

  // Attends all rows of the lane's step whose outputs are read; others' are left as they are.
  // Returns how many bytes of K and V that read.
  // Shapes: out  [rows, query heads * head_dim]. Errors: those of the device.
  // Cost: as AttentionKernel::Attend.
  absl::StatusOr<uint64_t> Attend(uint32_t lane, uint32_t layer,
                                  const kernels::MatrixView<BFloat16>& qkv,
                                  const kernels::MatrixView<BFloat16>& out);

 private:
  // Consecutive tokens of a sequence, as rows of the step.
  struct Rows {
    const plan::SlotTables::Sequence* sequence = nullptr;
    uint32_t first_row = 0;
    uint32_t first_token = 0;
    uint32_t tokens = 0;
    std::vector<Extent> slots;  // Slots of these tokens.
    // Outputs of the last layer are read of `read` of these tokens, from `read_from` on.
    uint32_t read_from = 0;
    uint32_t read = 0;
  };
  void FindRead(const Lane& lane);

  absl::StatusOr<uint64_t> AttendInt8(uint32_t lane, uint32_t layer,
                                      const kernels::MatrixView<BFloat16>& qkv,
                                      const kernels::MatrixView<BFloat16>& out);

  const std::vector<AttentionDescriptor> layers_;  // The model's.
  const uint32_t first_layer_;                     // The device's layers begin with this one,
  const uint32_t end_layer_;                       // and end before this one.
  kernels::KvDevice& device_;
  plan::SlotTables tables_;
  std::vector<std::vector<Rows>> steps_;  // [lanes]
  std::vector<kernels::KvRows> stored_;
  std::vector<kernels::AttentionItem> items_;
  kernels::Int8Runs int8_runs_;
  std::vector<kernels::Int8Run> runs_;
};

}  // namespace lamina::compute_node

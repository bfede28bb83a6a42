// SPDX-License-Identifier: Apache-2.0
//
// TokenRows: makes K and V of the first tokens of each run's sequence again from their numbers, for
// one step (path recompute; the token recomputation of hybridserve.txt, Figure 4). They are rows of
// their own, which run through a layer's slice behind the lane's and attend to each other here, as
// a prompt does. So they have the bits of those that memory nodes keep, whatever chunks or steps
// these came from.
//
//   BeginStep(lane, runs)  which tokens, by the step's plan
//   Make(lane)             once a layer, behind the lane's slice and with its weights
//   Fill(lane, run, into)  K and V of the layer into a piece, until the next one's Make()
//
// Rows go through a layer in blocks. What they carry on to the next one, the values that cross the
// attention and its output, lies here for all of them; K and V for one layer, in the form that
// memory nodes have (made_kv.h). Nothing is kept for the next step.
//
// Threading: the data thread. Memory: in Prepare(). Allocation: per step.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv_form.h"
#include "compute_node/kept_kv.h"
#include "compute_node/lane.h"
#include "compute_node/made_kv.h"
#include "compute_node/making_line.h"
#include "compute_node/prompt_work.h"
#include "compute_node/step_layout.h"
#include "compute_node/value_buffers.h"
#include "compute_node/worker_context.h"
#include "kernels/arena_memory.h"
#include "kernels/attention.h"
#include "plan/fetch_split.h"
#include "plan/step_plan.h"
#include "telemetry/work_kind.h"

namespace lamina::compute_node {

class TokenRows final : public KeptKv {
 public:
  // Rows that run together.
  static constexpr uint32_t kRows = 256;

  // Each lane of the context's epoch has room for `made_tokens_max` tokens. `kernel` has the bits
  // by which prompts attend. References must outlive this.
  TokenRows(const WorkerContext& context, const kernels::AttentionKernel& kernel);

  // Takes the memory, and times a layer for the coordinator.
  // Errors: those of the device; kResourceExhausted  names the key that asks for the memory.
  absl::Status Prepare();
  uint64_t bytes() const;

  // A step of the lane, with these runs of rows, each of one sequence. Its prompt work grows by the
  // tokens that are made.
  // Errors: kInternal  the plan does not follow from the tables, or makes more than there is room
  //                    for.
  absl::Status BeginStep(Lane& lane, absl::Span<const RowRun> runs);

  // Makes K and V of the lane's layer. Requires: it has been called for those before, in order, and
  // the slice's weights are here. Errors: those of the device.
  absl::Status Make(Lane& lane);

  // The layer is that of the last Make().
  void Fill(const Lane& lane, uint32_t layer, const RowRun& run, const plan::TokenSpan& tokens,
            const MadeKv::Into& into) const override;

 private:
  // The first tokens of a sequence: rows, and slots, [first, first + tokens).
  struct Part {
    plan::SequenceId sequence = 0;
    uint32_t before = 0;  // Tokens in front of its run.
    uint32_t first = 0;
    uint32_t tokens = 0;
  };
  struct LaneState {
    kernels::ArenaMemory memory;  // K and V, then what rows carry on.
    uint32_t layer = 0;           // These K and V are its.
    std::vector<Part> parts;
    std::vector<uint32_t> ids;        // Numbers of the tokens of all rows,
    std::vector<uint32_t> positions;  // and where they stand.
  };
  // Rows that run together.
  struct Block {
    uint32_t first = 0;
    uint32_t rows = 0;
  };

  // Calls `ended` behind what dense layers take, and behind attention.
  absl::Status RunLayer(LaneState& state, uint32_t layer,
                        absl::FunctionRef<void(telemetry::WorkKind)> ended);
  // Rows of the block as those of their sequences, in rows_, and the layer's values of them.
  MadeKv::Layer Collect(const LaneState& state, const Block& block);
  // What the block's rows carry over the attention behind `layer`, from the buffers or to them.
  void Keep(LaneState& state, uint32_t layer, const Block& block);
  void Restore(LaneState& state, uint32_t layer, const Block& block);
  std::vector<absl::Span<std::byte>> CarriedOf(uint32_t layer, const Block& block);
  std::byte* CarriedAt(const LaneState& state, const Block& block) const {
    return state.memory.data() + kv_bytes_ + size_t{block.first} * carried_bytes_;
  }
  absl::Status Try(uint32_t rows);
  void NoteMade(uint32_t tokens, Nanos spent);

  const WorkerContext& context_;
  const uint32_t slots_;  // Rows of a lane at most.
  const KvForm form_;
  const std::unique_ptr<MadeKv> kv_;
  size_t kv_bytes_ = 0;       // K and V of a layer, for all slots.
  size_t carried_bytes_ = 0;  // What a row carries on.
  ValueBuffers buffers_;
  MakingLine making_;
  std::vector<LaneState> lanes_;
  std::vector<MadeKv::Rows> rows_;  // Those of the block at hand.
};

}  // namespace lamina::compute_node

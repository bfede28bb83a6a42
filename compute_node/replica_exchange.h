// SPDX-License-Identifier: Apache-2.0
//
// ReplicaExchange: what compute nodes tell each other: the context of a lane whose next slice runs
// on another node, of the same replica or not, and the tokens that end a step.
//
// Threading: the data thread. Allocation: per epoch, and per slice for the list of values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/sequence_table.h"
#include "compute_node/worker_context.h"
#include "plan/step_plan.h"

namespace lamina::compute_node {

class ReplicaExchange {
 public:
  // References must outlive this.
  ReplicaExchange(const WorkerContext& context, SequenceTable& sequences, uint32_t vocabulary);

  // What puts are made from. Errors: the transport's.
  absl::Status RegisterSources();

  // Puts the context behind the lane's slice to the node that runs the next one. The attention
  // outputs of this slice go to the same node; whatever comes last makes the lane ready there.
  // Errors: as Peers::Put().
  absl::Status SendContext(Lane& lane);

  // Whether the slice before the lane's ran on another node, so that its context is to come.
  bool AwaitContext(const Lane& lane) const {
    return context_.NodeOf(lane, lane.slice - 1) != context_.node;
  }

  // Takes that context, if it has come, and tells whether it has.
  // Errors: as Peers::CheckWindow().
  absl::StatusOr<bool> TakeContext(Lane& lane);

  // To every other node that keeps the lane's sequences: they may run the next step's slices, and
  // sample these too. Errors: as Peers::Put().
  absl::Status SendTokens(Lane& lane, const plan::StepResult& result);

  // Appends the tokens that another node has sampled to their sequences, if they have come, and
  // tells whether they have.
  // Errors: as Peers::CheckWindow(); kInternal  tokens that do not
  // follow from the tables.
  absl::StatusOr<bool> TakeTokens(Lane& lane);

  // The signal that TakeContext() or TakeTokens() waits for.
  AwaitedSignal ContextSignal(const Lane& lane) const;
  AwaitedSignal TokenSignal(const Lane& lane) const;

 private:
  struct LaneState {
    plan::WindowHeader context_header;
    // Header and entries, [plan_ahead]: each is free again when its step is done everywhere.
    std::vector<std::vector<std::byte>> token_messages;
  };

  std::vector<absl::Span<std::byte>> ContextOf(Lane& lane, uint32_t slice) const;
  absl::Status TakeContextWindow(Lane& lane, PeerId sender);
  absl::Status TakeTokenWindow(Lane& lane, PeerId sender);
  absl::Status ApplyTokens(const Lane& lane, const std::byte* entries, uint32_t count);

  const WorkerContext& context_;
  SequenceTable& sequences_;
  const uint32_t vocabulary_;
  std::vector<LaneState> lanes_;
};

}  // namespace lamina::compute_node

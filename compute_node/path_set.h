// SPDX-License-Identifier: Apache-2.0
//
// PathSet: the attention paths of an epoch as the worker sees them: one. What concerns a step goes
// to the paths that have rows in it; the step is as far as the one furthest behind.
//
// Threading, errors: as AttentionPath.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compute_node/attention_path.h"
#include "compute_node/path_maker.h"
#include "compute_node/worker_context.h"

namespace lamina::compute_node {

class PathSet {
 public:
  // One path of each maker, in this order, which have reserved what the epoch needs. Requires: at
  // least one, of different kinds. The context must outlive this.
  PathSet(const WorkerContext& context, absl::Span<PathMaker* const> makers);

  uint32_t count() const { return static_cast<uint32_t>(paths_.size()); }
  // Index of the path of that kind; count() if the epoch has none.
  uint32_t IndexOf(plan::AttentionPath kind) const;

  absl::Status Prepare();
  void PrepareLane(Lane& lane);
  std::string Describe() const;
  uint64_t buffer_bytes() const;
  absl::Status Open();
  void Close();
  void Abort();

  absl::Status Apply(const plan::StepPlan& plan);
  absl::Status BeginStep(Lane& lane);
  absl::Status WhileWeightsCome(Lane& lane);
  absl::StatusOr<bool> BeforeSlice(Lane& lane);
  absl::Status Attend(Lane& lane);
  bool Await(Lane& lane);
  absl::StatusOr<bool> Poll(Lane& lane);
  void AppendAwaited(const Lane& lane, std::vector<AwaitedSignal>& awaited) const;
  // The shortest pause, if any path asks for one.
  std::optional<Nanos> PollPause(const Lane& lane) const;
  bool TimesSlices(const Lane& lane) const;
  // Over the paths that have decode rows in the step, the most.
  uint32_t RowsFromElsewhere(const Lane& lane) const;
  void EndStep(Lane& lane);

 private:
  // Calls `call` for each path that has rows in the lane's step, until one fails.
  template <typename Call>
  absl::Status ForEachOf(const Lane& lane, Call call) const;

  std::vector<plan::AttentionPath> kinds_;
  std::vector<std::unique_ptr<AttentionPath>> paths_;  // Parallel to kinds_.
};

}  // namespace lamina::compute_node

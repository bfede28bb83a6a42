// SPDX-License-Identifier: Apache-2.0
//
// PartialMerge: partition token_range: the partials of a row, one for each span of its sequence,
// become its attention output, along the merge tree (kernels/partial.h) that one node with the
// whole sequence would have followed: so the bits are the same.
//
// Threading: the data thread and its pool. Allocation: at first use.

#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compute_node/remote_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/partial.h"
#include "plan/reply_window.h"

namespace lamina::compute_node {

class PartialMerge {
 public:
  // The context must outlive this.
  explicit PartialMerge(const WorkerContext& context)
      : context_(context), folded_(context.pool.threads()) {}

  // The reply window of a memory node.
  using ReplyOf = absl::FunctionRef<plan::ReplyWindowReader(uint32_t node)>;

  // Merges those of the slice before the lane's, which all lie in their reply windows, into the
  // attention outputs.
  void Run(Lane& lane, const RemoteRows& rows, ReplyOf reply_of);

 private:
  const WorkerContext& context_;
  std::vector<plan::ReplyWindowReader> replies_;                   // [memory nodes]
  std::vector<std::vector<float>> folded_;                         // [threads]: a merged head.
  std::map<uint32_t, std::vector<kernels::PartialStack>> stacks_;  // By head_dim: the same.
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// PartialMerge: partition token_range: the partials of a row, one for each span of its sequence,
// become its attention output, along the merge tree (kernels/span_partials.h) that one node with
// the whole sequence would have followed: so the bits are the same.
//
// Threading: the data thread and its pool. Allocation: at first use.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "compute_node/remote_rows.h"
#include "compute_node/worker_context.h"
#include "kernels/span_partials.h"
#include "plan/reply_window.h"

namespace lamina::compute_node {

class PartialMerge {
 public:
  // The context must outlive this.
  explicit PartialMerge(const WorkerContext& context)
      : context_(context), folds_(context.config.span_tokens, context.pool.threads()) {}

  // The reply window of a memory node.
  using ReplyOf = absl::FunctionRef<plan::ReplyWindowReader(uint32_t node)>;

  // Merges those of the slice before the lane's, which all lie in their reply windows, into the
  // attention outputs.
  void Run(Lane& lane, const RemoteRows& rows, ReplyOf reply_of);

 private:
  const WorkerContext& context_;
  std::vector<plan::ReplyWindowReader> replies_;  // [memory nodes]
  kernels::SpanFolds folds_;
};

}  // namespace lamina::compute_node

// SPDX-License-Identifier: Apache-2.0
//
// PathMaker: makes the attention path of one kind for each epoch of a compute node. It lives as
// long as the node and keeps what is costly to make, KV or scratch, from epoch to epoch.
//
// Threading: the node's control thread.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compute_node/attention_path.h"
#include "compute_node/worker_context.h"
#include "plan/attention_paths.h"
#include "plan/epoch_config.h"
#include "plan/stages.h"

namespace lamina::compute_node {

class PathMaker {
 public:
  PathMaker() = default;
  virtual ~PathMaker() = default;
  PathMaker(const PathMaker&) = delete;
  PathMaker& operator=(const PathMaker&) = delete;

  virtual plan::AttentionPath kind() const = 0;

  // Takes the memory for an epoch that has this path; what the epoch before had is kept if it fits.
  // `config` is as the node's shard works with it, `stage` what the node runs.
  // Errors: those of the device; kUnimplemented, kFailedPrecondition  this node cannot serve it.
  virtual absl::Status Reserve(const plan::EpochConfig& config, const plan::Stage& stage) = 0;

  // The epoch does not have it: gives the memory back.
  virtual void Release() = 0;

  // K and V of the device that are reserved.
  virtual uint64_t kv_bytes() const = 0;

  // Names the memory that slots lie in, if it may outlive the epoch with what they hold
  // (PreparedNode::kv_arena). 0: none does.
  virtual uint64_t kv_arena() const { return 0; }

  // Describes the memory that is reserved, for the log.
  virtual std::string Describe() const = 0;

  // Requires: Reserve() for the context's epoch. The context outlives the path.
  virtual std::unique_ptr<AttentionPath> Make(const WorkerContext& context) = 0;
};

// The error of memory that was wanted for what stays on the node, with the key that asks for it.
inline absl::Status ErrorOfResident(const absl::Status& error) {
  return {error.code(), absl::StrCat("fetch.resident: ", error.message())};
}

}  // namespace lamina::compute_node

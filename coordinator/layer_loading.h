// SPDX-License-Identifier: Apache-2.0
//
// LayerLoading: attached nodes that load their layers before they join (ReplicaSplits): tells them
// which as soon as their replica is split, and under policy auto to measure what they run of them.
//
// Threading: the engine's thread.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/attached_nodes.h"
#include "coordinator/engine_options.h"
#include "coordinator/replica_splits.h"

namespace lamina::coordinator {

class LayerLoading {
 public:
  // References must outlive this.
  LayerLoading(const EngineOptions& options, AttachedNodes& nodes, ReplicaSplits& splits)
      : options_(options), nodes_(nodes), splits_(splits) {}

  // Splits replicas whose nodes are all attached. Errors: those of ReplicaSplits::Split().
  absl::Status Split();
  // Has those that await layers load them, as far as it is known which. Errors: those of Split().
  absl::Status Begin();
  // The node says that it has loaded its layers, or could not. False, and nothing changes, where it
  // was not asked to. Requires: it is attached.
  bool End(const std::string& name);

 private:
  const EngineOptions& options_;
  AttachedNodes& nodes_;
  ReplicaSplits& splits_;
};

}  // namespace lamina::coordinator

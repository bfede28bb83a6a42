// SPDX-License-Identifier: Apache-2.0
//
// RequestLog: a node's log of requests: when each of them comes to the node and when it leaves, by
// the id that the client gave it. At level debug only.
//
// Threading: the link's reader thread: never on the data path.
// Limits: as many entries as sequences run in the cluster.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "plan/step_plan.h"

namespace lamina::telemetry {

class RequestLog {
 public:
  // An epoch begins, with no sequences. A memory node has an index, and logs what lives on it. A
  // node for prefill only is not told when they leave.
  void StartEpoch(std::optional<uint32_t> memory_node, bool prefill_only = false);

  // Before the plan is handed on.
  void Note(const plan::StepPlan& plan);

 private:
  std::optional<uint32_t> memory_node_;
  bool prefill_only_ = false;
  std::map<plan::SequenceId, std::string> here_;
};

}  // namespace lamina::telemetry

// SPDX-License-Identifier: Apache-2.0
#include "telemetry/request_log.h"

#include "common/log_event.h"

namespace lamina::telemetry {

void RequestLog::StartEpoch(std::optional<uint32_t> memory_node, bool prefill_only) {
  memory_node_ = memory_node;
  prefill_only_ = prefill_only;
  here_.clear();
}

void RequestLog::Note(const plan::StepPlan& plan) {
  if (!LogEnabled(LogLevel::kDebug)) {
    return;
  }
  for (const plan::SequenceLeave& leave : plan.leaves) {
    if (const auto found = here_.find(leave.id); found != here_.end()) {
      LogEvent(LogLevel::kDebug, "request leaves",
               {{"request_id", found->second},
                {"sequence", leave.id},
                {"lane", plan.lane},
                {"step", plan.step}});
      here_.erase(found);
    }
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    if (memory_node_.has_value() && join.memory_node != *memory_node_) {
      continue;
    }
    LogEvent(LogLevel::kDebug, "request joins",
             {{"request_id", join.request_id},
              {"sequence", join.id},
              {"lane", plan.lane},
              {"step", plan.step},
              {"prompt_tokens", join.prompt_tokens}});
    if (!prefill_only_) {
      here_[join.id] = join.request_id;
    }
  }
}

}  // namespace lamina::telemetry

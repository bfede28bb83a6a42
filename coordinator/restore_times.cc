// SPDX-License-Identifier: Apache-2.0
#include "coordinator/restore_times.h"

namespace lamina::coordinator {

void RestoreTimes::Planned(const plan::StepPlan& plan, Nanos now) {
  if (!restores_.empty()) {
    for (const plan::SequenceLeave& leave : plan.leaves) {
      std::erase_if(restores_,
                    [&](const auto& entry) { return entry.second.sequence == leave.id; });
    }
    for (const plan::DecodeRow& row : plan.rows) {
      Works(row.sequence, now);
    }
    for (const plan::PrefillChunk& chunk : plan.chunks) {
      Works(chunk.sequence, now);
    }
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    restores_[spill.spill] = {.sequence = spill.sequence, .planned = now};
  }
}

void RestoreTimes::Reported(const plan::SpillReport& report, Nanos now) {
  const auto found = restores_.find(report.spill);
  if (found == restores_.end()) {
    return;
  }
  if (report.ok) {
    found->second.reported = now;
  } else {
    restores_.erase(found);  // It is recomputed.
  }
}

void RestoreTimes::Works(plan::SequenceId sequence, Nanos now) {
  std::erase_if(restores_, [&](const auto& entry) {
    const Restore& restore = entry.second;
    if (restore.sequence != sequence || restore.reported == 0) {
      return false;
    }
    metrics_.restore_read.Observe(ToSeconds(restore.reported - restore.planned));
    metrics_.restore_step.Observe(ToSeconds(now - restore.reported));
    return true;
  });
}

}  // namespace lamina::coordinator

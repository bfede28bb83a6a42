// SPDX-License-Identifier: Apache-2.0
//
// LoadingLog: which lines are logged while weights are loaded: every tenth of them, with the time
// that is left. lamina-compute has one; `cluster.sh up` shows its last line.
//
// Threading: the thread that loads.

#pragma once

#include <optional>
#include <string>

#include "common/clock.h"

namespace lamina::compute_node {

class LoadingLog {
 public:
  // `clock` outlives it.
  explicit LoadingLog(const Clock& clock) : clock_(clock) {}

  // After a share of [0, 1], which grows: the line to log now, if one is due. A share of 0 begins
  // anew: a stage's layers are loaded when the coordinator has said which.
  std::optional<std::string> Take(double share);

 private:
  const Clock& clock_;
  Nanos began_ = 0;
  double next_ = 0;
};

}  // namespace lamina::compute_node

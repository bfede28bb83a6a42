// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_source.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace lamina::compute_node {

absl::Status AskAndWait(WeightSource& source, uint32_t slice) {
  while (true) {
    LAMINA_ASSIGN_OR_RETURN(const WeightWait wait, source.Ask(slice));
    if (wait.here) {
      return absl::OkStatus();
    }
    const Nanos pause = std::max<Nanos>(0, wait.look_again - RealClock().Now());
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause));
  }
}

}  // namespace lamina::compute_node

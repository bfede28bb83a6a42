// SPDX-License-Identifier: Apache-2.0
#include "compute_node/weight_source.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/units.h"

namespace lamina::compute_node {

std::string DescribeForms(const ModelWeights& weights) {
  return absl::StrJoin(weights.bytes_by_form(), ", ", [](std::string* out, const auto& form) {
    absl::StrAppend(out, form.first, " ", FormatBytes(form.second));
  });
}

absl::Status AskAndWait(WeightSource& source, uint32_t slice) {
  source.SetEarliest(slice);
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

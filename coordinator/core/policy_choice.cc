// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// Service after which half of what the meter knows is of before.
constexpr double kForgetSeconds = 60;

std::string Words(const cost::PolicyStep& step, bool local) {
  return absl::StrFormat("%.1f ms (dense %.1f, attention %.1f%s)", step.seconds * 1e3,
                         step.dense * 1e3, step.attention * 1e3,
                         local             ? ""
                         : step.lanes == 1 ? ", 1 lane"
                                           : absl::StrFormat(", %d lanes", step.lanes));
}

}  // namespace

double KvBytesReadPerToken(absl::Span<const AttentionDescriptor> layers, double context) {
  double bytes = 0;
  for (const AttentionDescriptor& layer : layers) {
    const double seen = layer.window == 0 ? context : std::min<double>(context, layer.window);
    bytes += 2.0 * 2.0 * layer.kv_width() * (seen / context);
  }
  return bytes;
}

PolicyChoice ChoosePolicy(const plan::PolicyTimes& times, const cost::PolicyModel& model,
                          const cost::PolicyPools& pools, const cost::PolicyLoad& load,
                          CurrentPolicy current) {
  const std::string of = absl::StrFormat("%.0f row%s at %.0f tokens: a step takes ", load.rows,
                                         std::lround(load.rows) == 1 ? "" : "s", load.context);
  const cost::PolicyStep local = cost::LocalStep(times, model, load);
  PolicyChoice choice{.local = true, .local_seconds = local.seconds};
  if (pools.attention <= 0) {
    choice.why = absl::StrCat(of, Words(local, true), "; no memory node is there");
    return choice;
  }
  const cost::PolicyStep remote = cost::PoolsStep(times, model, pools, load);
  choice.pools_seconds = remote.seconds;
  switch (current) {
    case CurrentPolicy::kNone:
      choice.local = local.seconds < remote.seconds;
      break;
    case CurrentPolicy::kLocal:
      choice.local = remote.seconds >= kWorthAnEpoch * local.seconds;
      break;
    case CurrentPolicy::kPools:
      choice.local = local.seconds < kWorthAnEpoch * remote.seconds;
      break;
  }
  choice.why =
      choice.local
          ? absl::StrCat(of, Words(local, true), ", on memory nodes ", Words(remote, false))
          : absl::StrCat(of, Words(remote, false), ", with local ", Words(local, true));
  if (current != CurrentPolicy::kNone && choice.local != (local.seconds < remote.seconds)) {
    absl::StrAppend(&choice.why, ", too little less for another epoch");
  }
  return choice;
}

void PolicyLoadMeter::Add(double seconds, uint32_t rows, uint64_t context_tokens) {
  if (rows == 0 || seconds <= 0) {
    return;
  }
  const double weight = seconds_ == 0 ? 1
                                      : std::max(seconds / (seconds_ + seconds),
                                                 1 - std::exp2(-seconds / kForgetSeconds));
  seconds_ += seconds;
  rows_ += weight * (rows - rows_);
  context_tokens_ += weight * (static_cast<double>(context_tokens) - context_tokens_);
}

cost::PolicyLoad PolicyLoadMeter::load() const {
  LAMINA_CHECK(seconds_ > 0);
  return {.rows = rows_, .context = context_tokens_ / rows_};
}

}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// Service after which half of what the meter knows is of before.
constexpr double kForgetSeconds = 60;
constexpr double kStepSecondsMin = 1;
constexpr double kCorrectionLeast = 0.75;
constexpr double kCorrectionMost = 4.0 / 3;

std::string Words(const cost::PolicyStep& step, bool local) {
  return absl::StrFormat("%.1f ms (dense %.1f, attention %.1f%s)", step.seconds * 1e3,
                         step.dense * 1e3, step.attention * 1e3,
                         local             ? ""
                         : step.lanes == 1 ? ", 1 lane"
                                           : absl::StrFormat(", %d lanes", step.lanes));
}

double Factor(double correction) {
  return correction == 0 ? 1 : std::clamp(correction, kCorrectionLeast, kCorrectionMost);
}

// As what part of the current policy's step the other one is worth an epoch.
double Worth(double of_current, double of_other) {
  return of_current > 0 && of_other == 0 ? kWorthATry : kWorthAnEpoch;
}

std::string Words(const PolicyCorrections& corrections) {
  std::string words;
  for (const auto& [where, factor] : {std::pair("on memory nodes", corrections.pools),
                                      std::pair("with local", corrections.local)}) {
    if (factor > 0) {
      absl::StrAppendFormat(&words, "; steps %s took %.2f of what was predicted", where, factor);
    }
  }
  return words;
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
                          CurrentPolicy current, const PolicyCorrections& corrections) {
  const std::string of = absl::StrFormat("%.0f row%s at %.0f tokens: a step takes ", load.rows,
                                         std::lround(load.rows) == 1 ? "" : "s", load.context);
  cost::PolicyStep local = cost::LocalStep(times, model, load);
  local.seconds *= Factor(corrections.local);
  PolicyChoice choice{.local = true, .local_seconds = local.seconds};
  if (pools.attention <= 0) {
    choice.why = absl::StrCat(of, Words(local, true), "; no memory node is there");
    return choice;
  }
  cost::PolicyStep remote = cost::PoolsStep(times, model, pools, load);
  remote.seconds *= Factor(corrections.pools);
  choice.pools_seconds = remote.seconds;
  switch (current) {
    case CurrentPolicy::kNone:
      choice.local = local.seconds < remote.seconds;
      break;
    case CurrentPolicy::kLocal:
      choice.local = remote.seconds >= Worth(corrections.local, corrections.pools) * local.seconds;
      break;
    case CurrentPolicy::kPools:
      choice.local = local.seconds < Worth(corrections.pools, corrections.local) * remote.seconds;
      break;
  }
  choice.why =
      choice.local
          ? absl::StrCat(of, Words(local, true), ", on memory nodes ", Words(remote, false))
          : absl::StrCat(of, Words(remote, false), ", with local ", Words(local, true));
  if (current != CurrentPolicy::kNone && choice.local != (local.seconds < remote.seconds)) {
    absl::StrAppend(&choice.why, ", too little less for another epoch");
  }
  choice.why += Words(corrections);
  return choice;
}

void PolicyStepMeter::Add(double seconds, uint32_t rows, uint64_t context_tokens, uint64_t tokens) {
  const double kept = std::exp2(-seconds / kForgetSeconds);
  seen_ += seconds;
  seconds_ = kept * seconds_ + seconds;
  row_seconds_ = kept * row_seconds_ + seconds * rows;
  context_seconds_ = kept * context_seconds_ + seconds * static_cast<double>(context_tokens);
  tokens_ = kept * tokens_ + static_cast<double>(tokens);
}

bool PolicyStepMeter::measured() const { return seen_ >= kStepSecondsMin && tokens_ >= 1; }

cost::PolicyLoad PolicyStepMeter::load() const {
  LAMINA_CHECK(measured());
  return {.rows = row_seconds_ / seconds_, .context = context_seconds_ / row_seconds_};
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

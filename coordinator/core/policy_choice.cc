// SPDX-License-Identifier: Apache-2.0
#include "coordinator/core/policy_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"

namespace lamina::core {
namespace {

// What a lane waits for a layer's windows there and back beside the attention itself, over shared
// memory: two processes that poll. Assumed; 20 to 90 us were seen (docs/lab/2026-11.md, decode).
constexpr double kExchangeSeconds = 40e-6;
// Of the shorter of dense layers and attention: what lanes do not hide after all, since neither
// side always has work when the other does. Assumed; two lanes took 15% longer than their bound at
// 16 rows of 1024 tokens, 6% at 1536 (docs/lab/2026-11.md, pipeline).
constexpr double kUnhidden = 0.2;
// Service after which half of what the meter knows is of before.
constexpr double kForgetSeconds = 60;

double DenseSeconds(const std::vector<plan::SliceTimes>& times, uint32_t layers, double rows) {
  const plan::SliceTimes at = TimesOf(times, rows);
  // The tail has the rest of the last layer, slice 0 the little before the first attention.
  return (layers - 1) * at.slice_seconds + at.tail_seconds;
}

double BytesOf(const PolicyModel& model, const PolicyLoad& load) {
  return load.rows * load.context * model.kv_bytes_per_token;
}

std::string Words(const PolicyStep& step, bool local) {
  return absl::StrFormat("%.1f ms (dense %.1f, attention %.1f%s)", step.seconds * 1e3,
                         step.dense * 1e3, step.attention * 1e3,
                         local             ? ""
                         : step.lanes == 1 ? ", 1 lane"
                                           : absl::StrFormat(", %d lanes", step.lanes));
}

}  // namespace

plan::SliceTimes TimesOf(const std::vector<plan::SliceTimes>& times, double rows) {
  LAMINA_CHECK(!times.empty() && rows > 0);
  size_t upper = 0;
  while (upper + 1 < times.size() && times[upper].rows < rows) {
    ++upper;
  }
  plan::SliceTimes at = times[upper];
  const double wanted = std::max<double>(rows, times.front().rows);
  if (upper > 0) {
    const plan::SliceTimes& low = times[upper - 1];
    const double part = (wanted - low.rows) / (at.rows - low.rows);
    const auto between = [part](double a, double b) { return a + part * (b - a); };
    at.slice_seconds = between(low.slice_seconds, at.slice_seconds);
    at.tail_seconds = between(low.tail_seconds, at.tail_seconds);
  }
  at.rows = static_cast<uint32_t>(std::lround(wanted));
  return at;
}

PolicyStep LocalStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyLoad& load) {
  PolicyStep step{.dense = DenseSeconds(times.local, model.layers, load.rows),
                  .attention = BytesOf(model, load) / times.attention_local};
  step.seconds = step.dense + step.attention;
  return step;
}

PolicyStep PoolsStep(const plan::PolicyTimes& times, const PolicyModel& model,
                     const PolicyPools& pools, const PolicyLoad& load) {
  PolicyStep best;
  for (uint32_t lanes = pools.lanes_auto ? 1 : pools.lanes_max; lanes <= pools.lanes_max; ++lanes) {
    if (best.seconds > 0 && lanes > load.rows) {
      break;  // A lane has a row at least.
    }
    const double dense = DenseSeconds(times.pools, model.layers, std::max(1.0, load.rows / lanes));
    const double attention =
        BytesOf(model, load) / lanes / pools.attention + model.layers * kExchangeSeconds;
    PolicyStep step{.seconds = dense + attention,
                    .dense = lanes * dense,
                    .attention = lanes * attention,
                    .lanes = lanes};
    if (lanes > 1) {
      step.seconds = std::max({step.dense, step.attention, dense + attention}) +
                     kUnhidden * std::min(step.dense, step.attention);
    }
    if (best.seconds == 0 || step.seconds < best.seconds) {
      best = step;
    }
  }
  return best;
}

PolicyChoice ChoosePolicy(const plan::PolicyTimes& times, const PolicyModel& model,
                          const PolicyPools& pools, const PolicyLoad& load, CurrentPolicy current) {
  const std::string of = absl::StrFormat("%.0f row%s at %.0f tokens: a step takes ", load.rows,
                                         std::lround(load.rows) == 1 ? "" : "s", load.context);
  const PolicyStep local = LocalStep(times, model, load);
  PolicyChoice choice{.local = true, .local_seconds = local.seconds};
  if (pools.attention <= 0) {
    choice.why = absl::StrCat(of, Words(local, true), "; no memory node is there");
    return choice;
  }
  const PolicyStep remote = PoolsStep(times, model, pools, load);
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

PolicyLoad PolicyLoadMeter::load() const {
  LAMINA_CHECK(seconds_ > 0);
  return {.rows = rows_, .context = context_tokens_ / rows_};
}

}  // namespace lamina::core

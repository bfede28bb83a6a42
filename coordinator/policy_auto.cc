// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_auto.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::coordinator {
namespace {

// The load is looked at so often while requests run.
constexpr Nanos kLoadEvery = Millis(5);
// After a step with rows of prompts was planned: until it has run, with those planned before.
constexpr Nanos kSettle = Millis(500);
// So much service has to pass before the load seen counts instead of the cluster file's.
constexpr double kServiceSecondsMin = 1;

}  // namespace

const char* PolicyNameOf(const core::PolicyChoice& choice) {
  return choice.local ? "local" : "attend_remote";
}

PolicyAuto::PolicyAuto(const EngineOptions& options) : options_(options) {
  LAMINA_CHECK(options.policy_auto.has_value());
}

bool PolicyAuto::SawWork(Nanos now) {
  idle_since_.reset();
  return now - load_seen_ >= kLoadEvery;
}

void PolicyAuto::SawLoad(Nanos now, uint32_t rows, uint64_t context_tokens) {
  meter_.Add(std::min(1.0, ToSeconds(now - load_seen_)), rows, context_tokens);
  load_seen_ = now;
}

void PolicyAuto::SawSteps(Nanos now, const ServedLoad& served) {
  if (!served_.has_value() || served.prompts != served_->prompts ||
      served.local != served_->local) {
    settled_ = now + kSettle;
  } else if (served_seen_ >= settled_ && served.rows > 0 && served.rows == served_->rows) {
    core::PolicyStepMeter& meter = served.local ? local_steps_ : pools_steps_;
    meter.Add(ToSeconds(now - served_seen_), served.rows, served.context_tokens,
              served.tokens - served_->tokens);
  }
  served_ = served;
  served_seen_ = now;
}

bool PolicyAuto::SawNothing(Nanos now) {
  load_seen_ = now;
  served_.reset();
  idle_since_ = idle_since_.value_or(now);
  if (now - *idle_since_ < options_.policy_auto->idle) {
    return false;
  }
  idle_since_ = now;
  return true;
}

const core::PolicyChoice& PolicyAuto::Choose(core::CurrentPolicy current,
                                             const PolicyMeasures& measures) {
  const bool seen = meter_.seconds() >= kServiceSecondsMin;
  const cost::PolicyLoad load = seen ? meter_.load() : options_.policy_auto->load;
  const cost::PolicyPools pools = {.attention = AttentionOfPools(measures),
                                   .lanes_max = options_.scheduler.lanes,
                                   .lanes_auto = options_.scheduler.lanes_auto};
  choice_ = core::ChoosePolicy(measures.times, ModelAt(measures, load.context), pools, load,
                               current, Corrections(measures, pools));
  absl::StrAppend(&choice_->why, seen ? "; the load of late" : "; the load of the cluster file");
  return *choice_;
}

cost::PolicyModel PolicyAuto::ModelAt(const PolicyMeasures& measures, double context) const {
  return {.layers = static_cast<uint32_t>(options_.layers.size()),
          .kv_bytes_per_token = core::KvBytesReadPerToken(options_.layers, std::max(1.0, context)),
          .replicas = measures.replicas};
}

// What each policy took against what is predicted of it for the load that it had.
core::PolicyCorrections PolicyAuto::Corrections(const PolicyMeasures& measures,
                                                const cost::PolicyPools& pools) const {
  core::PolicyCorrections corrections;
  if (local_steps_.measured()) {
    const cost::PolicyLoad load = local_steps_.load();
    corrections.local =
        local_steps_.step_seconds() /
        cost::LocalStep(measures.times, ModelAt(measures, load.context), load).seconds;
  }
  if (pools_steps_.measured() && pools.attention > 0) {
    const cost::PolicyLoad load = pools_steps_.load();
    corrections.pools =
        pools_steps_.step_seconds() /
        cost::PoolsStep(measures.times, ModelAt(measures, load.context), pools, load).seconds;
  }
  return corrections;
}

core::CurrentPolicy PolicyAuto::current() const {
  return !choice_.has_value() ? core::CurrentPolicy::kNone
         : choice_->local     ? core::CurrentPolicy::kLocal
                              : core::CurrentPolicy::kPools;
}

// Memory nodes on cores of the compute node attend as fast as that did there; others as much of
// their bandwidth as it of its own, unless they have measured their own attention. Of nodes that
// share cores, or a device, one is counted: each has measured what all of them have.
double PolicyAuto::AttentionOfPools(const PolicyMeasures& measures) const {
  const plan::PolicyTimes& times = measures.times;
  const double share =
      times.read_bandwidth > 0 ? std::min(1.0, times.attention_local / times.read_bandwidth) : 1;
  bool shared = false;
  double rate = 0;
  for (const MemoryNodesOnCores& group : options_.policy_auto->memory) {
    double fastest = 0;
    for (const std::string& name : group.names) {
      if (const auto node = measures.bandwidth.find(name); node != measures.bandwidth.end()) {
        const auto measured = measures.attention.find(name);
        shared = shared || group.shared;
        fastest = std::max(fastest, measured != measures.attention.end() ? measured->second
                                                                         : share * node->second);
      }
    }
    rate += group.shared ? 0 : fastest;
  }
  return rate + (shared ? times.attention_shared : 0);
}

}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
//
// Policy auto: whether an epoch has KV on the memory nodes or on the compute node, and when to
// begin one of the other kind.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {
namespace {

// The load is looked at so often while requests run.
constexpr Nanos kLoadEvery = Millis(5);
// Of service, before the load seen counts instead of the cluster file's.
constexpr double kServiceSecondsMin = 1;

const char* NameOf(const core::PolicyChoice& choice) {
  return choice.local ? "local" : "attend_remote";
}

}  // namespace

void Engine::Impl::SettlePolicy() {
  if (!options.policy_auto.has_value()) {
    return;
  }
  const core::CurrentPolicy current = !policy_choice.has_value() ? core::CurrentPolicy::kNone
                                      : policy_choice->local     ? core::CurrentPolicy::kLocal
                                                                 : core::CurrentPolicy::kPools;
  policy_choice = PolicyFor(current);
  LogInfo("policy ", NameOf(*policy_choice), " ", policy_choice->why);
  membership.KeepKvOnCompute(policy_choice->local);
  scheduler.HoldOneLane(
      policy_choice->local ? "for no attention is away that another lane would hide" : "");
}

core::PolicyChoice Engine::Impl::PolicyFor(core::CurrentPolicy current) const {
  const std::string& compute = membership.compute_members().front()->name;
  const plan::PolicyTimes& times = nodes.at(compute).hello.identity.policy_times;
  const cost::PolicyModel model = {.layers = static_cast<uint32_t>(options.layers.size()),
                                   .kv_bytes_per_token = static_cast<double>(slot_bytes)};
  const cost::PolicyPools pools = {.attention = AttentionOfPools(times),
                                   .lanes_max = options.scheduler.lanes,
                                   .lanes_auto = options.scheduler.lanes_auto};
  const bool seen = load_meter.seconds() >= kServiceSecondsMin;
  core::PolicyChoice choice = core::ChoosePolicy(
      times, model, pools, seen ? load_meter.load() : options.policy_auto->load, current);
  absl::StrAppend(&choice.why, seen ? "; the load of late" : "; the load of the cluster file");
  return choice;
}

// Memory nodes on cores of the compute node attend as fast as that did there; others as much of
// their bandwidth as it of its own. Of nodes that share cores one is counted: each has measured
// what all of them have.
double Engine::Impl::AttentionOfPools(const plan::PolicyTimes& times) const {
  const double share =
      times.read_bandwidth > 0 ? std::min(1.0, times.attention_local / times.read_bandwidth) : 1;
  bool shared = false;
  double rate = 0;
  for (const MemoryNodesOnCores& group : options.policy_auto->memory) {
    double fastest = 0;
    for (const std::string& name : group.names) {
      if (membership.IsThere(name)) {
        shared = shared || group.shared;
        fastest = std::max(fastest, nodes.at(name).hello.identity.bandwidth_bytes_per_second);
      }
    }
    rate += group.shared ? 0 : share * fastest;
  }
  return rate + (shared ? times.attention_shared : 0);
}

void Engine::Impl::WatchLoad() {
  if (!options.policy_auto.has_value() || membership.phase() != core::MembershipPhase::kServing) {
    return;
  }
  const Nanos now = clock.Now();
  if (scheduler.HasWork() || !requests.empty()) {
    idle_since.reset();
    if (now - load_seen >= kLoadEvery) {
      uint32_t rows = 0;
      uint64_t context_tokens = 0;
      for (const core::SchedulerStats::Lane& lane : scheduler.Stats().lanes) {
        rows += lane.rows;
        context_tokens += lane.context_tokens;
      }
      load_meter.Add(std::min(1.0, ToSeconds(now - load_seen)), rows, context_tokens);
      load_seen = now;
    }
    return;
  }
  load_seen = now;
  idle_since = idle_since.value_or(now);
  if (now - *idle_since < options.policy_auto->idle) {
    return;
  }
  idle_since = now;
  policy_choice =
      PolicyFor(membership.local() ? core::CurrentPolicy::kLocal : core::CurrentPolicy::kPools);
  if (policy_choice->local != membership.local() && membership.StartAnew()) {
    LogInfo("nothing runs: an epoch of policy ", NameOf(*policy_choice), " begins");
  }
}

}  // namespace lamina::coordinator

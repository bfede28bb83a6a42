// SPDX-License-Identifier: Apache-2.0
#include "coordinator/policy_auto.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/hybrid_share.h"
#include "coordinator/recompute_bytes.h"

namespace lamina::coordinator {
namespace {

// The load is looked at so often while requests run.
constexpr Nanos kLoadEvery = Millis(5);
// After a step with rows of prompts was planned: until it has run, with those planned before.
constexpr Nanos kSettle = Millis(500);
// A look at the load speaks for no more time than this: something stood still.
constexpr double kLookSecondsMax = 1;
// Longer than this, and than so many steps, nothing is one: something stood still.
constexpr double kStepSecondsMax = 2;
constexpr double kStepsMax = 4;
// So much service has to pass before the load seen counts instead of the cluster file's.
constexpr double kServiceSecondsMin = 1;
// One way between two processes of a host that poll. Assumed, until links are measured.
constexpr double kPartSeconds = 20e-6;
// What is assumed of a link where its node has not said what it reads.
constexpr double kPartBytesPerSecond = 1e9;

// Tokens that the windows of all layers hide have no slots: nobody reads or sends them.
cost::PolicyLoad Held(cost::PolicyLoad load, const core::SchedulerOptions& limits) {
  load.context = std::min<double>(load.context, limits.SlotsAtOnce(UINT32_MAX));
  return load;
}

// What measures are of: compute nodes in the order of their parts, and memory nodes.
std::vector<std::string> MembersIn(const PolicyMeasures& measures) {
  std::vector<std::string> members;
  for (const MeasuredNode& node : measures.compute) {
    members.push_back(node.name);
  }
  for (const auto& [name, bandwidth] : measures.bandwidth) {
    members.push_back(name);
  }
  return members;
}

// Bytes of K and V of a layer with which windows of fetch_recompute have room for the next one; 0:
// it cannot be had.
double RoomOfRecompute(const EngineOptions& options) {
  for (const WeighedPolicy& policy : options.policy_auto->policies) {
    if (policy.policy == cost::KvPolicy::kFetchRecompute && policy.fetch.bytes > 0) {
      return RecomputeBytesOf(policy.fetch, options).room;
    }
  }
  return 0;
}

// EpochConfig::made_tokens_max where K and V are made from token numbers; 0: they cannot be.
uint32_t MadeTokensMax(const EngineOptions& options) {
  uint32_t most = 0;
  for (const WeighedPolicy& policy : options.policy_auto->policies) {
    most = std::max(most, policy.fetch.made_tokens_max);
  }
  return most;
}

}  // namespace

PolicyAuto::PolicyAuto(const EngineOptions& options) : options_(options) {
  LAMINA_CHECK(options.policy_auto.has_value());
}

bool PolicyAuto::SawWork(Nanos now) {
  idle_since_.reset();
  return now - load_seen_ >= kLoadEvery;
}

void PolicyAuto::SawLoad(Nanos now, uint32_t rows, uint64_t context_tokens) {
  meter_.Add(std::min(kLookSecondsMax, ToSeconds(now - load_seen_)), rows, context_tokens);
  load_seen_ = now;
}

void PolicyAuto::SawSteps(Nanos now, const ServedLoad& served) {
  CountTokens(now, served);
  if (!served_.has_value() || served.prompts != served_->prompts ||
      served.policy != served_->policy || served.activation_share != served_->activation_share) {
    settled_ = now + kSettle;
  } else if (served.rows == served_->rows && served.tokens == served_->tokens) {
    return;  // The step goes on.
  } else if (ToSeconds(now - served_seen_) > SecondsMax(served.policy)) {
    settled_ = now + kSettle;
  } else if (served_seen_ >= settled_ && served.rows > 0 && served.rows == served_->rows) {
    steps_[served.policy].Add(ToSeconds(now - served_seen_), served.rows, served.context_tokens,
                              served.tokens - served_->tokens);
  }
  served_ = served;
  served_seen_ = now;
}

void PolicyAuto::CountTokens(Nanos now, const ServedLoad& served) {
  meter_.AddTokens(std::min(kLookSecondsMax, ToSeconds(now - tokens_counted_at_)),
                   served.tokens - tokens_counted_, served.prompt_tokens - prompt_tokens_counted_);
  tokens_counted_ = served.tokens;
  prompt_tokens_counted_ = served.prompt_tokens;
  tokens_counted_at_ = now;
}

// How long no token may come: a few steps as measured, or predicted, whichever are longer.
double PolicyAuto::SecondsMax(cost::KvPolicy policy) const {
  double step = choice_.has_value() ? choice_->SecondsOf(policy) : 0;
  if (const auto meter = steps_.find(policy); meter != steps_.end() && meter->second.measured()) {
    step = std::max(step, meter->second.step_seconds());
  }
  return std::max(kStepSecondsMax, kStepsMax * step);
}

bool PolicyAuto::SawNothing(Nanos now, const PolicyMeasures& measures) {
  load_seen_ = now;
  tokens_counted_at_ = now;
  served_.reset();
  idle_since_ = idle_since_.value_or(now);
  const bool measured = (measures.link > 0 && link_ == 0) ||
                        (measures.parts.bytes_per_second > 0 && parts_.bytes_per_second == 0);
  if (!measured && now - *idle_since_ < options_.policy_auto->idle) {
    return false;
  }
  idle_since_ = now;
  return true;
}

const core::PolicyChoice& PolicyAuto::Choose(std::optional<cost::KvPolicy> current,
                                             const PolicyMeasures& measures) {
  ForgetOtherMembers(measures);
  const bool seen = meter_.seconds() >= kServiceSecondsMin;
  const cost::PolicyLoad load =
      Held(seen ? meter_.load() : options_.policy_auto->load, options_.scheduler);
  link_ = measures.link > 0 ? measures.link : link_;
  parts_ = measures.parts.bytes_per_second > 0 ? measures.parts : parts_;
  const cost::PolicyPools pools = PoolsOf(measures);
  const core::PolicyInputs inputs = InputsAt(measures, pools, load.context);
  std::vector<core::PolicyInputs> ends;
  for (const PolicyMeasures& end : EndsOf(measures)) {
    ends.push_back(InputsAt(end, PoolsOf(end), load.context));
  }
  SettleShare(core::ChoosePolicy(inputs, Candidates(measures), load));
  choice_ = core::ChoosePolicy(inputs, Candidates(measures), load, current,
                               Corrections(measures, pools), ends);
  if (const std::string reads = DescribeReads(measures); !reads.empty()) {
    absl::StrAppend(&choice_->why, "; ", reads);
  }
  absl::StrAppend(&choice_->why, seen ? "; the load of late" : "; the load of the cluster file");
  return *choice_;
}

std::optional<cost::KvPolicy> PolicyAuto::current() const {
  return choice_.has_value() ? std::optional(choice_->policy) : std::nullopt;
}

bool PolicyAuto::WorthAnEpoch(cost::KvPolicy served, uint32_t activation_share) const {
  LAMINA_CHECK(choice_.has_value());
  return choice_->policy != served || (served == cost::KvPolicy::kFetchHybrid &&
                                       share_.has_value() && *share_ != activation_share);
}

// Steps with other members say nothing of those with these. An epoch begins, or nothing runs: what
// was served last is no beginning of an interval.
void PolicyAuto::ForgetOtherMembers(const PolicyMeasures& measures) {
  std::vector<std::string> members = MembersIn(measures);
  if (members != members_) {
    steps_.clear();
    members_ = std::move(members);
  }
  served_.reset();
}

// The share that is best for the load, where it differs enough from that of before. Steps of that
// one say nothing of it.
void PolicyAuto::SettleShare(const core::PolicyChoice& predicted) {
  for (const core::PolicyFigure& figure : predicted.figures) {
    if (figure.candidate.policy != cost::KvPolicy::kFetchHybrid || figure.seconds == 0) {
      continue;
    }
    const uint32_t best = ShareInSteps(figure.step.share);
    if (!share_.has_value() || IsWorthAnEpoch(best, *share_)) {
      share_ = best;
      steps_.erase(cost::KvPolicy::kFetchHybrid);
    }
  }
}

bool PolicyAuto::PassOver(const std::string& why) {
  const bool other = std::any_of(
      choice_->figures.begin(), choice_->figures.end(), [&](const core::PolicyFigure& figure) {
        return figure.candidate.policy != choice_->policy && figure.candidate.why_not.empty();
      });
  if (other) {
    failed_[choice_->policy] = absl::StrCat("it could not be prepared: ", why);
  }
  return other;
}

EpochPolicy PolicyAuto::Epoch() const {
  LAMINA_CHECK(choice_.has_value());
  EpochPolicy epoch{.policy = choice_->policy};
  for (const WeighedPolicy& policy : options_.policy_auto->policies) {
    if (policy.policy == epoch.policy) {
      epoch.fetch = policy.fetch;
    }
  }
  if (epoch.fetch.hybrid.has_value()) {
    epoch.activation_share = share_.value_or(epoch.fetch.hybrid->share);
    epoch.words = absl::StrCat(*epoch.activation_share * 100 / plan::SlotKinds::kUnit,
                               "% of tokens held as activations, by policy auto");
  }
  return epoch;
}

// How many tokens have slots on memory nodes: with fetch_hybrid some of either kind, by the share
// that its epochs have.
double PolicyAuto::TokensOnMemoryNodes(const FetchOptions& fetch, uint64_t memory) const {
  const size_t layers = options_.layers.size();
  const uint64_t kv = KvBytesPerToken(options_.layers);
  if (!fetch.hybrid.has_value()) {
    return static_cast<double>(memory / SlotBytes(fetch, layers, kv));
  }
  return SlotsOfKinds({.kv = kv, .activation = ActivationBytesPerToken(fetch, layers)},
                      plan::SlotKinds(share_.value_or(fetch.hybrid->share)), memory);
}

// Whether each can be had, and of how many tokens it keeps K and V.
std::vector<core::PolicyCandidate> PolicyAuto::Candidates(const PolicyMeasures& measures) const {
  const LocalRoom room = LocalRoomOf(measures, options_.layers);
  const plan::PolicyTimes& times =
      measures.compute.front().times;  // Where one fetches, it is alone.
  const uint32_t least = options_.scheduler.SlotsAtOnce(options_.scheduler.sequence_tokens_max);
  std::vector<core::PolicyCandidate> candidates;
  for (const WeighedPolicy& policy : options_.policy_auto->policies) {
    core::PolicyCandidate& candidate =
        candidates.emplace_back(core::PolicyCandidate{policy.policy, policy.why_not});
    if (const auto failed = failed_.find(policy.policy);
        candidate.why_not.empty() && failed != failed_.end()) {
      candidate.why_not = failed->second;
    }
    const bool local = policy.policy == cost::KvPolicy::kLocal;
    candidate.tokens_max = local ? room.tokens : TokensOnMemoryNodes(policy.fetch, measures.memory);
    if (local && candidate.why_not.empty() && !room.least_node.empty() && room.least < least) {
      candidate.why_not =
          absl::StrCat("compute node ", room.least_node, " has room for ", room.least,
                       " tokens of its layers, and one request may have ", least,
                       " (limits.sequence_tokens_max)");
    }
    if (!candidate.why_not.empty() || local) {
      continue;
    }
    if (measures.bandwidth.empty()) {
      candidate.why_not = "no memory node is there";
    } else if (policy.fetch.bytes > 0 && times.attention_pools == 0) {
      candidate.why_not = "the compute node has not measured how fast it attends there";
    } else if (policy.fetch.activation_width > 0 && times.make_seconds == 0) {
      candidate.why_not = "the compute node cannot make K and V again";
    } else if (policy.fetch.activation_width > 0 &&
               TokensOnMemoryNodes(policy.fetch, measures.largest_memory) < least) {
      candidate.why_not = absl::StrCat("no memory node has room for one request of ", least,
                                       " tokens with activations (limits.sequence_tokens_max)");
    }
  }
  return candidates;
}

core::PolicyInputs PolicyAuto::InputsAt(const PolicyMeasures& measures,
                                        const cost::PolicyPools& pools, double context) const {
  uint32_t width = 0;  // Elements of an activation, whichever policy keeps them.
  for (const WeighedPolicy& policy : options_.policy_auto->policies) {
    width = std::max(width, policy.fetch.activation_width);
  }
  const size_t layers = options_.layers.size();
  const auto kv = static_cast<double>(KvBytesPerToken(options_.layers));
  context = std::max(1.0, context);
  return {.compute = {.replicas = ReplicasOf(measures, options_.layers, context),
                      .link = PartsOf(measures),
                      .lanes_each = options_.replica_lanes},
          .model = {.layers = static_cast<uint32_t>(layers),
                    .kv_bytes_per_token = kv,
                    .activation_bytes_per_token = static_cast<double>(
                        ActivationBytesPerToken({.activation_width = width}, layers)),
                    .read_share = core::KvBytesReadPerToken(options_.layers, context) / kv},
          .pools = pools};
}

// What each policy took against what is predicted of it for the load that it had.
core::PolicyCorrections PolicyAuto::Corrections(const PolicyMeasures& measures,
                                                const cost::PolicyPools& pools) const {
  core::PolicyCorrections corrections;
  for (const auto& [policy, meter] : steps_) {
    if (!meter.measured() || (policy != cost::KvPolicy::kLocal && pools.attention <= 0)) {
      continue;
    }
    const cost::PolicyLoad load = Held(meter.load(), options_.scheduler);
    corrections[policy] =
        meter.step_seconds() /
        core::StepOf(policy, InputsAt(measures, pools, load.context), load).seconds;
  }
  return corrections;
}

// As measured, now or when links were used last; a bus that all share has what the cluster file
// says. No more than memory nodes copy, which read and write: a link within one host is measured by
// what caches hold.
double PolicyAuto::LinkOf(const PolicyMeasures& measures) const {
  double copies = 0;
  for (const auto& [name, bandwidth] : measures.bandwidth) {
    copies += bandwidth / 2;
  }
  const double bus = options_.bus_bytes_per_second;
  const double links = bus > 0 ? bus : link_;
  return links == 0 ? copies : std::min(links, copies);
}

cost::PolicyPools PolicyAuto::PoolsOf(const PolicyMeasures& measures) const {
  return {.attention = AttentionOfPools(measures),
          .lanes_max = options_.scheduler.lanes,
          .lanes_auto = options_.scheduler.lanes_auto,
          .link = LinkOf(measures),
          .room = RoomOfRecompute(options_),
          .made_tokens_max = MadeTokensMax(options_)};
}

// As measured, now or when nodes of replicas were linked last; else as a copy within a host.
cost::PartLink PolicyAuto::PartsOf(const PolicyMeasures& measures) const {
  cost::PartLink link = parts_;
  if (link.bytes_per_second == 0) {
    const double copies = measures.compute.front().times.read_bandwidth / 2;
    link = {.latency_seconds = kPartSeconds,
            .bytes_per_second = copies > 0 ? copies : kPartBytesPerSecond};
  }
  link.row_bytes = options_.part_row_bytes;
  return link;
}

// Memory nodes on cores of the compute node attend as fast as that did there; others as much of
// their bandwidth as it of its own, unless they have measured their own attention. Of nodes that
// share cores, or a device, one is counted: each has measured what all of them have.
double PolicyAuto::AttentionOfPools(const PolicyMeasures& measures) const {
  const double share = AttendedShare(measures);
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
  return rate + (shared ? measures.compute.front().times.attention_shared : 0);
}

}  // namespace lamina::coordinator

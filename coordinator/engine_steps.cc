// SPDX-License-Identifier: Apache-2.0
//
// Plans out, results in, and what the cluster says of itself.

#include <algorithm>
#include <utility>

#include "common/dtype.h"
#include "common/log.h"
#include "coordinator/engine_internal.h"

namespace lamina::coordinator {
namespace {

constexpr Nanos kRateWindow = Seconds(10);

}  // namespace

void Engine::Impl::PlanSteps() {
  if (membership.phase() != core::MembershipPhase::kServing) {
    return;
  }
  plans.clear();
  scheduler.Plan(plans);
  if (!plans.empty()) {
    const core::LaneCount& choice = scheduler.lane_count();
    if (choice.lanes != lanes_told) {
      LogInfo("lanes: ", choice.why);
      lanes_told = choice.lanes;
    }
  }
  const Nanos now = plans.empty() ? 0 : clock.Now();
  for (plan::StepPlan& plan : plans) {
    if (trace.on(now)) {
      trace.Planned(plan, now, [this](plan::SequenceId id) { return requests.FollowedId(id); });
    }
    for (const plan::PrefillChunk& chunk : plan.chunks) {
      if (!chunk.last) {
        chunks_planned[plan.lane].emplace_back(plan.step, chunk);
      }
    }
    for (plan::SequenceJoin& join : plan.joins) {
      requests.Started(join.id);
      join.request_id = requests.FollowedId(join.id);
    }
    const std::vector<const core::Member*> compute = membership.compute_members();
    for (uint32_t i = 0; i < compute.size(); ++i) {
      if (schedule->TakesPart(i, plan.lane)) {
        nodes.at(compute[i]->name).port->SendPlan(plan);
      }
    }
    // Memory nodes need no tokens.
    for (plan::SequenceJoin& join : plan.joins) {
      join.tokens.clear();
      join.end_tokens.clear();
      join.sampling = {};
    }
    for (const core::Member* member : membership.memory_members()) {
      nodes.at(member->name).port->SendPlan(plan);
    }
  }
}

void Engine::Impl::StepDone(const std::string& name, plan::StepResult report) {
  // The places of compute nodes in an epoch's plans are those of its own members.
  if (report.epoch != membership.epoch() || membership.epoch_ended()) {
    return;
  }
  const std::vector<const core::Member*> compute = membership.compute_members();
  const auto node = std::find_if(compute.begin(), compute.end(),
                                 [&](const core::Member* member) { return member->name == name; });
  if (node == compute.end()) {
    return;
  }
  absl::Status status = core::CheckTokens(report, options.vocabulary);
  absl::StatusOr<std::optional<plan::StepResult>> whole = std::nullopt;
  if (status.ok()) {
    whole = reports.Add(static_cast<uint32_t>(node - compute.begin()), std::move(report));
    status = whole.status();
  }
  core::Events events;
  if (status.ok() && whole->has_value()) {
    const plan::StepResult& result = **whole;
    status = scheduler.OnStepDone(result, events);
    if (status.ok()) {
      membership.NoteProgress();
      trace.Done(result.epoch, result.lane, result.step, clock.Now());
      ReportChunks(result);
    }
  }
  if (!status.ok()) {
    LogError("step result refused: ", status.message());
    NodeFault(name, membership.epoch(), status);
  }
  Deliver(events);
  CountTokens();
}

void Engine::Impl::ReportChunks(const plan::StepResult& result) {
  auto& planned = chunks_planned[result.lane];
  while (!planned.empty() && planned.front().first <= result.step) {
    const plan::PrefillChunk& chunk = planned.front().second;
    requests.Progress(chunk.sequence, chunk.first_token + chunk.tokens);
    planned.pop_front();
  }
}

void Engine::Impl::CountTokens() {
  const Nanos now = clock.Now();
  // At most a hundred entries: one for each tenth of a second.
  if (token_counts.empty() || now - token_counts.back().first > kRateWindow / 100) {
    token_counts.emplace_back(now, requests.tokens());
  }
  while (token_counts.size() > 1 && now - token_counts.front().first > kRateWindow) {
    token_counts.pop_front();
  }
}

double Engine::Impl::TokensPerSecond() {
  const Nanos now = clock.Now();
  while (token_counts.size() > 1 && now - token_counts.front().first > kRateWindow) {
    token_counts.pop_front();
  }
  if (token_counts.empty() || now <= token_counts.front().first) {
    return 0;
  }
  const double tokens = static_cast<double>(requests.tokens() - token_counts.front().second);
  return tokens / ToSeconds(std::max(now - token_counts.front().first, Seconds(1)));
}

cost::LaneCosts Engine::Impl::CostsOfLanes() const {
  if (!schedule.has_value()) {
    return {};
  }
  cost::PoolTimes pools{.replicas = schedule->replicas(),
                        .shards = shards(),
                        .heads_spread = head_split.has_value(),
                        .busiest_share = 0};
  const auto times_of = [this](const std::vector<const core::Member*>& members) {
    std::vector<cost::UnitTimes> times;
    for (const core::Member* member : members) {
      const telemetry::NodeCounters& node = nodes.at(member->name).counters;
      times.push_back({.fixed = node.unit_seconds_fixed, .slope = node.unit_seconds_slope});
    }
    return times;
  };
  pools.compute = times_of(membership.compute_members());
  pools.memory = times_of(membership.memory_members());
  for (const ReplicaOptions& replica : options.replicas) {
    const auto split = stage_splits.find(replica.name);
    if (!IsForPrompts(replica) && split != stage_splits.end()) {
      pools.busiest_share = std::max(pools.busiest_share, split->second.busiest_share);
    }
  }
  if (pools.busiest_share == 0) {
    pools.busiest_share = 1;  // Whole models.
  }
  return cost::LaneCostsOf(pools);
}

// Links are measured one way; the way back is taken to be as fast. Memory nodes share a lane's
// rows, and a compute node's link carries those of all.
cost::LinkCosts Engine::Impl::CostsOfLinks() const {
  cost::LinkCosts costs{.kv_heads = window_heads};
  for (const core::Member* member : membership.memory_members()) {
    costs.threads = std::max(costs.threads, nodes.at(member->name).hello.identity.threads);
  }
  double slowest = 0;
  for (const core::Member* member : membership.compute_members()) {
    for (const control::LinkReport& link : nodes.at(member->name).links) {
      const bool to_memory = !member->prefill && std::find(memory_names.begin(), memory_names.end(),
                                                           link.peer) != memory_names.end();
      if (!to_memory || link.bytes_per_second <= 0) {
        continue;
      }
      slowest = slowest == 0 ? link.bytes_per_second : std::min(slowest, link.bytes_per_second);
      costs.seconds_per_message = std::max(costs.seconds_per_message, link.latency_seconds);
    }
  }
  if (slowest == 0) {
    return costs;
  }
  double bytes = 0;
  for (const AttentionDescriptor& layer : options.layers) {
    bytes += static_cast<double>((layer.qkv_width() + layer.q_width()) * sizeof(BFloat16));
  }
  costs.seconds_per_row = bytes / static_cast<double>(options.layers.size()) / slowest;
  costs.measured = true;
  return costs;
}

core::ServingBandwidth Engine::Impl::BandwidthOf(const std::vector<std::string>& names) const {
  std::vector<core::NodeSpeed> speeds;
  for (const std::string& name : names) {
    const Node& node = nodes.at(name);
    speeds.push_back({.name = name,
                      .at_start = node.hello.identity.bandwidth_bytes_per_second,
                      .attending = node.attention_rate.bytes_per_second()});
  }
  return core::BandwidthOf(speeds);
}

// With heads spread the shares stay until the next epoch, which moves K and V anyway.
void Engine::Impl::UpdateBandwidths() {
  if (membership.phase() != core::MembershipPhase::kServing || membership.epoch_ended()) {
    return;  // Nodes of memory_names may be gone.
  }
  const core::ServingBandwidth bandwidth = BandwidthOf(memory_names);
  shares_words = bandwidth.words;
  if (!head_split.has_value()) {
    scheduler.SetBandwidths(bandwidth.bytes_per_second);
  }
}

EngineStatus Engine::Impl::Status() {
  EngineStatus status{
      .epoch = membership.epoch(),
      .state = draining ? "draining" : membership.Describe(),
      .transport = transport.uri().substr(0, transport.uri().find(':')),
      .scheduler = scheduler.Stats(),
      .stages = DescribeStages(),
      .policy = membership.local() ? "local" : "attend_remote",
      .partition = shares_words.empty() ? partition : absl::StrCat(partition, "; ", shares_words),
      .prefill = DescribePrefill(),
      .tokens_per_second = TokensPerSecond(),
      .tokens_generated = requests.tokens(),
      .requests_finished = requests.finished(),
      .requests_failed = requests.failed()};
  if (options.policy_auto.has_value()) {
    status.policy_figures = policy_choice;
    status.policy_choice = policy_choice.has_value() ? policy_choice->why : "";
    status.policy = policy_choice.has_value() ? status.policy : "";
  }
  if (membership.memory_members().empty() && !membership.kv_members().empty()) {
    status.scheduler.row_chunks.why.clear();  // Policy local: rows leave for nowhere.
  }
  if (std::string warning = transport.Warning(); !warning.empty()) {
    status.warnings.push_back(std::move(warning));
  }
  if (std::string warning = membership.Warning(); !warning.empty()) {
    status.warnings.push_back(std::move(warning));
  }
  if (membership.phase() == core::MembershipPhase::kServing &&
      status.prefill.starts_with("inline,")) {
    status.warnings.push_back(absl::StrCat("prefill.mode dedicated runs ", status.prefill));
  }
  if (std::string warning = PrefillShardsWarning(); !warning.empty()) {
    status.warnings.push_back(std::move(warning));
  }
  if (options.attention.decode != options.attention.prefill) {
    const bool prompts = options.attention.prefill == AttentionArithmetic::kTensor;
    status.warnings.push_back(
        absl::StrCat("bits may differ: ", prompts ? "prompts attend" : "decode attends",
                     " on tensor cores, ", prompts ? "decode does" : "prompts do",
                     " not; a request that is preempted or recovered may go on with other text"));
  }
  for (const core::Member& member : membership.all()) {
    NodeReport report{.member = member};
    if (const std::optional<plan::Stage> stage = StageOf(member.name); stage.has_value()) {
      report.layers = absl::StrCat(stage->first_layer, "-", stage->first_layer + stage->layers - 1);
      if (const ShardPart& part = stage->shard; part.count > 1) {
        absl::StrAppend(&report.layers, ", KV heads ", part.first_head, "-",
                        part.first_head + part.heads - 1, ", MLP columns ", part.first_column, "-",
                        part.first_column + part.columns - 1);
      }
    }
    if (const auto node = nodes.find(member.name); node != nodes.end()) {
      report.hello = node->second.hello;
      report.windows = node->second.windows;
      report.busy_share = node->second.busy_share;
      report.counters = node->second.counters;
      report.thread_still = threads.StillFor(member.name, silence.awake());
      for (const control::LinkReport& link : node->second.links) {
        status.links.push_back({.from = member.name, .report = link});
      }
    }
    const auto index = std::find(memory_names.begin(), memory_names.end(), member.name);
    if (index != memory_names.end()) {
      // With heads spread over the nodes all have the same slots, counted once.
      report.kv = scheduler.kv().Stats(
          head_split.has_value() ? 0 : static_cast<uint32_t>(index - memory_names.begin()));
    }
    status.nodes.push_back(std::move(report));
  }
  return status;
}

}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "common/log_event.h"
#include "common/status_macros.h"
#include "coordinator/cache_salt.h"
#include "coordinator/engine_internal.h"
#include "coordinator/kv_makers.h"
#include "coordinator/node_costs.h"
#include "coordinator/policy_request.h"
#include "coordinator/stopped_serving.h"

namespace lamina::coordinator {
namespace {

constexpr Nanos kHoldInterval = Millis(500);  // Nodes report as often, each of them.

std::unique_ptr<core::ServiceOrder> MakeOrder(bool priority) {
  return priority ? core::MakePriorityOrder() : core::MakeFirstComeFirstServed();
}

// Where there are several policies fetch_hybrid is told of its own requests alone.
bool CountsForHybrid(const EngineOptions& options, const core::SchedulerStats::LaneStats& lane) {
  return !HasSeveralPolicies(options) || lane.path == plan::AttentionPath::kHybrid;
}

ClusterMembers::Load LoadOf(const EngineOptions& options, const core::SchedulerStats& stats,
                            ClusterMembers::Load load) {
  for (const core::SchedulerStats::LaneStats& lane : stats.lanes) {
    if (!CountsForHybrid(options, lane)) {
      continue;
    }
    load.rows += lane.rows;
    load.prefilling += lane.prefilling;
    load.lanes += lane.rows > 0 ? 1 : 0;
    load.context_tokens += lane.tokens;
  }
  return load;
}

// All choices wait before the first one runs, so that too many are refused however often the client
// tries. What was accepted before is taken nonetheless, and a search is one sequence.
absl::Status CheckQueueTakes(const GenerateSpec& spec, uint32_t waiting_max) {
  if (spec.beams.width > 0 || spec.accepted_before || spec.choices <= waiting_max) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(spec.choices, " choices are more than the queue ever takes, ", waiting_max,
                   " sequences (limits.waiting_max); ask for fewer"));
}

}  // namespace

Engine::Impl::Impl(const EngineOptions& o, const model::Tokenizer& tokenizer, const Clock& c)
    : options(o),
      clock(c),
      scheduler(o.scheduler, MakeOrder(o.priority_order)),
      requests(tokenizer, c, o.scheduler.sequence_tokens_max, o.vocabulary),
      members(options, c, *this),
      trial(options, members),
      changes(options, members),
      status_builder(options),
      burst_wait(o.scheduler),
      token_work(static_cast<uint32_t>(o.layers.size())),
      loop({.begin_turn = [this] { members.BeginTurn(); }, .end_turn = [this] { EndTurn(); }}) {
  requests.SetOnEnd([this](const RequestRecord& record) {
    trace.Ended(record);
    if (options.on_request_end != nullptr) {
      options.on_request_end(record);
    }
  });
}

void Engine::Impl::PostOf(const NodeSource& from, std::function<void(Impl&)> event) {
  loop.Post([this, from, event = std::move(event)] {
    if (members.IsFrom(from)) {
      event(*this);
    }
  });
}

void Engine::Impl::EndTurn() {
  members.DropLostNodes();
  LetGo();
  members.WatchLoad(scheduler.HasWork() || !requests.empty(), [this] {
    return LoadOf(options, scheduler.Stats(),
                  {.tokens = requests.tokens(),
                   .prompts = prompts_planned,
                   .prompt_tokens = token_work.input_tokens()});
  });
  members.Advance();
  PlanSteps();
  if (draining && requests.empty() && drained) {
    std::exchange(drained, nullptr)();
  }
}

void Engine::Impl::LetGo() {
  departures.Keep([this](const NodeSource& node) { return members.IsFrom(node); });
  // A coordinator that ends forms no epoch any more that several could leave together.
  const bool ends = draining && requests.empty();
  const std::vector<std::string> names = ends ? departures.asking() : departures.Due(clock.Now());
  if (names.empty()) {
    return;
  }
  const bool spared = trial.CanServeWithout(names);
  if (spared || requests.empty()) {
    members.Release(names);
    departures.Keep([this](const NodeSource& node) { return members.IsFrom(node); });
  } else {
    departures.Hold(true);
  }
}

void Engine::Impl::NoteRefused(const std::string& request_id, const absl::Status& status) {
  LogEvent(LogLevel::kInfo, "refused",
           {{"request_id", request_id},
            {"status", absl::StatusCodeToString(status.code())},
            {"error", status.message()}});
  requests.metrics().CountFailure(status.code());
}

void Engine::Impl::Submit(GenerateSpec spec, uint64_t key,
                          const std::shared_ptr<RequestSink>& sink) {
  const std::string id = spec.followed_id.empty() ? spec.request_id : spec.followed_id;
  absl::Status refused = StoppedServing(CheckServing());
  if (refused.ok()) {
    refused = CheckQueueTakes(spec, options.scheduler.waiting_max);
  }
  if (!refused.ok()) {
    NoteRefused(id, refused);
    sink->OnDone(refused);
    return;
  }
  const absl::StatusOr<const PreparedPolicy*> policy = PolicyOf(spec);
  spec.lossy = policy.ok() && *policy != nullptr ? (*policy)->lossy : options.lossy;
  auto sequences = !policy.ok() ? policy.status() : requests.Admit(std::move(spec), key, sink);
  if (!sequences.ok()) {
    NoteRefused(id, sequences.status());
    sink->OnDone(sequences.status());
    return;
  }
  for (core::SequenceRequest& sequence : *sequences) {
    if (*policy != nullptr || !options.policies.empty()) {
      sequence.cache_salt = CacheSaltOf(*policy != nullptr ? **policy : options.policies.front(),
                                        sequence.cache_salt);
    }
    if (*policy != nullptr) {
      sequence.path = (*policy)->path;
      sequence.lossy =
          (*policy)->path == plan::AttentionPath::kSparse && options.fetch.sparse_ratio < 1;
    }
    burst_wait.Came(static_cast<uint32_t>(sequence.prompt.size()), clock.Now());
    const absl::Status submitted = scheduler.Submit(std::move(sequence));
    if (!submitted.ok()) {
      EndRequest(key, submitted);
      return;
    }
  }
}

absl::StatusOr<const PreparedPolicy*> Engine::Impl::PolicyOf(const GenerateSpec& spec) const {
  LAMINA_ASSIGN_OR_RETURN(const PreparedPolicy* const named, ChoosePolicy(options.policies, spec));
  return HasSeveralPolicies(options) ? named : nullptr;  // Else the epoch has one path.
}

absl::Status Engine::Impl::CheckServing() const {
  if (draining) {
    return absl::UnavailableError("the coordinator is stopping; try again when it is back");
  }
  if (const std::string& held = departures.held(); !held.empty()) {
    return absl::UnavailableError(
        absl::StrCat("the cluster is stopping: ", held, " leave; try again when they are back"));
  }
  const core::Membership& membership = members.membership();
  if (membership.phase() == core::MembershipPhase::kWaiting) {
    return absl::UnavailableError(
        absl::StrCat("the cluster is not serving: ", membership.Describe()));
  }
  return absl::OkStatus();
}

void Engine::Impl::Deliver(core::Events& events) {
  for (const plan::SequenceId id : requests.Deliver(events)) {
    scheduler.Finish(id);
  }
}

void Engine::Impl::EndRequest(uint64_t key, const absl::Status& status) {
  for (const plan::SequenceId id : requests.End(key, status)) {
    scheduler.Finish(id);
  }
}

void Engine::Impl::BeginEpoch(const FormedEpoch& epoch, const std::vector<std::string>& lost) {
  const plan::EpochConfig& config = epoch.config();
  const core::LaneHomes homes = epoch.homes();
  scheduler.HoldLanes(homes.bound() ? config.lanes : 0, options.replica_lanes_why);
  // Where there are several, each request has its own.
  scheduler.SetAttentionPath(HasSeveralPolicies(options) ? options.policies.front().path
                                                         : config.attention_paths.only());
  schedule = epoch.topology.Schedule();
  shares_by = epoch.shares_by;
  scheduler.SetLinkCosts(CostsOfLinks(epoch, MeasuredNodesOf(members)));
  scheduler.SetFetchRates(FetchRatesOf(options, epoch, MeasuredNodesOf(members)));
  chunks_planned.assign(config.lanes, {});
  prompt_rate.Reset(config.lanes);
  restores.Reset();
  reports.Reset(epoch.topology.compute_nodes(), config.lanes, *schedule);
  core::Events events;
  std::vector<core::MemoryNodeShare> shares = epoch.shares;
  const std::vector<uint64_t> arenas = ArenasOf(epoch);
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].arena = arenas[i];
  }
  // Without a prefill node prompts run inline.
  scheduler.StartEpoch(config.epoch, shares, lost, events, epoch.topology.prefill_lanes(), homes);
  Deliver(events);
}

void Engine::Impl::EpochServes(const FormedEpoch& epoch) { scheduler.SetArenas(ArenasOf(epoch)); }

// Arenas in which the nodes' slots have been since they were prepared last. Those of a share of
// several nodes are one: what it keeps is there if all its nodes have kept theirs. Where heads are
// spread, the name says which each has: an epoch may spread them in another way. It says which
// kinds of compute nodes have made what lies there, unless they hold it themselves: then the arena
// is that of a process, whose kind stays.
std::vector<uint64_t> Engine::Impl::ArenasOf(const FormedEpoch& epoch) const {
  std::vector<std::vector<uint64_t>> arenas(epoch.shares.size());
  for (uint32_t i = 0; i < epoch.share_of.size(); ++i) {
    const AttachedNode* node = members.nodes().Find(epoch.config().memory_nodes[i]);
    for (const uint32_t share : epoch.SharesOf(i)) {
      arenas[share].push_back(node == nullptr ? 0 : node->kv_arena);
      if (epoch.heads_spread()) {
        const HeadRange& heads = epoch.config().heads[i];
        arenas[share].insert(arenas[share].end(), {1 + uint64_t{heads.first}, heads.count});
      }
    }
  }
  const uint64_t makers = KvMakersOf(epoch.config(), [this](const std::string& name) {
    const AttachedNode* node = members.nodes().Find(name);
    return node == nullptr ? std::string() : std::string(control::LoopOf(node->hello.identity));
  });
  std::vector<uint64_t> joined;
  for (std::vector<uint64_t>& of_share : arenas) {
    if (!of_share.empty() && !epoch.homes().bound()) {
      of_share.push_back(makers);
    }
    joined.push_back(core::JoinArenas(of_share));
  }
  return joined;
}

void Engine::Impl::StopServing(const absl::Status& status) {
  core::Events events;
  scheduler.FailAll(StoppedServing(status), events);
  Deliver(events);
}

void Engine::Impl::PlanSteps() {
  if (!members.serving()) {
    return;
  }
  const Nanos now = clock.Now();
  if (!scheduler.HasStepsUnderWay()) {
    const Nanos plan_at = burst_wait.PlanAt(prompt_rate.TokensPerSecond());
    if (plan_at > now) {
      loop.PauseAtMost(plan_at - now);
      return;
    }
  }
  plans.clear();
  scheduler.Plan(plans);
  if (plans.empty()) {
    return;
  }
  burst_wait.Planned();
  if (const core::LaneCount& choice = scheduler.lane_count(); choice.lanes != lanes_told) {
    LogInfo("lanes: ", choice.why);
    lanes_told = choice.lanes;
  }
  for (plan::StepPlan& plan : plans) {
    members.epoch()->NameNodes(plan);
    if (trace.on(now)) {
      trace.Planned(plan, now, [this](plan::SequenceId id) {
        return TracedId(requests.FollowedId(scheduler.AnswerOf(id)));
      });
    }
    prompts_planned += plan.chunks.empty() ? 0 : 1;
    for (const plan::PrefillChunk& chunk : plan.chunks) {
      if (!chunk.last) {
        chunks_planned[plan.lane].emplace_back(plan.step, chunk);
      }
    }
    for (size_t row = 1; row < plan.rows.size(); ++row) {
      // Several rows of one sequence are a prompt's.
      const auto& [sequence, position] = plan.rows[row];
      const bool last = row + 1 == plan.rows.size() || plan.rows[row + 1].sequence != sequence;
      if (last && plan.rows[row - 1].sequence == sequence) {
        ++prompts_planned;
        chunks_planned[plan.lane].emplace_back(
            plan.step,
            plan::PrefillChunk{.sequence = sequence, .first_token = position, .tokens = 1});
      }
    }
    token_work.Add(plan, schedule->IsPrefillLane(plan.lane));
    prompt_rate.Planned(plan, now);
    restores.Planned(plan, now);
    for (plan::SequenceJoin& join : plan.joins) {
      const plan::SequenceId id = scheduler.AnswerOf(join.id);
      requests.Started(id);
      join.request_id = requests.FollowedId(id);
    }
    SendPlan(plan);
  }
}

void Engine::Impl::SendPlan(plan::StepPlan& plan) {
  const std::vector<const core::Member*> compute = members.membership().compute_members();
  const OutgoingPlan with_tokens(plan);
  for (uint32_t i = 0; i < compute.size(); ++i) {
    if (schedule->TakesPart(i, plan.lane)) {
      members.nodes().at(compute[i]->name).port->SendPlan(with_tokens);
    }
  }
  // Memory nodes need no tokens.
  for (plan::SequenceJoin& join : plan.joins) {
    join.tokens.clear();
    join.end_tokens.clear();
    join.sampling = {};
  }
  const OutgoingPlan without_tokens(plan);
  for (const core::Member* member : members.membership().memory_members()) {
    members.nodes().at(member->name).port->SendPlan(without_tokens);
  }
}

void Engine::Impl::StepDone(const std::string& name, plan::StepResult report) {
  // The places of compute nodes in an epoch's plans are those of its own members.
  const core::Membership& membership = members.membership();
  if (report.epoch != membership.epoch() || membership.epoch_ended()) {
    return;
  }
  const std::vector<const core::Member*> compute = membership.compute_members();
  const auto node = std::find_if(compute.begin(), compute.end(),
                                 [&](const core::Member* member) { return member->name == name; });
  if (node == compute.end()) {
    return;
  }
  core::Events events;
  const absl::Status status =
      TakeReport(static_cast<uint32_t>(node - compute.begin()), std::move(report), events);
  if (!status.ok()) {
    LogError("step result refused: ", status.message());
    members.Fault(name, membership.epoch(), status);
  }
  Deliver(events);
  token_rate.Count(clock.Now(), requests.tokens());
}

absl::Status Engine::Impl::TakeReport(uint32_t node, plan::StepResult report,
                                      core::Events& events) {
  LAMINA_RETURN_IF_ERROR(core::CheckTokens(report, options.vocabulary));
  LAMINA_ASSIGN_OR_RETURN(const std::optional<plan::StepResult> result,
                          reports.Add(node, std::move(report)));
  if (!result.has_value()) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(scheduler.OnStepDone(*result, events));
  members.NoteProgress();
  trace.Done(result->epoch, result->lane, result->step, clock.Now());
  prompt_rate.Done(result->lane, clock.Now());
  scheduler.SetPromptRate(prompt_rate.TokensPerSecond());
  ReportChunks(*result);
  return absl::OkStatus();
}

void Engine::Impl::ReportChunks(const plan::StepResult& result) {
  auto& planned = chunks_planned[result.lane];
  while (!planned.empty() && planned.front().first <= result.step) {
    const plan::PrefillChunk& chunk = planned.front().second;
    requests.Progress(chunk.sequence, chunk.first_token + chunk.tokens);
    planned.pop_front();
  }
}

void Engine::Impl::UseCosts() {
  const FormedEpoch* epoch = members.epoch();
  if (epoch == nullptr) {
    return;
  }
  const MeasuredNodes nodes = MeasuredNodesOf(members);
  scheduler.SetLaneCosts(CostsOfLanes(*epoch, members.splits(), nodes));
  scheduler.SetLinkCosts(CostsOfLinks(*epoch, nodes));
  scheduler.SetFetchRates(FetchRatesOf(options, *epoch, nodes));
  token_work.SetTimes({.slice = MeanUnit(nodes.compute),
                       .attention = nodes.memory.empty()
                                        ? MeanAttention(*epoch, members.splits(), nodes.compute)
                                        : MeanUnit(nodes.memory),
                       .memory_nodes = static_cast<uint32_t>(nodes.memory.size())});
  if (!members.serving() || members.membership().epoch_ended()) {
    return;  // Nodes that hold KV may be gone.
  }
  if (const Nanos now = clock.Now();
      options.prices.total() > 0 && now - token_work.held_until() >= kHoldInterval) {
    token_work.Hold(KeptShare(*epoch), nodes.memory.empty(), now);
  }
  const core::ServingBandwidth bandwidth =
      members.nodes().BandwidthOf(epoch->config().memory_nodes);
  shares_by = bandwidth.words;
  // With heads spread the shares stay until the next epoch, which moves K and V anyway.
  if (!epoch->heads_spread()) {
    std::vector<double> of_shares(epoch->shares.size());
    for (uint32_t i = 0; i < epoch->share_of.size(); ++i) {
      for (const uint32_t share : epoch->SharesOf(i)) {
        of_shares[share] += bandwidth.bytes_per_second[i];
      }
    }
    scheduler.SetBandwidths(of_shares);
  }
}

// Share of all slots that the prefix cache alone holds.
double Engine::Impl::KeptShare(const FormedEpoch& epoch) const {
  uint64_t kept = 0;
  uint64_t all = 0;
  for (uint32_t share = 0; share < epoch.shares.size(); ++share) {
    const core::KvPoolStats stats = scheduler.KvStats(share);
    kept += stats.slots_kept;
    all += stats.slots_total;
  }
  return all == 0 ? 0 : static_cast<double>(kept) / static_cast<double>(all);
}

EngineStatus Engine::Impl::Status() {
  EngineStatus status = status_builder.Build(
      {.membership = members.membership(),
       .transport = members.transport(),
       .nodes = members.nodes(),
       .splits = members.splits(),
       .scheduler = scheduler,
       .epoch = members.epoch(),
       .shares_by = shares_by,
       .policy_choice = members.policy() == nullptr ? std::nullopt : members.policy()->choice(),
       .draining = draining});
  for (std::string& warning : changes.Warnings()) {
    status.warnings.push_back(std::move(warning));
  }
  status.tokens_per_second = token_rate.PerSecond(clock.Now(), requests.tokens());
  status.tokens_generated = requests.tokens();
  status.tokens_prefilled = token_work.input_tokens();
  status.tokens_cached = token_work.cached_tokens();
  status.token_work = token_work.work();
  status.pool_prices = options.prices;
  status.requests_finished = requests.finished();
  status.requests_failed = requests.failed();
  status.admits = CheckServing().ok();
  return status;
}

EngineTrace Engine::Impl::TakeTrace() {
  const core::Membership& membership = members.membership();
  const std::optional<uint64_t> ask = trace.Collect(clock.Now());
  EngineTrace taken = trace.Take(requests.Running());
  taken.epoch = membership.epoch();
  for (const core::Member* member : membership.compute_members()) {
    taken.compute_nodes.push_back(member->name);
  }
  taken.prefill_nodes = membership.prefill_members();
  taken.prefill_lane = options.scheduler.lanes;
  for (const core::Member* member : membership.memory_members()) {
    taken.memory_nodes.push_back(member->name);
  }
  if (ask.has_value()) {
    for (const auto& [name, node] : members.nodes().all()) {
      node.port->CollectTrace(*ask);
    }
  }
  return taken;
}

}  // namespace lamina::coordinator

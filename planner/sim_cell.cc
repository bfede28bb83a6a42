// SPDX-License-Identifier: Apache-2.0
#include "planner/sim_cell.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "coordinator/core/service_order.h"
#include "cost/layer_seconds.h"
#include "cost/unit_seconds.h"

namespace lamina::planner {
namespace {

using core::Member;
using core::MembershipAction;

constexpr char kRegion[] = "simulated";
constexpr Nanos kKeptInterval = Seconds(1);
constexpr double kPrompt = 512;  // Tokens of the prompt whose rate counts for all.

bool HoldsKv(const SimCellSpec& spec) {
  return spec.cluster.policy != cost::KvPolicy::kAttendRemote;
}

// The nodes of a cell as members; shards of a stage are one.
std::vector<Member> MembersOf(const SimCellSpec& spec) {
  std::vector<Member> members;
  const cost::Cluster& cluster = spec.cluster;
  const uint32_t replicas = cluster.replicas + cluster.prompt_replicas;
  for (uint32_t i = 0; i < replicas * cluster.stages; ++i) {
    Member member;
    member.name = absl::StrCat("c", i);
    member.prefill = i / cluster.stages >= cluster.replicas;
    member.holds_kv = HoldsKv(spec);
    if (cluster.stages > 1) {
      member.replica = absl::StrCat("r", i / cluster.stages);
    }
    members.push_back(member);
  }
  for (uint32_t i = 0; i < cluster.memory_nodes; ++i) {
    members.push_back({.name = absl::StrCat("m", i), .is_memory = true});
  }
  return members;
}

core::SchedulerOptions WithoutNodes(core::SchedulerOptions options) {
  options.memory_nodes.clear();
  options.prefill_lanes = {};
  return options;
}

}  // namespace

std::vector<uint32_t> LayersOfStages(const cost::ModelShape& shape, uint32_t stages) {
  std::vector<double> costs(shape.layers, shape.LayerWeights());
  costs.push_back(shape.HeadWeights());
  std::vector<plan::StageNode> nodes(stages);
  const auto split = plan::SplitLayers(costs, nodes);
  LAMINA_CHECK(split.ok());
  return split->layers;
}

SimCell::SimCell(const SimCellSpec& spec, uint32_t index, uint64_t seed, Nanos failing_until,
                 SimEvents& events, SimListener& listener)
    : spec_(spec),
      index_(index),
      failing_until_(failing_until),
      events_(events),
      listener_(listener),
      random_(seed),
      scheduler_(WithoutNodes(spec.scheduler), core::MakeFirstComeFirstServed()),
      membership_(MembersOf(spec)),
      burst_wait_(spec.scheduler) {
  for (const Member& member : MembersOf(spec)) {
    LAMINA_CHECK(membership_.Join(member.name, member.is_memory).ok());
  }
  stats_.stages.resize(spec.compute_nodes() / spec.cluster.shards);
  stats_.memory.resize(spec.cluster.memory_nodes);
  Form(0);
  Serve(epoch_, 0);
  PlanFailure(0);
}

void SimCell::Push(SimEventKind kind, Nanos time, uint32_t subject) {
  events_.Push({.time = time, .epoch = epoch_, .cell = index_, .subject = subject, .kind = kind});
}

absl::Status SimCell::Submit(uint64_t request, const TraceRequest& what, Nanos now) {
  core::SequenceRequest sequence{.id = request + 1, .tokens_max = what.input + what.output};
  sequence.prompt = PromptOf(request, what);
  const absl::Status status = scheduler_.Submit(std::move(sequence));
  if (status.ok()) {
    burst_wait_.Came(what.input, now);
    Wake(now);
  }
  return status;
}

void SimCell::Wake(Nanos now) {
  if (!waking_) {
    waking_ = true;
    Push(SimEventKind::kTurn, std::max(now, busy_until_));
  }
}

void SimCell::OnEvent(const SimEvent& event) {
  switch (event.kind) {
    case SimEventKind::kRequest:
      return;  // Submit() is called for it.
    case SimEventKind::kTurn:
      waking_ = false;
      return Turn(event.time);
    case SimEventKind::kServe:
      return Serve(event.epoch, event.time);
    case SimEventKind::kFail:
      return FailOne(event.time);
    case SimEventKind::kRepair: {
      const Member& member = membership_.all()[event.subject];
      LAMINA_CHECK(membership_.Join(member.name, member.is_memory).ok());
      return Form(event.time);
    }
    case SimEventKind::kReport:
      if (event.epoch == epoch_ && nodes_ != nullptr) {
        reports_.push_back(event.subject);
        Wake(event.time);
      }
      return;
    case SimEventKind::kPlan:
    case SimEventKind::kReady:
    case SimEventKind::kSliceDone:
      if (event.epoch == epoch_ && nodes_ != nullptr) {
        nodes_->OnEvent(event);
      }
      return;
  }
}

// All that has come, and then one planning.
void SimCell::Turn(Nanos now) {
  if (membership_.Tick(now)) {
    Form(now);
  }
  if (nodes_ == nullptr) {
    return;  // Serve() wakes it again.
  }
  double seconds = spec_.coordinator.turn + TakeReports(now);
  seconds += Plan(now, seconds);
  CountKept(now);
  busy_until_ = now + NanosOf(seconds);
  stats_.coordinator_busy += seconds;
}

double SimCell::TakeReports(Nanos now) {
  double seconds = 0;
  core::Events told;
  for (const uint32_t lane : reports_) {
    const SimStep step = nodes_->TakeReported(lane);
    seconds +=
        spec_.coordinator.row_taken * step.work_rows + spec_.coordinator.message * nodes_there_;
    LAMINA_CHECK(scheduler_.OnStepDone(step.result, told).ok());
    membership_.NoteProgress();
  }
  reports_.clear();
  Tell(told, now + NanosOf(seconds));
  return seconds;
}

double SimCell::Plan(Nanos now, double spent) {
  if (const Nanos plan_at = burst_wait_.PlanAt(prompt_rate_);
      !scheduler_.HasStepsUnderWay() && plan_at > now) {
    Wake(plan_at);
    return 0;
  }
  double seconds = 0;
  std::vector<plan::StepPlan> plans;
  scheduler_.Plan(plans);
  if (!plans.empty()) {
    burst_wait_.Planned();
  }
  for (const plan::StepPlan& plan : plans) {
    SimStep step = pricer_->Of(plan);
    const CoordinatorSeconds& costs = spec_.coordinator;
    seconds +=
        (costs.row_planned + costs.row_encoded) * step.work_rows + costs.message * nodes_there_;
    const double way = spent + seconds + spec_.coordinator.message_way;
    nodes_->Send(plan.lane, std::move(step), now + NanosOf(way));
  }
  return seconds;
}

void SimCell::Tell(const core::Events& events, Nanos now) {
  for (const core::TokenEvent& event : events.tokens) {
    listener_.OnToken(event.sequence - 1, event.cached_tokens, now);
  }
  for (const core::FinishEvent& event : events.finished) {
    listener_.OnEnd(event.sequence - 1, event.status.ok());
  }
}

// Begins an epoch if the members that are there can have one. What they do meanwhile is lost.
void SimCell::Form(Nanos now) {
  for (MembershipAction action = membership_.Next(); action != MembershipAction::kNone;
       action = membership_.Next()) {
    LAMINA_CHECK(action == MembershipAction::kConfigure);
    membership_.KeepKvOnCompute(HoldsKv(spec_));
    KeepWork();
    epoch_ = membership_.epoch();
    Push(SimEventKind::kServe, now + NanosOf(spec_.failures.form_seconds));
  }
  if (membership_.phase() == core::MembershipPhase::kWaiting) {
    KeepWork();
  }
}

void SimCell::Serve(uint64_t epoch, Nanos now) {
  if (epoch != epoch_ || nodes_ != nullptr ||
      membership_.phase() == core::MembershipPhase::kWaiting) {
    return;
  }
  std::vector<std::string> names;
  for (const auto& members : {membership_.compute_members(), membership_.memory_members()}) {
    for (const Member* member : members) {
      names.push_back(member->name);
    }
  }
  for (const std::string& name : names) {
    membership_.Prepared(name, epoch, kRegion);
  }
  LAMINA_CHECK(membership_.Next() == MembershipAction::kConnect);
  for (const std::string& name : names) {
    membership_.Ready(name, epoch);
  }
  LAMINA_CHECK(membership_.Next() == MembershipAction::kServe);
  cost::Cluster cluster = spec_.cluster;
  const SimNodesOptions options = NodesOf(epoch, cluster);
  prompt_rate_ = kPrompt / cost::PromptSeconds(spec_.shape, cluster, kPrompt).value;
  nodes_ = std::make_unique<SimNodes>(options, events_);
  pricer_ = std::make_unique<StepPricer>(spec_.shape, cluster);
  nodes_there_ = static_cast<uint32_t>(names.size()) * cluster.shards;
  core::Events told;
  const std::vector<core::MemoryNodeShare> shares = SharesOf(cluster);
  shares_ = static_cast<uint32_t>(shares.size());
  scheduler_.StartEpoch(epoch, shares, std::exchange(lost_, {}), told, prefill_lanes_);
  if (spec_.scheduler.lanes_auto) {
    scheduler_.SetLaneCosts(CostsOf(cluster));
  }
  ++stats_.epochs;
  Tell(told, now);
  Wake(now);
}

void SimCell::AppendStages(uint32_t replica, const std::vector<uint32_t>& layers,
                           std::vector<plan::Stage>& stages) const {
  uint32_t first = 0;
  for (const uint32_t count : layers) {
    stages.push_back({.replica = replica, .first_layer = first, .layers = count});
    first += count;
  }
}

// What nodes would measure of themselves: lines through two sizes of the cost model's units.
cost::LaneCosts SimCell::CostsOf(const cost::Cluster& cluster) const {
  constexpr double kFewRows = 1;
  constexpr double kManyRows = 65;
  const double few = cost::SliceSeconds(spec_.shape, cluster, {.rows = kFewRows}).value;
  const double many = cost::SliceSeconds(spec_.shape, cluster, {.rows = kManyRows}).value;
  const double per_row = (many - few) / (kManyRows - kFewRows);
  const cost::AttentionRates& attention = cluster.memory.attention;
  return {.slice_fixed = few - kFewRows * per_row,
          .slice_per_row = per_row,
          .attention_fixed = attention.fixed.value,
          .attention_per_token = spec_.shape.KvBytesPerTokenLayer() *
                                 attention.seconds_per_byte.value / cluster.memory_nodes,
          .replicas = cluster.replicas,
          .measured = true};
}

// The nodes that serve, and in `cluster` how many replicas and memory nodes these are.
SimNodesOptions SimCell::NodesOf(uint64_t epoch, cost::Cluster& cluster) {
  const auto compute = static_cast<uint32_t>(membership_.compute_members().size());
  const uint32_t prompts = membership_.prefill_members() / cluster.stages;
  cluster.replicas = compute / cluster.stages - prompts;
  cluster.prompt_replicas = prompts;
  cluster.memory_nodes = static_cast<uint32_t>(membership_.memory_members().size());
  prefill_lanes_ = {.replicas = prompts,
                    .each = plan::PrefillLanesOf(cluster.stages, cluster.shards)};
  const uint32_t lanes = spec_.scheduler.lanes;
  SimNodesOptions options{.cell = index_,
                          .epoch = epoch,
                          .layers = spec_.shape.layers,
                          .lanes = lanes + prefill_lanes_.count(),
                          .memory_nodes = cluster.memory_nodes,
                          .message = NanosOf(spec_.coordinator.message_way),
                          .several_stages = cluster.stages > 1,
                          .prefill = {.lane = lanes, .lanes = prefill_lanes_}};
  const std::vector<uint32_t> layers = LayersOfStages(spec_.shape, cluster.stages);
  for (uint32_t replica = 0; replica < cluster.replicas + prompts; ++replica) {
    AppendStages(replica, layers, options.stages);
  }
  return options;
}

// With heads spread all memory nodes are one share, of as many tokens as the node with the most
// heads holds.
std::vector<core::MemoryNodeShare> SimCell::SharesOf(const cost::Cluster& cluster) const {
  const auto slots = [](double tokens) {
    return static_cast<uint32_t>(std::min(tokens, static_cast<double>(UINT32_MAX)));
  };
  const auto tokens = static_cast<double>(spec_.kv_tokens);
  std::vector<core::MemoryNodeShare> shares;
  if (HoldsKv(spec_)) {
    const std::string& name = membership_.compute_members().front()->name;
    shares.push_back({.name = name, .slots = slots(tokens), .arena = ArenaOf(name)});
  } else if (cluster.partition == Partition::kHead) {
    const double most = std::ceil(cost::Real(spec_.shape.kv_heads) / cluster.memory_nodes);
    shares.push_back({.name = "heads", .slots = slots(tokens * spec_.shape.kv_heads / most)});
  } else {
    for (const Member* member : membership_.memory_members()) {
      shares.push_back(
          {.name = member->name, .slots = slots(tokens), .arena = ArenaOf(member->name)});
    }
  }
  for (core::MemoryNodeShare& share : shares) {
    share.bandwidth_bytes_per_second = 1;
  }
  return shares;
}

// K and V that no running request uses, looked at now and then. With heads spread all nodes hold
// alike.
void SimCell::CountKept(Nanos now) {
  if (!spec_.scheduler.prefix_cache || now - kept_counted_ < kKeptInterval) {
    return;
  }
  kept_counted_ = now;
  const SimCellStats stats = Stats();
  const std::vector<SimWork>& nodes = HoldsKv(spec_) ? stats.stages : stats.memory;
  stats_.kept.resize(nodes.size());
  busy_counted_.resize(nodes.size());
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const core::KvPoolStats pool = scheduler_.KvStats(std::min(i, shares_ - 1));
    stats_.kept[i] += (nodes[i].busy - busy_counted_[i]) * pool.slots_kept / pool.slots_total;
    busy_counted_[i] = nodes[i].busy;
  }
}

void SimCell::PlanFailure(Nanos now) {
  const double rate =
      spec_.failures.per_node_hour * static_cast<double>(membership_.all().size()) / 3600;
  if (rate <= 0) {
    return;
  }
  const Nanos at = now + NanosOf(-std::log1p(-random_.Uniform()) / rate);
  if (at < failing_until_) {
    Push(SimEventKind::kFail, at);
  }
}

// Names the node's memory, which it loses with its life. No two nodes have the same one, nor has a
// node that came back the one that it had.
uint64_t SimCell::ArenaOf(const std::string& name) const {
  const std::vector<Member>& members = membership_.all();
  const auto node = std::find_if(members.begin(), members.end(),
                                 [&](const Member& member) { return member.name == name; });
  const auto lost = times_lost_.find(name);
  return 1 + static_cast<uint64_t>(node - members.begin()) +
         members.size() * (lost == times_lost_.end() ? 0 : lost->second);
}

void SimCell::FailOne(Nanos now) {
  const auto node = static_cast<uint32_t>(random_.Below(membership_.all().size()));
  const std::string name = membership_.all()[node].name;
  if (membership_.IsThere(name)) {
    membership_.Leave(name);
    lost_.push_back(name);
    ++times_lost_[name];
    ++stats_.nodes_lost;
    Push(SimEventKind::kRepair, now + NanosOf(spec_.failures.repair_seconds), node);
    Form(now);
  }
  PlanFailure(now);
}

// The nodes of the epoch that serves stop. What they were busy with is kept by their position in
// it: after a loss that may be another node of the role, at the same price.
void SimCell::KeepWork() {
  if (nodes_ == nullptr) {
    return;
  }
  const auto add = [](const std::vector<SimWork>& from, std::vector<SimWork>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      to[i] += from[i];
    }
  };
  add(nodes_->stages(), stats_.stages);
  add(nodes_->memory(), stats_.memory);
  nodes_.reset();
  reports_.clear();
}

SimCellStats SimCell::Stats() const {
  SimCellStats stats = stats_;
  if (nodes_ != nullptr) {
    for (size_t i = 0; i < nodes_->stages().size(); ++i) {
      stats.stages[i] += nodes_->stages()[i];
    }
    for (size_t i = 0; i < nodes_->memory().size(); ++i) {
      stats.memory[i] += nodes_->memory()[i];
    }
  }
  stats.preemptions = scheduler_.Stats().preemptions;
  return stats;
}

}  // namespace lamina::planner

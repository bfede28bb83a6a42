// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/fake_model.h"
#include "tests/sim/sim_slots.h"

namespace lamina::sim {
namespace {

constexpr size_t kTraceLines = 50;
constexpr uint32_t kLossesInARow = 6;
constexpr uint64_t kEventsMax = 200'000;
// After the last arrival. The longest workload needs a tenth of it.
constexpr Nanos kSettleTime = Seconds(20);

// In three of five worlds prompts share steps with rows; in the others on up to three replicas,
// which may have several nodes and lanes.
plan::PrefillLanes DrawPrefillLanes(Prng& random, Prng& stages) {
  const uint32_t replicas = random.Chance(0.6) ? 0 : 1 + static_cast<uint32_t>(random.Below(3));
  return {.replicas = replicas,
          .each = stages.Chance(0.5) ? 1 : 2 + static_cast<uint32_t>(stages.Below(2))};
}

SimWorkload WithPrefillLanes(SimWorkload workload, Prng random, Prng stages,
                             const SimOptions& sim) {
  workload.options.prefill_lanes = DrawPrefillLanes(random, stages);
  workload.options.strategies = sim.strategies;
  workload.options.resident_tokens = static_cast<uint32_t>(sim.seed % 4 * 200);
  if (sim.windows) {
    // What is kept is found in blocks of 16 tokens.
    const std::vector<AttentionDescriptor> layers = {
        {.window = 1 + static_cast<uint32_t>(sim.seed % (sim.prefix_cache ? 41 : 13))},
        {.window = 1 + static_cast<uint32_t>(sim.seed % 7)}};
    workload.options.windows = cost::LayerWindows(layers);
    workload.options.release_tokens = 1 + static_cast<uint32_t>(sim.seed % 5);
    if (workload.options.prefill_lanes.count() == 0 && sim.seed % 2 == 0) {
      workload.options.scratch_tokens = 1 + static_cast<uint32_t>(sim.seed / 2 % 40);
      workload.options.prompt_rows_max = static_cast<uint32_t>(1 + sim.seed % 5 * 4);
    }
  }
  if (sim.prefix_cache) {
    workload.options.prefix_cache = true;
    workload.options.prompt_rows_max = static_cast<uint32_t>(sim.seed % 5 * 4);
    for (uint64_t arena = 0; core::MemoryNodeShare & node : workload.options.memory_nodes) {
      node.arena = ++arena;
    }
    if (workload.options.prefill_lanes.count() == 0 && sim.seed % 2 == 0) {
      // Longer prompts end in rows. No prefill nodes come later, either.
      workload.options.scratch_tokens = 1 + static_cast<uint32_t>(sim.seed / 2 % 40);
    }
    ContinueConversations(Prng(sim.seed + 8), workload);
  }
  if (sim.int8) {
    workload.options.kv = KvForm::kInt8;
    // Fewer than may run at once, where no beams do: as many tails as sequences are taken.
    workload.options.int8_tails =
        sim.beams ? workload.options.running_max
                  : static_cast<uint32_t>(1 + sim.seed / 16 % workload.options.running_max);
    workload.options.int8_block_tokens = 1 + static_cast<uint32_t>(sim.seed % 16);
  }
  if (sim.spills) {
    HaveSpillTiers(sim.seed, workload);
  }
  if (sim.beams) {
    SearchBeams(Prng(sim.seed + 10), workload);
  }
  if (sim.paths) {
    ChoosePaths(Prng(sim.seed + 13), workload);
    workload.options.resident_path =
        sim.seed / 4 % 2 == 0 ? plan::AttentionPath::kRecompute : plan::AttentionPath::kFetch;
  }
  if (sim.forms) {
    KeepTwoForms(Prng(sim.seed + 14), workload);
  }
  if (sim.hybrid) {
    KeepHybridApart(Prng(sim.seed + 17), workload);
  }
  if (sim.pool) {
    KeepKvOnReplicas(sim.seed, workload);
  }
  if (sim.spans) {
    CutIntoSpans(sim.seed, workload);
  }
  if (sim.salts) {
    HaveSalts(Prng(sim.seed + 15), workload);
  }
  if (sim.resumed) {
    ResumeRequests(Prng(sim.seed + 16), workload);
  }
  return workload;
}

std::string Describe(const plan::StepPlan& plan) {
  std::string line = absl::StrCat("plan lane ", plan.lane, " step ", plan.step);
  for (const auto& [id] : plan.leaves) {
    absl::StrAppend(&line, " leave ", id);
  }
  for (const plan::SpillOut& spill : plan.spills_out) {
    absl::StrAppend(&line, " out ", spill.sequence, " as ", spill.spill);
  }
  for (const plan::SpillIn& spill : plan.spills_in) {
    absl::StrAppend(&line, " in ", spill.sequence, " of ", spill.spill);
  }
  for (const plan::SlotRelease& release : plan.releases) {
    absl::StrAppend(&line, " release ", release.sequence, " first ", release.tokens);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    absl::StrAppend(&line, " join ", join.id, " tokens ", join.tokens.size(), " node ",
                    join.memory_node, " parent ", join.parent, " path ",
                    static_cast<uint32_t>(join.path));
  }
  for (const plan::SlotAllocation& allocation : plan.allocations) {
    absl::StrAppend(&line, " allocation ", allocation.sequence, " ", allocation.extent.first_slot,
                    "+", allocation.extent.tokens);
  }
  for (const plan::DecodeRow& row : plan.rows) {
    absl::StrAppend(&line, " row ", row.sequence, " at ", row.position);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    absl::StrAppend(&line, " chunk ", chunk.sequence, " ", chunk.first_token, "+", chunk.tokens,
                    " scratch ", chunk.scratch_offset, chunk.last ? " last" : "");
  }
  return line;
}

}  // namespace

SimWorld::SimWorld(const SimOptions& options)
    : sim_(options),
      random_(options.seed),
      workload_(WithPrefillLanes(MakeWorkload(random_), Prng(options.seed + 3),
                                 Prng(options.seed + 5), options)),
      scheduler_(workload_.options, OrderOf(workload_)),
      replicas_random_(options.seed + 1),
      costs_random_(options.seed + 2),
      prefill_random_(options.seed + 4),
      stages_random_(options.seed + 6),
      loss_random_(options.seed + 7),
      arenas_random_(options.seed + 9),
      members_random_(options.seed + 11),
      spill_random_(options.seed + 12),
      prefill_lanes_(workload_.options.prefill_lanes),
      auditor_(workload_.options.windows.longest(),
               workload_.options.SlotsAtOnce(UINT32_MAX) - workload_.options.windows.longest()),
      links_(workload_.options.lanes + prefill_lanes_.count()),
      memory_nodes_(workload_.options.memory_nodes) {
  std::erase_if(memory_nodes_, IsSecondShare);
  arenas_drawn_ = memory_nodes_.size();
  if (sim_.pool) {
    BindLanes();
    core::Events none;
    scheduler_.StartEpoch(epoch_, memory_nodes_, {}, none, {}, homes_);
  }
  MakeNodes(workload_.options);
  ChangeReplicas();
}

// The nodes of an epoch. Those of the last one may have found something in its last steps.
void SimWorld::MakeNodes(core::SchedulerOptions options) {
  if (nodes_ != nullptr && !nodes_->failure().empty()) {
    Fail(nodes_->failure());
  }
  if (sim_.bug == PlantedBug::kTailsUncounted && options.int8_tails > 1) {
    --options.int8_tails;
  }
  for (core::MemoryNodeShare& node : options.memory_nodes) {
    if (sim_.bug == PlantedBug::kTierTooSmall && node.spill.blocks > 0) {
      --node.spill.blocks;
    }
  }
  nodes_ = std::make_unique<SimNodes>(options, epoch_, random_(), arenas_);
  nodes_->Plant(sim_.bug);
  nodes_->BindLanes(homes_);
  nodes_->OnReadOfOthers([this](plan::SequenceId reader, plan::SequenceId maker) {
    ++report_.reach.reads_of_others;
    auditor_.ReadOfOthers(reader, maker);
  });
}

void SimWorld::At(Nanos time, std::function<void()> happen) {
  queue_.push({time, ++event_count_, std::move(happen)});
}

void SimWorld::Trace(std::string line) {
  line = absl::StrCat(now_, " ", line);
  for (const char c : line) {
    report_.trace_hash = (report_.trace_hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
  }
  report_.trace.push_back(std::move(line));
  if (report_.trace.size() > kTraceLines) {
    report_.trace.erase(report_.trace.begin());
  }
}

void SimWorld::Fail(const std::string& what) {
  if (report_.failure.empty()) {
    report_.failure = absl::StrCat(what, " (at ", now_, " ns)");
  }
}

Nanos SimWorld::Delay(Nanos most) {
  return 1 + static_cast<Nanos>(random_.Below(static_cast<uint64_t>(most)));
}

SimReport SimWorld::Run() {
  ScheduleWorkload();
  while (!queue_.empty() && report_.failure.empty()) {
    const Event event = queue_.top();
    queue_.pop();
    now_ = event.time;
    event.happen();
    Plan();
    CheckAll();
    ++report_.events;
    if (now_ > settled_by_ || report_.events > kEventsMax) {
      Fail("not settled in time");
    }
  }
  if (report_.failure.empty()) {
    CheckEnd();
  }
  const core::SchedulerStats stats = scheduler_.Stats();
  report_.reach.preemptions = stats.preemptions;
  report_.reach.rows_discarded = stats.rows_discarded;
  report_.reach.lane_moves = stats.lane_moves;
  report_.reach.tokens_kept = stats.prefix_cache.tokens_found;
  report_.reach.blocks_dropped = scheduler_.prefix_cache().stats().blocks_dropped;
  report_.reach.reservations_revoked = revoked_before_ + scheduler_.kv().ReservationsRevoked();
  plan_hash_.Add(stats);
  report_.plan_hash = plan_hash_.value();
  return report_;
}

void SimWorld::ScheduleWorkload() {
  for (const SimArrival& arrival : workload_.arrivals) {
    At(arrival.time, [this, &arrival] { Arrive(arrival); });
  }
  const Nanos end = workload_.arrivals_end + Millis(2);
  for (uint32_t i = 0; i < workload_.faults.epochs; ++i) {
    At(Delay(end), [this] { ChangeEpoch(); });
  }
  // Losses one after the other, with hardly a step between.
  if (loss_random_.Chance(0.1)) {
    const auto first = static_cast<Nanos>(loss_random_.Below(static_cast<uint64_t>(end)));
    for (uint32_t i = 0; i < kLossesInARow; ++i) {
      At(first + i * Micros(20), [this] { ChangeEpoch(); });
    }
  }
  settled_by_ = end + kSettleTime;
}

void SimWorld::Arrive(const SimArrival& arrival) {
  for (const core::SequenceRequest& request : arrival.requests) {
    core::SequenceRequest asked = request;
    Mutate(asked);
    const absl::Status status = scheduler_.Submit(std::move(asked));
    Trace(absl::StrCat("submit ", request.id, " prompt ", request.prompt.size(), " tokens_max ",
                       request.tokens_max, " ", status.ToString()));
    switch (status.code()) {
      case absl::StatusCode::kOk:
        break;
      case absl::StatusCode::kResourceExhausted:
        ++report_.reach.queue_full;
        continue;
      case absl::StatusCode::kInvalidArgument:
        ++report_.reach.refused;
        continue;
      default:
        Fail(absl::StrCat("Submit answered ", status.ToString()));
        return;
    }
    requests_[request.id] = request;
    auditor_.Submitted(request);
    report_.reach.beam_answers += request.answers.size();
    report_.reach.resumed += request.generated.empty() ? 0 : 1;
    if (random_.Chance(workload_.faults.cancel)) {
      const plan::SequenceId id = request.id;
      At(now_ + Delay(Millis(3)), [this, id] { Cancel(id); });
      for (const plan::SequenceId answer : request.answers) {
        if (answer != id && random_.Chance(0.7)) {
          At(now_ + Delay(Millis(3)), [this, answer] { Cancel(answer); });
        }
      }
    }
  }
}

void SimWorld::Cancel(plan::SequenceId sequence) {
  Trace(absl::StrCat("cancel ", sequence));
  if (sim_.bug != PlantedBug::kCancelLost) {
    scheduler_.Finish(sequence);
  }
  auditor_.Cancelled(sequence);
  ++report_.reach.cancels;
}

// Some nodes come back empty, some are lost for good, or drained, which is no loss; one always
// remains. Others are added.
void SimWorld::ChangeEpoch() {
  std::vector<std::string> lost;
  std::vector<core::MemoryNodeShare> drained;
  for (size_t i = 0; i < memory_nodes_.size();) {
    if (!random_.Chance(0.4)) {
      ++i;
      continue;
    }
    memory_nodes_[i].arena = 0;
    core::MemoryNodeShare node = memory_nodes_[i];
    const bool for_good = memory_nodes_.size() > 1 && random_.Chance(0.5);
    if (for_good) {
      memory_nodes_.erase(memory_nodes_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
    if (for_good && members_random_.Chance(0.3)) {
      ++report_.reach.nodes_drained;
      drained.push_back(std::move(node));
    } else {
      lost.push_back(std::move(node.name));
    }
  }
  const bool has_lanes = !sim_.pool || memory_nodes_.size() < workload_.options.lanes;
  if (members_random_.Chance(0.2) && has_lanes) {
    core::MemoryNodeShare added = memory_nodes_.front();
    added.name = absl::StrCat("added", ++report_.reach.nodes_added);
    added.arena = 0;
    memory_nodes_.push_back(std::move(added));
  }
  revoked_before_ += scheduler_.kv().ReservationsRevoked();
  core::Events events;
  // Prefill nodes come and go too; without one prompts share steps with rows.
  prefill_lanes_ = workload_.options.prefill_lanes.count() == 0
                       ? plan::PrefillLanes()
                       : DrawPrefillLanes(prefill_random_, stages_random_);
  const uint32_t running = scheduler_.Stats().running;
  if (sim_.pool) {
    BindLanes();
  }
  std::vector<core::MemoryNodeShare> shares_told = Shares();
  std::vector<std::string> lost_told = lost;
  Mutate(drained, shares_told, lost_told);
  scheduler_.StartEpoch(++epoch_, shares_told, lost_told, events, prefill_lanes_, homes_);
  Trace(absl::StrCat("epoch ", epoch_, " lost ", lost.size()));
  if (sim_.prefix_cache) {
    DrawArenas();
  }
  core::SchedulerOptions options = workload_.options;
  options.memory_nodes = Shares();
  options.prefill_lanes = prefill_lanes_;
  MakeNodes(std::move(options));
  links_.assign(workload_.options.lanes + prefill_lanes_.count(), {});
  ChangeReplicas();
  last_row_.clear();
  placed_in_.clear();
  left_prefill_.clear();
  last_token_.clear();
  leaves_late_.clear();
  prompts_.clear();
  ++report_.reach.epochs;
  uint64_t by_losses = 0;
  for (const core::FinishEvent& event : events.finished) {
    by_losses += absl::StrContains(event.status.message(), "losses of nodes");
  }
  report_.reach.ended_by_losses += by_losses;
  report_.reach.ended_too_long += events.finished.size() - by_losses;
  report_.reach.requeued += lost.empty() ? 0 : running - std::min<uint64_t>(running, by_losses);
  auditor_.NodesLost(lost, SlotsOfLongest());
  Show(events);
}

// Nodes that were lost come back with another arena, and some of the others take a new one when
// they are prepared. What was under way may have written before the nodes heard of the epoch.
void SimWorld::DrawArenas() {
  for (LaneLink& link : links_) {
    if (link.busy && arenas_random_.Chance(0.5)) {
      nodes_->End(link.plans.front());
    }
  }
  arenas_ = nodes_->Arenas();
  for (core::MemoryNodeShare& node : memory_nodes_) {
    if (node.arena == 0 || arenas_random_.Chance(0.1)) {
      node.arena = ++arenas_drawn_;
    } else if (sim_.bug == PlantedBug::kArenaWiped) {
      arenas_.erase(node.arena);
    }
  }
  if (sim_.bug == PlantedBug::kTailsWiped) {
    for (auto& [memory, arena] : arenas_) {
      for (std::vector<SimSlot>& block : arena.tails.blocks) {
        block.assign(block.size(), SimSlot());
      }
    }
  }
  std::vector<uint64_t> arenas;
  for (const core::MemoryNodeShare& share : Shares()) {
    arenas.push_back(share.arena);
  }
  scheduler_.SetArenas(arenas);
  report_.reach.blocks_outlived += scheduler_.prefix_cache().blocks();
}

// Measured times that ask for one lane or for many.
void SimWorld::ChangeCosts() {
  cost::LaneCosts costs{.replicas = replicas_, .measured = costs_random_.Chance(0.9)};
  if (costs_random_.Chance(0.5)) {
    costs.slice_fixed = 1;
  } else {
    costs.slice_per_row = 1;
    costs.attention_per_token = 0.1;
  }
  scheduler_.SetLaneCosts(costs);
  if (sim_.spills) {
    scheduler_.SetPromptRate(spill_random_.Chance(0.7) ? 1 : 100);
  }
  scheduler_.SetLinkCosts({.seconds_per_row = costs_random_.Chance(0.5) ? 1.0 : 1e-3,
                           .seconds_per_message = 1e-6,
                           .measured = true,
                           .kv_heads = 1 + static_cast<uint32_t>(costs_random_.Below(8)),
                           .threads = 1 + static_cast<uint32_t>(costs_random_.Below(3))});
}

void SimWorld::Plan() {
  if (costs_random_.Chance(0.02)) {
    ChangeCosts();
  }
  std::vector<plan::StepPlan> plans;
  scheduler_.Plan(plans);
  for (plan::StepPlan& plan : plans) {
    plan_hash_.Add(plan);
    Observe(plan);
    if (sim_.paths || sim_.forms || sim_.hybrid) {
      ObservePaths(plan);
    }
    if (sim_.spans) {
      ObserveSpans(plan);
    }
    Mutate(plan);
    auditor_.Planned(plan, scheduler_);
    if (sim_.pool) {
      ObserveHomes(plan);
    }
    Trace(Describe(plan));
    Send(std::move(plan));
  }
}

void SimWorld::Send(plan::StepPlan plan) {
  const uint32_t lane = plan.lane;
  LaneLink& link = links_[lane];
  link.plan_arrival = std::max(link.plan_arrival, now_ + Delay(workload_.faults.message_delay_max));
  At(link.plan_arrival, [this, lane, plan = std::move(plan)] {
    if (plan.epoch == epoch_) {
      links_[lane].plans.push_back(plan);
      StartStep(lane);
      if (links_[lane].plans.size() > 1) {  // The first one's step is under way.
        ReadAhead(links_[lane].plans.back());
      }
    }
  });
}

void SimWorld::StartStep(uint32_t lane) {
  LaneLink& link = links_[lane];
  if (link.busy || link.plans.empty()) {
    return;
  }
  link.busy = true;
  nodes_->Start(link.plans.front());
  StartSpills(link.plans.front());
  const uint64_t epoch = epoch_;
  At(now_ + Delay(workload_.faults.step_max), [this, lane, epoch] {
    if (epoch == epoch_) {
      EndStep(lane);
    }
  });
}

void SimWorld::EndStep(uint32_t lane) {
  LaneLink& link = links_[lane];
  plan::StepResult result = nodes_->End(link.plans.front());
  Mutate(result);
  const bool pinned = !link.plans.front().chunks.empty();
  link.plans.pop_front();
  link.busy = false;
  // One compute node has sampled; the others report the step without tokens. Nodes for prompts have
  // only the lanes of their replica.
  const uint32_t tail = schedule_->HeadNodeOf(lane, result.step, pinned);
  for (uint32_t node = 0; node < stages_.size(); ++node) {
    if (!schedule_->TakesPart(node, lane)) {
      continue;
    }
    plan::StepResult report{.epoch = result.epoch, .lane = result.lane, .step = result.step};
    Nanos& arrival = link.report_arrivals[node];
    arrival = std::max(arrival, now_ + Delay(workload_.faults.message_delay_max));
    At(arrival,
       [this, node, report = node == tail ? result : report] { TakeReport(node, report); });
  }
  StartStep(lane);
}

void SimWorld::TakeReport(uint32_t node, plan::StepResult report) {
  if (report.epoch != epoch_) {
    return Report(std::move(report));  // The scheduler knows what to do with it.
  }
  const bool has_tokens = !report.tokens.empty();
  const auto whole = reports_.Add(node, std::move(report));
  if (!whole.ok()) {
    return Fail(std::string(whole.status().message()));
  }
  report_.reach.tokens_waited += has_tokens && !whole->has_value();
  if (whole->has_value()) {
    Report(**whole);
  }
}

void SimWorld::Report(plan::StepResult result) {
  Trace(absl::StrCat("done epoch ", result.epoch, " lane ", result.lane, " step ", result.step,
                     " tokens ", result.tokens.size()));
  core::Events events;
  const absl::Status status = scheduler_.OnStepDone(result, events);
  if (!status.ok()) {
    Fail(absl::StrCat("OnStepDone answered ", status.ToString()));
  }
  Mutate(events);
  Show(events);
}

void SimWorld::Show(const core::Events& events) {
  plan_hash_.Add(events);
  report_.reach.tokens += events.tokens.size();
  report_.reach.scores += events.scores.size();
  for (const core::TokenEvent& event : events.tokens) {
    Trace(absl::StrCat("token ", event.sequence, " index ", event.index, " ", event.token.token));
  }
  for (const core::FinishEvent& event : events.finished) {
    Trace(absl::StrCat("end ", event.sequence, " ", event.status.ToString()));
  }
  for (const plan::SequenceId sequence : events.preempted) {
    Trace(absl::StrCat("preempted ", sequence));
  }
  auditor_.Saw(events);
}

void SimWorld::CheckAll() {
  if (!nodes_->failure().empty()) {
    return Fail(nodes_->failure());
  }
  if (!auditor_.failure().empty()) {
    return Fail(auditor_.failure());
  }
  if (const absl::Status status = scheduler_.Audit(); !status.ok()) {
    return Fail(absl::StrCat("audit: ", status.message()));
  }
}

void SimWorld::CheckEnd() {
  auditor_.AtEnd();
  CheckAll();
  if (scheduler_.HasWork()) {
    Fail("work is left, and nothing happens any more");
  }
  if (!nodes_->TablesEmpty()) {
    Fail("the nodes still know a sequence");
  }
  if (nodes_->spilled() != scheduler_.prefix_cache().copies().count()) {
    Fail("the tiers have something of nobody");
  }
  for (uint32_t node = 0; node < memory_nodes_.size(); ++node) {
    // Blocks of forks may have slots in common. Nobody but blocks holds any: Audit().
    if (scheduler_.kv().SlotsFree(node) + scheduler_.prefix_cache().UnusedOn(node) <
        memory_nodes_[node].slots) {
      Fail(absl::StrCat("slots of memory node ", node, " are not free: of ",
                        memory_nodes_[node].slots, " ", scheduler_.kv().SlotsFree(node),
                        " are, and ", scheduler_.prefix_cache().UnusedOn(node), " are kept"));
    }
  }
}

}  // namespace lamina::sim

// SPDX-License-Identifier: Apache-2.0
//
// The scheduler puts its parts together: calls go to them.

#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "coordinator/core/admission.h"
#include "coordinator/core/beam_groups.h"
#include "coordinator/core/kept_sequences.h"
#include "coordinator/core/lane_balance.h"
#include "coordinator/core/lane_paths.h"
#include "coordinator/core/lanes.h"
#include "coordinator/core/node_residents.h"
#include "coordinator/core/planned_steps.h"
#include "coordinator/core/prefix_cache.h"
#include "coordinator/core/row_slots.h"
#include "coordinator/core/sequence_kv.h"
#include "coordinator/core/sequence_life.h"
#include "coordinator/core/step_borders.h"
#include "coordinator/core/step_commit.h"
#include "coordinator/core/step_maker.h"

namespace lamina::core {
namespace {

KvDirectoryOptions KvOptions(const SchedulerOptions& options) {
  KvDirectoryOptions kv{.soft_reservation_min = options.soft_reservation_min,
                        .soft_reservation_max = options.soft_reservation_max};
  for (const MemoryNodeShare& node : options.memory_nodes) {
    kv.slots.push_back(node.slots);
  }
  return kv;
}

// Where the slots of each node before lie now, with what they hold.
std::vector<std::optional<uint32_t>> SuccessorsOf(const std::vector<MemoryNodeShare>& before,
                                                  const std::vector<MemoryNodeShare>& now) {
  std::vector<std::optional<uint32_t>> successors;
  for (const MemoryNodeShare& node : before) {
    const auto same = std::find_if(now.begin(), now.end(), [&](const MemoryNodeShare& other) {
      return node.arena != 0 && other.arena == node.arena && other.slots == node.slots &&
             other.form == node.form && other.paths == node.paths;
    });
    successors.push_back(same == now.end() ? std::nullopt
                                           : std::optional<uint32_t>(same - now.begin()));
  }
  return successors;
}

// What can be said about a request without looking at the nodes.
absl::Status CheckLengths(const SequenceRequest& request, const SchedulerOptions& options) {
  const uint32_t sequence_tokens_max = options.sequence_tokens_max;
  const size_t prompt = request.prompt.size();
  if (prompt == 0) {
    return absl::InvalidArgumentError("the prompt is empty: it needs at least one token");
  }
  const size_t prompt_max = request.score ? sequence_tokens_max : sequence_tokens_max - 1;
  if (prompt > prompt_max) {
    return absl::InvalidArgumentError(absl::StrCat("the prompt has ", prompt,
                                                   " tokens, the limit is ", prompt_max,
                                                   "; shorten it or raise the limit"));
  }
  if (request.decode_from >= prompt) {
    return absl::InvalidArgumentError(
        absl::StrCat("decode_from is ", request.decode_from, " and the text has ", prompt,
                     " tokens: none of them would go through a decode step"));
  }
  const bool prompt_rows = options.prompt_rows_max > 0 && options.prefill_lanes.count() == 0;
  if (request.decode_from > 0 && !prompt_rows) {
    return absl::UnimplementedError(
        "decode_from: this cluster takes no tokens of prompts as rows (partition token_range, "
        "nodes for prompts, or devices), which given tokens in decode steps are");
  }
  if (request.score) {
    return absl::OkStatus();
  }
  if (request.tokens_max > sequence_tokens_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens_max is ", request.tokens_max, ", the limit is ", sequence_tokens_max));
  }
  if (request.tokens_max <= prompt) {
    return absl::InvalidArgumentError(absl::StrCat("tokens_max is ", request.tokens_max,
                                                   " and the prompt has ", prompt,
                                                   " tokens: nothing is left to generate"));
  }
  return absl::OkStatus();
}

}  // namespace

struct Scheduler::Impl {
  Impl(const SchedulerOptions& scheduler_options, std::unique_ptr<ServiceOrder> service_order);

  void ResetNodes(const std::vector<MemoryNodeShare>& memory_nodes,
                  const plan::PrefillLanes& prefill_lanes, const LaneHomes& homes);
  size_t Waits() const { return life.waiting().size() + life.draining().size(); }
  OpenStep Open(uint32_t lane);
  void EndCopy(const Spills::Done& done);
  absl::Status Audit() const;

  SchedulerOptions options;
  std::unique_ptr<ServiceOrder> order;
  std::unique_ptr<Placement> placement;
  SequenceKv kv;
  Lanes lanes;
  NodeResidents residents;
  StepBorders borders;
  Spills spills;
  PrefixCache cache;
  KeptSequences kept;
  KeptTails tails;
  SequenceLife::Places places;
  SequenceLife life;
  PlannedSteps steps;
  LanePaths paths;
  LaneBalance balance;
  RowSlots slots;
  StepMaker maker;
  Admission admission;
  BeamGroups beams;
  StepCommit commit;
  uint64_t epoch = 0;
  cost::LinkCosts link_costs;
  uint64_t rows_discarded = 0;
};

Scheduler::Impl::Impl(const SchedulerOptions& scheduler_options,
                      std::unique_ptr<ServiceOrder> service_order)
    : options(scheduler_options),
      order(std::move(service_order)),
      placement(options.strategies.placement()),
      lanes(ServiceBefore{order.get()}),
      residents(ServiceBefore{order.get()}),
      borders(kv),
      spills(kv),
      cache(kv, spills, options.copied_run_tokens),
      kept(ServiceBefore{order.get()}, kv),
      places{lanes, residents, borders, kv, cache, spills, kept, tails},
      life(ServiceBefore{order.get()}, places),
      paths(lanes, life),
      balance(options, lanes, paths, steps, kv),
      slots(options, life, places, *placement, options.strategies.out_of_slots()),
      maker(options, life, places, steps, slots, options.strategies.step_packing(),
            options.strategies.fetch_planning()),
      admission(options, life, places, balance, maker, *placement),
      beams(options, life, places, paths, balance, maker),
      commit(life, beams) {
  LAMINA_CHECK(options.Validate().ok());
  ResetNodes(options.memory_nodes, options.prefill_lanes, {});
}

void Scheduler::Impl::ResetNodes(const std::vector<MemoryNodeShare>& memory_nodes,
                                 const plan::PrefillLanes& prefill_lanes, const LaneHomes& homes) {
  options.memory_nodes = memory_nodes;
  options.prefill_lanes = prefill_lanes;
  kv.Reset(KvOptions(options), options.span_tokens);
  const auto nodes = static_cast<uint32_t>(memory_nodes.size());
  lanes.Reset(options.lanes, prefill_lanes, nodes, options.windows, homes);
  residents.Reset(nodes);
  borders.Reset(options, homes);
  steps.Reset(lanes.size());
  std::vector<uint32_t> block_tokens;
  std::vector<uint32_t> kept_tokens(nodes);  // Open blocks in slots,
  std::vector<uint32_t> tail_tokens(nodes);  // or in tails; 0: none are.
  std::vector<uint32_t> spilled_tokens(nodes, 1);
  const bool cuts = options.span_tokens > 0;
  const bool prefill = prefill_lanes.count() > 0;
  const bool keeps =
      options.prefix_cache && (!cuts || (!prefill && options.windows.longest() == 0));
  for (uint32_t i = 0; i < nodes; ++i) {
    block_tokens.push_back(options.CachedBlockTokensOn(memory_nodes[i]));
    const bool int8 = memory_nodes[i].form.value_or(options.kv) == KvForm::kInt8;
    spilled_tokens[i] = int8 ? block_tokens.back() : 1;
    if (keeps && !cuts && !(int8 && prefill)) {
      (int8 ? tail_tokens : kept_tokens)[i] = block_tokens.back();
    }
  }
  spills.Reset(memory_nodes, spilled_tokens);
  tails.Reset(std::move(tail_tokens), options.plan_ahead);
  cache.Reset(std::move(block_tokens), keeps, options.SlotsAtOnce(UINT32_MAX) - 1,
              HasSpillTier(memory_nodes), options.span_tokens);
  if (keeps && !cuts) {
    kept.ResetOpenBlocks(std::move(kept_tokens));
  } else {
    const bool int8 = keeps && options.kv == KvForm::kInt8;
    kept.Reset(nodes, keeps ? options.span_tokens : 0, int8 ? options.int8_block_tokens : 1);
  }
}

// The next step of a lane with what runs there. Beams go first: they are rows that decode.
OpenStep Scheduler::Impl::Open(uint32_t lane) {
  OpenStep step = maker.Open(epoch, lane);
  beams.Join(step);
  maker.Pack(step);
  return step;
}

// Blocks of the cache have been written or read. Who waits for what cannot be read is computed.
void Scheduler::Impl::EndCopy(const Spills::Done& done) {
  Sequence* const reader = life.Find(done.sequence);
  if (reader != nullptr) {
    std::erase(reader->reading, done.blocks);
  }
  if (!done.ok) {
    cache.copies().Lose(done.blocks);
    if (reader != nullptr) {
      life.Preempt(*reader);
    }
    return;
  }
  cache.copies().Written(done.blocks);
  if (reader != nullptr && reader->reading.empty()) {
    reader->restoring = false;
    cache.Stored(*reader, reader->cached_tokens);
  }
}

absl::Status Scheduler::Impl::Audit() const {
  LAMINA_RETURN_IF_ERROR(kv.Audit());
  LAMINA_RETURN_IF_ERROR(steps.Audit(options.plan_ahead));
  LAMINA_RETURN_IF_ERROR(lanes.Audit(kv));
  LAMINA_RETURN_IF_ERROR(life.Audit());
  LAMINA_RETURN_IF_ERROR(residents.Audit(life.Running(), kv));
  if (absl::c_any_of(lanes.loads(),
                     [this](const LaneLoad& load) { return load.rows > options.rows_max; })) {
    return absl::InternalError("a lane has more rows than rows_max");
  }
  if (lanes.running() > options.running_max) {
    return absl::InternalError("more sequences run than running_max");
  }
  LAMINA_RETURN_IF_ERROR(beams.Audit());
  if (Waits() > options.waiting_max + options.running_max + beams.members() +
                    AcceptedBefore(life.waiting())) {
    return absl::InternalError("more sequences wait than can have been let in");
  }
  LAMINA_RETURN_IF_ERROR(cache.Audit(life.Running()));
  LAMINA_RETURN_IF_ERROR(kept.Audit());
  LAMINA_RETURN_IF_ERROR(tails.Audit([this](plan::SequenceId id) {
    const Sequence* const sequence = life.Find(id);
    return sequence != nullptr && sequence->state == SequenceState::kWaiting;
  }));
  if (kv.directory().SpansKept() != cache.blocks() + kept.parts_with_slots()) {
    return absl::InternalError("slots are kept for a block or a sequence that is not there");
  }
  LAMINA_RETURN_IF_ERROR(spills.Audit());
  if (kv.holders() != lanes.running() + beams.holders() + spills.holders()) {
    return absl::InternalError("slots are held by one who does not run");
  }
  if (lanes.running() == 0 && !borders.rooms_empty() && steps.empty() && borders.empty()) {
    return absl::InternalError("scratch, or places for activations, are held by nobody");
  }
  return absl::OkStatus();
}

Scheduler::Scheduler(const SchedulerOptions& options, std::unique_ptr<ServiceOrder> order)
    : impl_(std::make_unique<Impl>(options, std::move(order))) {}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(SequenceRequest request) {
  const SchedulerOptions& options = impl_->options;
  LAMINA_RETURN_IF_ERROR(CheckLengths(request, options));
  if (options.memory_nodes.empty()) {
    return absl::UnavailableError("no memory node has joined; try again once one has");
  }
  const uint32_t slots = options.SlotsAtOnce(Sequence::SlotsMaxOf(request));
  const uint32_t slots_max = options.SlotsOfLongest(impl_->life.PathOf(request));
  if (slots > slots_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request can grow to ", slots, " slots (prompt ", request.prompt.size(),
                     ", tokens_max ", request.tokens_max, "), ",
                     options.span_tokens == 0 ? "the largest memory node has "
                                              : "the memory nodes have room for ",
                     slots_max));
  }
  if (!request.accepted_before && impl_->Waits() >= options.waiting_max) {
    return absl::ResourceExhaustedError(absl::StrCat("the queue is full: ", options.waiting_max,
                                                     " sequences wait; try again later"));
  }
  if (request.beams.width > 0) {
    LAMINA_RETURN_IF_ERROR(impl_->beams.Check(request));
    impl_->beams.Begin(std::move(request));
  } else {
    impl_->life.Submit(std::move(request));
  }
  return absl::OkStatus();
}

void Scheduler::Finish(plan::SequenceId sequence) {
  if (impl_->beams.Finish(sequence)) {
    return;
  }
  if (Sequence* found = impl_->life.Find(sequence); found != nullptr) {
    impl_->life.End(*found);
  }
}

void Scheduler::StartEpoch(uint64_t epoch, const std::vector<MemoryNodeShare>& memory_nodes,
                           const std::vector<std::string>& lost, Events& events,
                           const plan::PrefillLanes& prefill_lanes, const LaneHomes& homes) {
  impl_->life.LeaveEpoch(absl::StrJoin(lost, " and "), events);
  impl_->beams.LeaveEpoch();
  const std::vector<PrefixCache::Saved> blocks = impl_->cache.Save();
  const std::vector<std::optional<uint32_t>> successors =
      SuccessorsOf(impl_->options.memory_nodes, memory_nodes);
  impl_->ResetNodes(memory_nodes, prefill_lanes, homes);
  impl_->cache.Restore(blocks, successors);
  impl_->kept.Restore(successors);
  impl_->tails.Restore(successors);
  impl_->epoch = epoch;
  impl_->admission.BeginEpoch();
  impl_->life.EndLongerThan(impl_->options, events);
  impl_->beams.Translate(events);
}

void Scheduler::SetLaneCosts(const cost::LaneCosts& costs) { impl_->balance.SetCosts(costs); }

void Scheduler::SetLinkCosts(const cost::LinkCosts& costs) { impl_->link_costs = costs; }

void Scheduler::SetFetchRates(const FetchRates& rates) { impl_->maker.SetFetchRates(rates); }

void Scheduler::HoldLanes(uint32_t lanes, std::string why) {
  LAMINA_CHECK(lanes <= impl_->options.lanes);
  impl_->balance.HoldLanes(lanes, std::move(why));
}

void Scheduler::SetAttentionPath(plan::AttentionPath path) { impl_->life.SetDefaultPath(path); }

void Scheduler::SetBandwidths(const std::vector<double>& bytes_per_second) {
  std::vector<MemoryNodeShare>& nodes = impl_->options.memory_nodes;
  LAMINA_CHECK(bytes_per_second.size() == nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].bandwidth_bytes_per_second = bytes_per_second[i];
  }
}

void Scheduler::SetArenas(const std::vector<uint64_t>& arenas) {
  std::vector<MemoryNodeShare>& nodes = impl_->options.memory_nodes;
  LAMINA_CHECK(arenas.size() == nodes.size() && impl_->lanes.running() == 0);
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].arena == 0 || nodes[i].arena != arenas[i]) {
      impl_->cache.Forget(i);
      impl_->kept.Forget(i);
      impl_->tails.Forget(i);
    }
    nodes[i].arena = arenas[i];
  }
}

void Scheduler::Plan(std::vector<plan::StepPlan>& plans) {
  Impl& impl = *impl_;
  impl.balance.Balance(impl.Waits(), impl.maker.fetch_rates(), impl.beams.PathsBetweenSteps());
  impl.beams.GiveWay();
  // Lanes in turn, one step each, so that newcomers find every lane at the same stage.
  for (bool planned = true; planned;) {
    OpenSteps open;
    for (uint32_t lane = 0; lane < impl.lanes.size(); ++lane) {
      if (impl.steps.InFlight(lane) < impl.options.plan_ahead) {
        open.emplace(lane, impl.Open(lane));
      }
    }
    impl.admission.Admit(open);
    planned = false;
    for (auto& [lane, step] : open) {
      if (impl.maker.Close(step, impl.link_costs, impl.balance.costs())) {
        plans.push_back(std::move(step.plan));
        planned = true;
      }
    }
  }
}

absl::Status Scheduler::OnStepDone(const plan::StepResult& result, Events& events) {
  Impl& impl = *impl_;
  if (result.epoch != impl.epoch) {
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(impl.steps.Check(result, impl.life));
  const PlannedStep planned = impl.steps.TakeOldest(result.lane);
  for (const PlannedToken& row : planned.tokens) {
    impl.rows_discarded += impl.life.Find(row.sequence, row.seat) == nullptr ? 1 : 0;
  }
  for (const PlannedPrompt& prompt : planned.prompts) {
    Sequence* const sequence = impl.life.Find(prompt.sequence, prompt.seat);
    if (sequence != nullptr && sequence->state == SequenceState::kPrefilling) {
      impl.kept.Stored(*sequence, prompt.first, prompt.tokens);
    }
  }
  impl.commit.CommitTokens(planned, result, events);
  impl.commit.CommitScores(planned, result, events);
  impl.borders.Pass(result.lane, planned.border);
  impl.spills.Dropped(planned.border.drops);
  impl.life.WaitAgain(planned.border.draining);
  impl.life.TellPreempted(events);
  impl.beams.Translate(events);
  return absl::OkStatus();
}

void Scheduler::OnSpilled(const plan::SpillReport& report) {
  if (report.epoch != impl_->epoch) {
    return;
  }
  const Spills::Done done = impl_->spills.Take(report);
  if (done.blocks != 0) {
    return impl_->EndCopy(done);
  }
  Sequence* const sequence = impl_->life.Find(done.sequence);
  if (sequence == nullptr) {
    return;
  }
  if (!done.ok) {
    sequence->spill = 0;  // It is recomputed.
    if (std::exchange(sequence->restoring, false)) {
      impl_->life.Preempt(*sequence);
    }
  } else if (done.was_read && sequence->restoring) {
    sequence->restoring = false;
    sequence->stored_tokens = sequence->cached_tokens;
    impl_->kept.Stored(*sequence, 0, sequence->cached_tokens);
    impl_->spills.Drop(*sequence);
  }
}

void Scheduler::SetPromptRate(double tokens_per_second) {
  impl_->spills.SetPromptRate(tokens_per_second);
}

void Scheduler::FailAll(const absl::Status& status, Events& events) {
  impl_->beams.FailAll(status, events);
  impl_->life.FailAll(status, events);
}

plan::SequenceId Scheduler::AnswerOf(plan::SequenceId sequence) const {
  const plan::SequenceId answer = impl_->beams.AnswerOf(sequence);
  return answer == 0 ? sequence : answer;
}

bool Scheduler::HasWork() const {
  return !impl_->life.empty() || !impl_->beams.empty() || !impl_->steps.empty() ||
         !impl_->borders.empty() || impl_->spills.has_drops();
}

bool Scheduler::HasStepsUnderWay() const { return !impl_->steps.empty(); }

SchedulerStats Scheduler::Stats() const {
  const Impl& impl = *impl_;
  SchedulerStats stats{.waiting = static_cast<uint32_t>(impl.Waits()),
                       .running = impl.lanes.running(),
                       .preemptions = impl.life.preemptions(),
                       .tokens_committed = impl.commit.tokens_committed(),
                       .rows_discarded = impl.rows_discarded,
                       .lane_moves = impl.balance.moves(),
                       .lane_count = impl.balance.count(),
                       .sub_batches = impl.maker.sub_batches(),
                       .fetch_share = impl.maker.fetch_share(),
                       .prefix_cache = impl.cache.stats(),
                       .spills = impl.spills.stats()};
  stats.prefix_cache.tokens_asked += impl.kept.tokens_asked();
  stats.prefix_cache.tokens_found += impl.kept.tokens_found();
  for (uint32_t lane = 0; lane < impl.lanes.size(); ++lane) {
    const Lanes::LaneSequences& here = impl.lanes[lane];
    stats.lanes.push_back({.rows = static_cast<uint32_t>(here.running.size()),
                           .prefilling = static_cast<uint32_t>(here.prefilling.size()),
                           .context_tokens = here.context_tokens_all,
                           .tokens = here.tokens,
                           .step_planned = impl.steps.planned(lane),
                           .step_done = impl.steps.done(lane),
                           .prefill = impl.lanes.IsPrefill(lane),
                           .path = impl.lanes.PathOf(lane)});
  }
  return stats;
}

uint32_t Scheduler::RunningBy(plan::AttentionPath path) const {
  uint32_t running = 0;
  for (uint32_t lane = 0; lane < impl_->lanes.size(); ++lane) {
    const bool counts = impl_->lanes.PathOf(lane) == path;  // All sequences of a lane have one.
    running += counts ? static_cast<uint32_t>(impl_->lanes[lane].running.size()) : 0;
  }
  return running;
}

const LaneCount& Scheduler::lane_count() const { return impl_->balance.count(); }

const KvDirectory& Scheduler::kv() const { return impl_->kv.directory(); }

KvPoolStats Scheduler::KvStats(uint32_t memory_node) const {
  KvPoolStats stats = kv().Stats(memory_node);
  const uint32_t unused = impl_->cache.UnusedOn(memory_node) + impl_->kept.SlotsOn(memory_node);
  stats.slots_kept = std::min(unused, stats.slots_held);
  stats.slots_held -= stats.slots_kept;
  return stats;
}

const PrefixCache& Scheduler::prefix_cache() const { return impl_->cache; }

absl::Status Scheduler::Audit() const { return impl_->Audit(); }

}  // namespace lamina::core

// SPDX-License-Identifier: Apache-2.0
//
// The life of a sequence outside of steps: submitted, taken out, ended, carried into a new epoch.

#include "coordinator/core/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "coordinator/core/scheduler_internal.h"

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

absl::Status AtLeastOne(absl::string_view field, uint32_t value) {
  return value >= 1 ? absl::OkStatus()
                    : absl::InvalidArgumentError(absl::StrCat(field, " is 0; at least 1"));
}

// What can be said about a request without looking at the nodes.
absl::Status CheckLengths(const SequenceRequest& request, uint32_t sequence_tokens_max) {
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

FinishEvent ErrorEvent(plan::SequenceId id, absl::Status status) {
  return {.sequence = id, .reason = plan::FinishReason::kError, .status = std::move(status)};
}

}  // namespace

absl::Status SchedulerOptions::Validate() const {
  LAMINA_RETURN_IF_ERROR(AtLeastOne("lanes", lanes));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("plan_ahead", plan_ahead));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("rows_max", rows_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("step_tokens_max", step_tokens_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("chunk_tokens", chunk_tokens));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("sequence_tokens_max", sequence_tokens_max));
  LAMINA_RETURN_IF_ERROR(AtLeastOne("running_max", running_max));
  if (sequence_tokens_max > scratch_tokens) {
    // A prompt lies in the scratch as a whole: with less, the longest one could never be prefilled.
    return absl::InvalidArgumentError(absl::StrCat("sequence_tokens_max is ", sequence_tokens_max,
                                                   ", more than scratch_tokens ", scratch_tokens));
  }
  return absl::OkStatus();
}

Scheduler::Impl::Impl(const SchedulerOptions& scheduler_options,
                      std::unique_ptr<ServiceOrder> service_order)
    : options(scheduler_options),
      order(std::move(service_order)),
      before{order.get()},
      waiting(before),
      draining(before) {
  LAMINA_CHECK(options.Validate().ok());
  ResetNodes(options.memory_nodes, options.prefill_lanes);
}

void Scheduler::Impl::ResetNodes(const std::vector<MemoryNodeShare>& memory_nodes,
                                 const plan::PrefillLanes& prefill_lanes) {
  options.memory_nodes = memory_nodes;
  options.prefill_lanes = prefill_lanes;
  kv = std::make_unique<SequenceKv>(KvOptions(options), options.span_tokens);
  scratch.assign(std::max(1u, prefill_lanes.replicas), ScratchSpace(options.scratch_tokens));
  starving.assign(memory_nodes.size(), {});
  lanes.clear();
  lanes.resize(options.lanes + prefill_lanes.count());
  for (Lane& lane : lanes) {
    lane.context_tokens.assign(memory_nodes.size(), 0);
  }
}

uint32_t Scheduler::Impl::TokensOfLongest() const {
  uint64_t most = 0;
  for (const MemoryNodeShare& node : options.memory_nodes) {
    if (options.span_tokens == 0) {
      most = std::max<uint64_t>(most, node.slots);
    } else {
      most += node.slots / options.span_tokens * options.span_tokens;
    }
  }
  return static_cast<uint32_t>(std::min<uint64_t>(most, UINT32_MAX));
}

void Scheduler::Impl::AddContext(const Sequence& sequence, Lane& lane) {
  for (uint32_t node = 0; node < lane.context_tokens.size(); ++node) {
    lane.context_tokens[node] += kv->TokensOn(sequence.request.id, node);
  }
  lane.context_tokens_all += kv->TokensOf(sequence.request.id);
}

void Scheduler::Impl::TakeContext(const Sequence& sequence, Lane& lane) {
  for (uint32_t node = 0; node < lane.context_tokens.size(); ++node) {
    lane.context_tokens[node] -= kv->TokensOn(sequence.request.id, node);
  }
  lane.context_tokens_all -= kv->TokensOf(sequence.request.id);
}

bool Scheduler::Impl::LivesOn(const Sequence& sequence, uint32_t node) const {
  return sequence.node == node || kv->TokensOn(sequence.request.id, node) > 0;
}

Sequence* Scheduler::Impl::Find(plan::SequenceId id) {
  const auto it = sequences.find(id);
  return it == sequences.end() ? nullptr : it->second.get();
}

uint32_t Scheduler::Impl::Running() const {
  size_t running = 0;
  for (const Lane& lane : lanes) {
    running += lane.running.size();
  }
  return static_cast<uint32_t>(running);
}

void Scheduler::Impl::ClearStarving(Sequence& sequence) {
  if (sequence.starving) {
    std::erase(starving[sequence.node], &sequence);
    sequence.starving = false;
  }
}

void Scheduler::Impl::TakeOut(Sequence& sequence) {
  Lane& lane = lanes[sequence.lane];
  LAMINA_CHECK(std::erase(lane.running, &sequence) == 1);
  TakeContext(sequence, lane);
  if (lane.border.ticket == 0) {
    lane.border.ticket = ++tickets;
  }
  kv->Release(sequence.request.id, lane.border.ticket);
  lane.border.leaves.push_back({.id = sequence.request.id});
  if (sequence.has_scratch) {
    lane.border.scratch.push_back(sequence.scratch_offset);
    sequence.has_scratch = false;
  }
  ClearStarving(sequence);

  const bool sampled = sequence.chunked_tokens == sequence.join_tokens;
  for (Sequence* fork : Detach(sequence)) {
    if (!sampled) {
      Preempt(*fork);  // The chunk it waited for never comes: it prefills on its own, later.
    }
  }
}

std::vector<Sequence*> Scheduler::Impl::Detach(Sequence& sequence) {
  if (Sequence* parent = Find(std::exchange(sequence.parent, 0)); parent != nullptr) {
    std::erase(parent->attached, sequence.request.id);
  }
  std::vector<Sequence*> forks;
  for (const plan::SequenceId id : std::exchange(sequence.attached, {})) {
    forks.push_back(Find(id));
    forks.back()->parent = 0;
  }
  return forks;
}

void Scheduler::Impl::Preempt(Sequence& sequence) {
  TakeOut(sequence);
  sequence.state = SequenceState::kDraining;
  draining.insert(&sequence);
  lanes[sequence.lane].border.draining.push_back(sequence.request.id);
  preempted.push_back(sequence.request.id);
  ++counters.preemptions;
}

void Scheduler::Impl::End(Sequence& sequence) {
  switch (sequence.state) {
    case SequenceState::kWaiting:
      waiting.erase(&sequence);
      break;
    case SequenceState::kPrefilling:
    case SequenceState::kDecoding:
      TakeOut(sequence);
      break;
    case SequenceState::kDraining:
      draining.erase(&sequence);
      break;
  }
  sequences.erase(sequence.request.id);
}

// Everything that nodes know of or wait for, in service order.
std::vector<Sequence*> Scheduler::Impl::TakenFromNodes() {
  SequenceQueue taken(before);
  for (const Lane& lane : lanes) {
    taken.insert(lane.running.begin(), lane.running.end());
  }
  taken.insert(draining.begin(), draining.end());
  return {taken.begin(), taken.end()};
}

Scheduler::Scheduler(const SchedulerOptions& options, std::unique_ptr<ServiceOrder> order)
    : impl_(std::make_unique<Impl>(options, std::move(order))) {}

Scheduler::~Scheduler() = default;

absl::Status Scheduler::Submit(SequenceRequest request) {
  LAMINA_RETURN_IF_ERROR(CheckLengths(request, impl_->options.sequence_tokens_max));
  if (impl_->options.memory_nodes.empty()) {
    return absl::UnavailableError("no memory node has joined; try again once one has");
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  const SequenceRequest& kept = sequence->request;
  if (sequence->slots_max() > impl_->TokensOfLongest()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the request can grow to ", sequence->slots_max(), " slots (prompt ",
                     kept.prompt.size(), ", tokens_max ", kept.tokens_max, "), ",
                     impl_->options.span_tokens == 0 ? "the largest memory node has "
                                                     : "the memory nodes have room for ",
                     impl_->TokensOfLongest()));
  }
  if (impl_->waiting.size() + impl_->draining.size() >= impl_->options.waiting_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", impl_->options.waiting_max, " sequences wait; try again later"));
  }
  LAMINA_CHECK(kept.id != 0 && impl_->Find(kept.id) == nullptr);
  sequence->arrival = ++impl_->arrivals;
  if (Sequence* parent = impl_->Find(kept.fork_of); parent != nullptr) {
    parent->forks.push_back(kept.id);
  }
  impl_->waiting.insert(sequence.get());
  impl_->sequences.emplace(kept.id, std::move(sequence));
  return absl::OkStatus();
}

void Scheduler::Finish(plan::SequenceId sequence) {
  if (Sequence* found = impl_->Find(sequence); found != nullptr) {
    impl_->End(*found);
  }
}

void Scheduler::StartEpoch(uint64_t epoch, const std::vector<MemoryNodeShare>& memory_nodes,
                           const std::vector<std::string>& lost, Events& events,
                           const plan::PrefillLanes& prefill_lanes) {
  const std::string loss = absl::StrJoin(lost, " and ");
  for (Sequence* sequence : impl_->TakenFromNodes()) {
    if (!loss.empty()) {
      sequence->losses.Add(loss);
    }
    if (sequence->losses.TooMany()) {
      const plan::SequenceId id = sequence->request.id;
      events.finished.push_back(ErrorEvent(id, sequence->losses.Why()));
      impl_->sequences.erase(id);
      continue;
    }
    sequence->state = SequenceState::kWaiting;
    sequence->starving = false;
    sequence->has_scratch = false;
    sequence->parent = 0;
    sequence->attached.clear();
    impl_->waiting.insert(sequence);
  }
  impl_->draining.clear();
  impl_->ResetNodes(memory_nodes, prefill_lanes);
  impl_->epoch = epoch;

  const uint32_t slots = impl_->TokensOfLongest();
  const std::vector<Sequence*> waiting(impl_->waiting.begin(), impl_->waiting.end());
  for (Sequence* sequence : waiting) {
    if (sequence->slots_max() > slots) {
      events.finished.push_back(ErrorEvent(
          sequence->request.id, absl::UnavailableError(absl::StrCat(
                                    "the request can grow to ", sequence->slots_max(),
                                    " slots, the largest memory node left has ", slots))));
      impl_->End(*sequence);
    }
  }
}

void Scheduler::FailAll(const absl::Status& status, Events& events) {
  std::vector<Sequence*> all = impl_->TakenFromNodes();
  all.insert(all.end(), impl_->waiting.begin(), impl_->waiting.end());
  for (Sequence* sequence : all) {
    impl_->Detach(*sequence);  // Forks end too; they need no prefill of their own.
  }
  for (Sequence* sequence : all) {
    events.finished.push_back(ErrorEvent(sequence->request.id, status));
    impl_->End(*sequence);
  }
}

bool Scheduler::HasWork() const {
  if (!impl_->sequences.empty()) {
    return true;
  }
  return std::any_of(impl_->lanes.begin(), impl_->lanes.end(), [](const Lane& lane) {
    return !lane.in_flight.empty() || !lane.border.leaves.empty();
  });
}

SchedulerStats Scheduler::Stats() const {
  SchedulerStats stats = impl_->counters;
  stats.waiting = static_cast<uint32_t>(impl_->waiting.size() + impl_->draining.size());
  stats.running = impl_->Running();
  stats.lane_count = impl_->lane_count;
  for (const Lane& lane : impl_->lanes) {
    stats.lanes.push_back({.rows = static_cast<uint32_t>(lane.running.size()),
                           .context_tokens = lane.context_tokens_all,
                           .step_planned = lane.step_planned,
                           .step_done = lane.step_done,
                           .prefill = stats.lanes.size() >= impl_->options.lanes});
  }
  return stats;
}

const KvDirectory& Scheduler::kv() const { return impl_->kv->directory(); }

absl::Status Scheduler::Audit() const { return impl_->Audit(); }

}  // namespace lamina::core

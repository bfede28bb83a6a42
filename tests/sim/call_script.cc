// SPDX-License-Identifier: Apache-2.0

#include "tests/sim/call_script.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/fake_model.h"

namespace lamina::sim {
namespace {

constexpr uint32_t kRoundsToDrain = 20'000;

core::SchedulerOptions DrawOptions(Prng& random, core::SchedulerOptions options) {
  const auto between = [&](uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(random.Below(most - least + 1));
  };
  options.lanes = between(1, 4);
  options.plan_ahead = between(1, 3);
  options.rows_max = between(1, 16);
  options.step_tokens_max = between(1, 60);
  options.chunk_tokens = between(1, 24);
  options.sequence_tokens_max = between(16, 64);
  options.scratch_tokens = options.sequence_tokens_max * between(1, 4);
  options.running_max = between(1, 32);
  options.waiting_max = between(8, 48);
  options.admission_headroom = random.Chance(0.5) ? 0 : between(0, 8);
  options.soft_reservation_min = between(0, 4);
  options.soft_reservation_max = options.soft_reservation_min + between(0, 16);
  options.span_tokens = random.Chance(0.5) ? 0 : 4u << between(0, 2);
  options.lanes_auto = random.Chance(0.5);
  options.sub_batches = {.automatic = true, .query_first = QueryFirst::kAuto};
  if (random.Chance(0.3)) {
    options.prefill_lanes = {.replicas = between(1, 2), .each = between(1, 2)};
  }
  const uint32_t nodes = between(1, 5);
  for (uint32_t i = 0; i < nodes; ++i) {
    options.memory_nodes.push_back({.name = absl::StrCat("memory", i),
                                    .slots = between(20, random.Chance(0.7) ? 80 : 600),
                                    .bandwidth_bytes_per_second = 1.0 * (1u << between(0, 2))});
  }
  return options;
}

std::unique_ptr<core::ServiceOrder> DrawOrder(Prng& random) {
  return random.Chance(0.3) ? core::MakePriorityOrder() : core::MakeFirstComeFirstServed();
}

}  // namespace

CallScript::CallScript(const CallScriptOptions& options)
    : script_(options),
      random_(options.seed),
      options_(DrawOptions(random_, options.base)),
      scheduler_(std::make_unique<core::Scheduler>(options_, DrawOrder(random_))),
      in_flight_(options_.lanes + options_.prefill_lanes.count()) {}

CallScriptReport CallScript::Run() {
  for (uint32_t i = 0; i < script_.calls && report_.failure.empty(); ++i) {
    Call();
    Check();
  }
  Drain();
  const core::SchedulerStats stats = scheduler_->Stats();
  hash_.Add(stats);
  hash_.Add(scheduler_->kv().ReservationsRevoked());
  report_.preemptions = stats.preemptions;
  report_.lane_moves = stats.lane_moves;
  report_.hash = hash_.value();
  return report_;
}

void CallScript::Call() {
  const double kind = random_.Uniform();
  if (kind < 0.2) {
    Submit();
  } else if (kind < 0.5) {
    Plan();
  } else if (kind < 0.93) {
    StepDone();
  } else if (kind < 0.96) {
    FinishOne();
  } else if (kind < 0.99) {
    ChangeCosts();
  } else {
    StartEpoch();
  }
}

void CallScript::Submit() {
  core::SequenceRequest request;
  const uint32_t prompt = Between(1, options_.sequence_tokens_max - 1);
  request.prompt.resize(random_.Chance(0.5) ? prompt : std::min(prompt, 6u));
  for (TokenId& token : request.prompt) {
    token = static_cast<TokenId>(random_.Below(kVocabulary));
  }
  const auto size = static_cast<uint32_t>(request.prompt.size());
  request.tokens_max = Between(size + 1, options_.sequence_tokens_max);
  request.score = random_.Chance(0.1);
  request.priority = static_cast<int32_t>(random_.Below(3));
  request.end_tokens.assign(random_.Chance(0.5) ? 1 : 0, 7);
  const uint32_t forks = random_.Chance(0.3) ? Between(1, 4) : 0;
  const plan::SequenceId first = submitted_.size() + 1;
  for (uint32_t i = 0; i <= forks; ++i) {
    request.id = submitted_.size() + 1;
    request.fork_of = i == 0 ? 0 : first;
    request.sampling.seed = random_();
    submitted_.push_back(request);
    const absl::Status status = scheduler_->Submit(request);
    hash_.Add(static_cast<uint64_t>(status.code()));
    if (status.ok()) {
      alive_.insert(request.id);
    }
  }
}

void CallScript::Plan() {
  std::vector<plan::StepPlan> plans;
  scheduler_->Plan(plans);
  for (plan::StepPlan& plan : plans) {
    hash_.Add(plan);
    TakePlan(std::move(plan));
  }
}

void CallScript::TakePlan(plan::StepPlan plan) {
  ++report_.plans;
  Planned planned;
  const auto samples = [&planned](plan::SequenceId id, uint32_t position) {
    const uint64_t drawn = Mix(Mix(id) + position);
    planned.tokens.push_back(
        {.sequence = id, .position = position, .token = static_cast<TokenId>(drawn % 60)});
  };
  for (const auto& [id] : plan.leaves) {
    table_.erase(id);
  }
  for (const plan::SequenceJoin& join : plan.joins) {
    table_[join.id] = join;
    report_.forks += join.parent != 0;
  }
  for (const plan::SlotAllocation& allocation : plan.allocations) {
    const auto joined = table_.find(allocation.sequence);
    report_.spans += joined != table_.end() && joined->second.memory_node != allocation.memory_node;
  }
  for (const plan::DecodeRow& row : plan.rows) {
    samples(row.sequence, row.position + 1);
  }
  for (const plan::PrefillChunk& chunk : plan.chunks) {
    if (!chunk.last || table_.at(chunk.sequence).score) {
      continue;
    }
    for (auto& [id, join] : table_) {
      if (id == chunk.sequence || join.parent == chunk.sequence) {
        samples(id, chunk.first_token + chunk.tokens);
        join.parent = 0;  // The parent may come again, and sample for itself alone.
      }
    }
  }
  planned.plan = std::move(plan);
  in_flight_[planned.plan.lane].push_back(std::move(planned));
}

void CallScript::StepDone() {
  std::vector<uint32_t> busy;
  for (uint32_t lane = 0; lane < in_flight_.size(); ++lane) {
    if (!in_flight_[lane].empty()) {
      busy.push_back(lane);
    }
  }
  if (busy.empty()) {
    return;
  }
  std::deque<Planned>& lane = in_flight_[busy[random_.Below(busy.size())]];
  const Planned planned = std::move(lane.front());
  lane.pop_front();
  plan::StepResult result{.epoch = planned.plan.epoch,
                          .lane = planned.plan.lane,
                          .step = planned.plan.step,
                          .tokens = planned.tokens};
  for (const plan::PrefillChunk& chunk : planned.plan.chunks) {
    if (submitted_[chunk.sequence - 1].score) {
      result.scores.push_back(
          {.sequence = chunk.sequence,
           .first_token = chunk.first_token + 1,
           .logprobs = std::vector<float>(chunk.tokens - (chunk.last ? 1 : 0), -0.5f)});
    }
  }
  core::Events events;
  if (const absl::Status status = scheduler_->OnStepDone(result, events); !status.ok()) {
    Fail(status.ToString());
  }
  Take(events);
}

void CallScript::Take(const core::Events& events) {
  hash_.Add(events);
  for (const core::FinishEvent& event : events.finished) {
    if (alive_.erase(event.sequence) != 1) {
      Fail(absl::StrCat("sequence ", event.sequence, " ends twice"));
    }
  }
}

void CallScript::FinishOne() {
  if (alive_.empty()) {
    return;
  }
  const auto one = std::next(alive_.begin(), static_cast<int64_t>(random_.Below(alive_.size())));
  scheduler_->Finish(*one);
  alive_.erase(one);
}

// One node at least stays.
void CallScript::StartEpoch() {
  std::vector<core::MemoryNodeShare> nodes = options_.memory_nodes;
  std::vector<std::string> lost;
  if (nodes.size() > 1 && random_.Chance(0.3)) {
    lost.push_back(nodes.back().name);
    nodes.pop_back();
  }
  options_.memory_nodes = nodes;
  core::Events events;
  scheduler_->StartEpoch(++epoch_, nodes, lost, events, options_.prefill_lanes);
  for (std::deque<Planned>& lane : in_flight_) {
    lane.clear();
  }
  table_.clear();
  Take(events);
}

void CallScript::ChangeCosts() {
  const auto power = [&] { return 1.0 / (1u << Between(0, 6)); };
  scheduler_->SetLaneCosts({.slice_fixed = power(),
                            .slice_per_row = power(),
                            .attention_fixed = power(),
                            .attention_per_token = power(),
                            .replicas = Between(1, 4),
                            .measured = random_.Chance(0.9)});
  scheduler_->SetLinkCosts({.seconds_per_row = power(),
                            .seconds_per_message = power(),
                            .measured = true,
                            .kv_heads = Between(1, 8),
                            .threads = Between(1, 4)});
  std::vector<double> bandwidths;
  for (size_t i = 0; i < options_.memory_nodes.size(); ++i) {
    bandwidths.push_back(1.0 * (1u << Between(0, 2)));
  }
  scheduler_->SetBandwidths(bandwidths);
  const bool one_lane = options_.rows_max >= options_.running_max && random_.Chance(0.2);
  scheduler_->HoldLanes(one_lane ? 1 : 0, "drawn");
}

// Everything ends.
void CallScript::Drain() {
  for (uint32_t round = 0; scheduler_->HasWork() && report_.failure.empty(); ++round) {
    if (round == kRoundsToDrain) {
      return Fail("work is left, and nothing happens any more");
    }
    Plan();
    StepDone();
    if (round % 16 == 0) {
      Check();
    }
  }
  if (report_.failure.empty() && !alive_.empty()) {
    Fail(absl::StrCat("sequence ", *alive_.begin(), " never ended"));
  }
}

void CallScript::Check() {
  if (const absl::Status status = scheduler_->Audit(); !status.ok()) {
    Fail(absl::StrCat("audit: ", status.message()));
  }
}

void CallScript::Fail(const std::string& what) {
  if (report_.failure.empty()) {
    report_.failure = absl::StrCat("seed ", script_.seed, ": ", what);
  }
}

}  // namespace lamina::sim

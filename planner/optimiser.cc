// SPDX-License-Identifier: Apache-2.0
#include "planner/optimiser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lamina::planner {
namespace {

struct Candidate {
  Hardware hardware;
  Rank best;
  size_t order = 0;  // Its place in AllHardware(): the last word among equals.
};

// The `count` best plans so far; among equals the first in order.
class Shortlist {
 public:
  Shortlist(const Problem& problem, size_t count) : problem_(problem), count_(count) {}

  // Whether a plan of this rank could still enter.
  bool Admits(const Rank& rank, size_t order) const {
    return entries_.size() < count_ || IsBefore(rank, order, entries_.back());
  }
  void Add(Plan plan, size_t order) {
    const Rank rank = RankOf(problem_, plan.evaluation);
    const auto at = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const Entry& entry) { return IsBefore(rank, order, entry); });
    entries_.insert(at, Entry{rank, order, std::move(plan)});
    if (entries_.size() > count_) {
      entries_.pop_back();
    }
  }
  std::vector<Plan> Take() && {
    std::vector<Plan> plans;
    for (Entry& entry : entries_) {
      plans.push_back(std::move(entry.plan));
    }
    return plans;
  }

 private:
  struct Entry {
    Rank rank;
    size_t order;
    Plan plan;
  };
  static bool IsBefore(const Rank& rank, size_t order, const Entry& entry) {
    const int compared = Compare(rank, entry.rank);
    return compared < 0 || (compared == 0 && order < entry.order);
  }

  const Problem& problem_;
  const size_t count_;
  std::vector<Entry> entries_;
};

class Optimiser {
 public:
  Optimiser(const Problem& problem, size_t count, size_t baselines, const WhyNot& why_not)
      : problem_(problem),
        rates_(problem),
        why_not_(why_not),
        runnable_(problem, count),
        others_(problem, count),
        one_pool_(problem, baselines) {}

  absl::StatusOr<Plans> Run(Search search);

 private:
  // An arrangement of the hardware at hand that holds the model and keeps the latencies.
  struct Found {
    Configuration configuration;
    Evaluation evaluation;
    Rank rank;
  };

  std::vector<Candidate> Candidates() const;
  bool MayRun(const Hardware& hardware) const;
  bool MayEnter(const Candidate& candidate, bool may_run, const Rank& best) const;
  void FindAll(const Candidate& candidate, Search search);
  std::vector<const Found*> BestFirst() const;
  void LookAt(const Candidate& candidate, Search search);
  Plan PlanOf(const Found& found) const {
    return {found.configuration, found.evaluation, why_not_(found.configuration, found.evaluation)};
  }
  void Remember(const Configuration& configuration, const Evaluation& evaluation);
  absl::Status NothingFits() const;

  const Problem& problem_;
  const Rates rates_;
  const WhyNot& why_not_;
  Shortlist runnable_;
  Shortlist others_;
  Shortlist one_pool_;
  std::optional<Plan> nearest_;  // The nearest plan that is not feasible.
  std::vector<Found> found_;     // FindAll() fills it for one choice of machines at a time.
  bool any_ = false;
};

std::vector<Candidate> Optimiser::Candidates() const {
  const std::vector<Hardware> all = AllHardware(problem_);
  std::vector<Candidate> candidates;
  candidates.reserve(all.size());
  for (const Hardware& hardware : all) {
    candidates.push_back(
        {hardware, BestPossibleRank(problem_, rates_, hardware), candidates.size()});
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const auto& a, const auto& b) { return Compare(a.best, b.best) < 0; });
  return candidates;
}

bool Optimiser::MayRun(const Hardware& hardware) const {
  const cost::Device* compute = problem_.catalogue.FindDevice(hardware.compute->device);
  const cost::Device* memory = hardware.MemoryDevice(problem_.catalogue);
  return problem_.model.runs.yes && compute->runs.yes && (memory == nullptr || memory->runs.yes);
}

// Whether an arrangement of these machines whose rank is no better than `best` may enter a list.
bool Optimiser::MayEnter(const Candidate& candidate, bool may_run, const Rank& best) const {
  return others_.Admits(best, candidate.order) ||
         (may_run && runnable_.Admits(best, candidate.order)) ||
         (!candidate.hardware.two_pools() && one_pool_.Admits(best, candidate.order));
}

void Optimiser::Remember(const Configuration& configuration, const Evaluation& evaluation) {
  // Far from fitting at all counts as farther than any latency that is missed.
  const auto distance = [](const Evaluation& e) {
    const bool memory = e.limit == Limit::kWeights || e.limit == Limit::kKvCapacity;
    return std::pair(memory, e.shortfall);
  };
  if (!nearest_.has_value() || distance(evaluation) < distance(nearest_->evaluation)) {
    nearest_ = Plan{configuration, evaluation, ""};
  }
}

void Optimiser::FindAll(const Candidate& candidate, Search search) {
  found_.clear();
  const bool may_run = MayRun(candidate.hardware);
  for (const Configuration& configuration : AllConfigurations(problem_, candidate.hardware)) {
    if (search == Search::kBounded &&
        !MayEnter(candidate, may_run, BestPossibleRank(problem_, rates_, configuration))) {
      continue;
    }
    const Evaluation evaluation = Evaluate(problem_, rates_, configuration);
    if (evaluation.feasible) {
      found_.push_back({configuration, evaluation, RankOf(problem_, evaluation)});
    } else {
      Remember(configuration, evaluation);
    }
  }
}

// Where prices are equal the arrangement with more goodput comes first.
std::vector<const Optimiser::Found*> Optimiser::BestFirst() const {
  std::vector<const Found*> order;
  order.reserve(found_.size());
  for (const Found& found : found_) {
    order.push_back(&found);
  }
  std::stable_sort(order.begin(), order.end(), [](const Found* a, const Found* b) {
    const int compared = Compare(a->rank, b->rank);
    return compared < 0 ||
           (compared == 0 && a->evaluation.goodput.value > b->evaluation.goodput.value);
  });
  return order;
}

// The best arrangement that runs and the best that does not go to their lists. Whether one runs is
// asked only of those that may enter: a whole cluster file is checked for that.
void Optimiser::LookAt(const Candidate& candidate, Search search) {
  FindAll(candidate, search);
  const std::vector<const Found*> best_first = BestFirst();
  if (best_first.empty()) {
    return;
  }
  any_ = true;
  const Found& best = *best_first.front();
  if (!candidate.hardware.two_pools() && one_pool_.Admits(best.rank, candidate.order)) {
    one_pool_.Add(PlanOf(best), candidate.order);
  }
  bool runs = false;
  bool does_not = false;
  for (const Found* found : best_first) {
    if ((runs || !runnable_.Admits(found->rank, candidate.order)) &&
        (does_not || !others_.Admits(found->rank, candidate.order))) {
      break;  // Those behind it rank no better.
    }
    Plan plan = PlanOf(*found);
    const bool it_runs = plan.why_not.empty();
    bool& there = it_runs ? runs : does_not;
    if (!there) {
      (it_runs ? runnable_ : others_).Add(std::move(plan), candidate.order);
      there = true;
    }
  }
}

absl::Status Optimiser::NothingFits() const {
  if (!nearest_.has_value()) {
    return absl::NotFoundError(absl::StrFormat(
        "no machine of the catalogue is within %d machines and the budget of %g/h; raise --budget",
        problem_.machines_max, problem_.budget));
  }
  const Evaluation& e = nearest_->evaluation;
  const std::string plan = absl::StrCat(HardwareName(nearest_->configuration.hardware), " (",
                                        ArrangementName(nearest_->configuration), ")");
  if (e.limit == Limit::kWeights) {
    return absl::NotFoundError(absl::StrFormat(
        "%s is too large for every configuration: its weights take %.1f GB; the nearest is %s, "
        "whose compute nodes would need %.2f times their memory; raise --machines or --budget, or "
        "add a machine with more devices",
        problem_.model.name, problem_.model.WeightBytes() / 1e9, plan, e.shortfall));
  }
  if (e.limit == Limit::kKvCapacity) {
    return absl::NotFoundError(absl::StrFormat(
        "no configuration holds K and V of one sequence for each lane; the nearest is %s, which "
        "would need %.2f times its memory; raise --budget, or shorten the load's input and output",
        plan, e.shortfall));
  }
  return absl::NotFoundError(absl::StrFormat(
      "no configuration meets the SLO; the nearest is %s with one row in each lane: TPOT %.1f ms, "
      "TTFT %.1f ms, and %s limits it; allow %.2f times the latency",
      plan, 1e3 * e.times.step.value, 1e3 * e.ttft.value, LimitName(e.limit), e.shortfall));
}

absl::StatusOr<Plans> Optimiser::Run(Search search) {
  Plans plans;
  const std::vector<Candidate> candidates = Candidates();
  plans.hardware = candidates.size();
  for (const Candidate& candidate : candidates) {
    if (search == Search::kExhaustive ||
        MayEnter(candidate, MayRun(candidate.hardware), candidate.best)) {
      LookAt(candidate, search);
      ++plans.looked_at;
    }
  }
  if (!any_) {
    return NothingFits();
  }
  plans.runnable = std::move(runnable_).Take();
  plans.others = std::move(others_).Take();
  plans.one_pool = std::move(one_pool_).Take();
  return plans;
}

}  // namespace

absl::StatusOr<Plans> Optimise(const Problem& problem, size_t count, const WhyNot& why_not,
                               Search search, size_t baselines) {
  return Optimiser(problem, count, baselines, why_not).Run(search);
}

}  // namespace lamina::planner

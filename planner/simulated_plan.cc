// SPDX-License-Identifier: Apache-2.0
#include "planner/simulated_plan.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "cost/price.h"
#include "planner/cluster_file.h"
#include "planner/scheduler_options.h"

namespace lamina::planner {
namespace {

using cost::KvPolicy;

constexpr double kWarmUp = 0.3;
constexpr double kLives = 5;  // A run takes so many times as long as a request.
constexpr uint64_t kRequestsLeast = 200;
constexpr double kKeepsUp = 0.9;  // Tokens a second over those that were asked for.
// The goodput is so exact, as a share of the most that it may be.
constexpr double kResolution = 1.0 / 64;
constexpr int kRounds = 6;  // How often it looks for plans with a greater bound.
constexpr double kAnotherMargin = 1.1;

double PriceOfDevice(const Problem& problem, const cost::Machine* machine) {
  if (machine == nullptr) {
    return 0;
  }
  const cost::Estimate load = cost::MeanLoad(problem.catalogue.economics);
  return cost::HourlyPrice(problem.catalogue, *machine, load).value / machine->devices;
}

// Options of the plan's cluster file. One pool's file is for all replicas: its `lanes` and
// `running` are a replica's.
core::SchedulerOptions OptionsOf(const Problem& problem, const Configuration& configuration,
                                 const Evaluation& evaluation, uint32_t lanes, uint32_t running) {
  ClusterConfig config = ClusterFileOf(problem, configuration, evaluation, "model");
  config.pipeline.lanes = lanes;
  config.pipeline.lanes_auto = false;
  config.limits.running_max = std::max(running, lanes);
  return SchedulerOptionsOf(config, problem.model);
}

class Simulator {
 public:
  // Rates of which the first is kept, as far as is known, and the second is not.
  struct Goodput {
    double good = 0;
    double bad = 0;
    // A run at the load's rate; without one at `good`. Nothing where that run was given up.
    std::optional<SimResult> run = {};
  };

  Simulator(const Problem& problem, const Plan& plan, const PlanSimulationOptions& options)
      : problem_(problem),
        plan_(plan),
        options_(options),
        fleet_(FleetOf(problem, plan.configuration, plan.evaluation, options.failures)) {}

  // The goodput, as far as it is above `floor`; nothing where that rate is not kept. A rate that is
  // not kept is given up early, so that this takes less time the fewer rates above `floor` are
  // kept.
  absl::StatusOr<std::optional<Goodput>> FindGoodput(double floor) const;
  absl::StatusOr<SimulatedFigures> FiguresAt(const Goodput& goodput) const;

 private:
  std::vector<TraceRequest> RequestsAt(double rate) const;
  absl::StatusOr<SimResult> At(double rate, std::optional<Slo> give_up_beyond) const;
  absl::StatusOr<bool> Try(double rate, Goodput& goodput) const;
  bool Holds(const SimResult& result) const;
  SimulatedFigures FiguresOf(const SimResult& result) const;
  double TraceRate() const;
  double Wanted() const { return options_.trace.empty() ? problem_.load.rate : TraceRate(); }

  const Problem& problem_;
  const Plan& plan_;
  const PlanSimulationOptions& options_;
  const SimFleet fleet_;
};

double Simulator::TraceRate() const {
  return static_cast<double>(options_.trace.size()) / ToSeconds(options_.trace.back().at);
}

std::vector<TraceRequest> Simulator::RequestsAt(double rate) const {
  if (!options_.trace.empty()) {
    std::vector<TraceRequest> requests = options_.trace;
    const double stretch = TraceRate() / rate;
    for (TraceRequest& request : requests) {
      request.at = static_cast<Nanos>(stretch * static_cast<double>(request.at));
    }
    return requests;
  }
  const double life =
      plan_.evaluation.ttft.value + problem_.load.output * plan_.evaluation.times.step.value;
  const auto count = static_cast<uint64_t>(kLives * rate * life);
  return MakeArrivals({.requests = std::clamp(count, kRequestsLeast, options_.requests),
                       .rate = rate,
                       .input = problem_.load.input,
                       .output = problem_.load.output,
                       .lengths = problem_.load.lengths,
                       .tokens_max = fleet_.cell.scheduler.sequence_tokens_max,
                       .prefix_tokens = static_cast<uint32_t>(problem_.load.prefix),
                       .prefixes = static_cast<uint32_t>(problem_.load.prefixes),
                       .seed = options_.seed});
}

absl::StatusOr<SimResult> Simulator::At(double rate, std::optional<Slo> give_up_beyond) const {
  return Simulate(fleet_, RequestsAt(rate),
                  {.seed = options_.seed, .warm_up = kWarmUp, .give_up_beyond = give_up_beyond});
}

bool Simulator::Holds(const SimResult& result) const {
  if (result.gave_up) {
    return false;
  }
  const double answered =
      static_cast<double>(result.answered) / static_cast<double>(result.requests);
  const bool keeps_up = result.tokens_per_second >= kKeepsUp * result.tokens_asked;
  return keeps_up && answered >= problem_.slo.at &&
         ShareWithin(result, problem_.slo) >= problem_.slo.at;
}

SimulatedFigures Simulator::FiguresOf(const SimResult& result) const {
  const double load = cost::MeanLoad(problem_.catalogue.economics).value;
  const auto found = static_cast<double>(result.cached_tokens);
  const double prompts = found + static_cast<double>(result.input_tokens);
  return {.rate = result.requests_per_second,
          .tokens_per_second = result.tokens_per_second,
          .ttft_p50 = PercentileOf(result.ttft, 0.5),
          .ttft_at = PercentileOf(result.ttft, problem_.slo.at),
          .tpot_p50 = PercentileOf(result.tpot, 0.5),
          .tpot_at = PercentileOf(result.tpot, problem_.slo.at),
          .input_price = result.bill.per_million_input / load,
          .output_price = result.bill.per_million_output / load,
          .cached_price = result.bill.per_million_cached / load,
          .hit = prompts > 0 ? found / prompts : 0,
          .compute_busy = result.compute_busy,
          .memory_busy = result.memory_busy,
          .coordinator_busy = result.coordinator_busy,
          .requests = result.requests,
          .drawn_lengths = options_.trace.empty() && problem_.load.lengths != Lengths::kFixed};
}

// Tries a rate, and narrows the goodput by whether it is kept.
absl::StatusOr<bool> Simulator::Try(double rate, Goodput& goodput) const {
  LAMINA_ASSIGN_OR_RETURN(SimResult result, At(rate, problem_.slo));
  const bool holds = Holds(result);
  (holds ? goodput.good : goodput.bad) = rate;
  if (Wanted() > 0 ? rate == Wanted() && !result.gave_up : holds) {
    goodput.run = std::move(result);
  }
  return holds;
}

// The goodput lies between 0 and the formulas' bound, found by halving: more requests a second
// never help. The same rates are tried with every floor, but for those that it answers.
absl::StatusOr<std::optional<Simulator::Goodput>> Simulator::FindGoodput(double floor) const {
  const double bound = plan_.evaluation.goodput.value;
  Goodput goodput;
  if (floor > 0) {
    LAMINA_ASSIGN_OR_RETURN(const bool holds, Try(floor, goodput));
    if (!holds) {
      return std::nullopt;
    }
  }
  const auto narrow = [&](double rate) -> absl::Status {
    if (rate > floor) {
      return Try(rate, goodput).status();
    }
    goodput.good = rate;
    return absl::OkStatus();
  };
  goodput.good = 0;
  goodput.bad = bound;
  if (Wanted() > 0) {
    LAMINA_RETURN_IF_ERROR(narrow(Wanted()));
    goodput.bad = std::max(goodput.good, std::min(goodput.bad, bound));
  }
  const double resolution = kResolution * goodput.bad;
  while (goodput.bad - goodput.good > resolution) {
    LAMINA_RETURN_IF_ERROR(narrow((goodput.good + goodput.bad) / 2));
  }
  return goodput;
}

// Figures are those at the load's rate; where there is none at the goodput, or where that is
// nothing at the lowest rate that was tried.
absl::StatusOr<SimulatedFigures> Simulator::FiguresAt(const Goodput& goodput) const {
  const double wanted = Wanted();
  std::optional<SimResult> run = goodput.run;
  if (!run.has_value()) {
    LAMINA_ASSIGN_OR_RETURN(run, At(wanted > 0 ? wanted : goodput.bad, std::nullopt));
  }
  SimulatedFigures figures = FiguresOf(*run);
  figures.carries = wanted > 0 ? goodput.good >= wanted : goodput.good > 0;
  figures.goodput = goodput.good;
  return figures;
}

// By how much the latencies are missed at the SLO's percentile; at most 1 where they are kept.
double TtftMiss(const Problem& problem, const SimulatedFigures& figures) {
  return figures.ttft_at / problem.slo.ttft_seconds;
}
double TpotMiss(const Problem& problem, const SimulatedFigures& figures) {
  return figures.tpot_at / problem.slo.tpot_seconds;
}

// By what was found. Requires: it has been simulated.
Rank RankOfSimulated(const Problem& problem, const Plan& plan) {
  const SimulatedFigures& figures = *plan.simulated;
  if (figures.goodput <= 0) {  // Behind those that have some: their cost is below 0.
    return {.carries = false,
            .cost = std::max(TtftMiss(problem, figures), TpotMiss(problem, figures))};
  }
  if (problem.load.rate > 0 && !figures.carries) {
    return {.carries = false, .cost = -figures.goodput};
  }
  const double price = plan.evaluation.price_per_hour.value;
  if (problem.load.rate > 0) {
    return {.carries = true, .cost = price};
  }
  return {.carries = true, .cost = price > 0 ? price / figures.goodput : -figures.goodput};
}

// The plan with fewer lanes: one for each compute node, and one more. The formulas choose lanes for
// as many rows as fit. With the rows of a load that queues allow, each lane reads the weights for
// few of them, and fewer lanes may answer more.
std::vector<Plan> WithFewerLanes(const Problem& problem, const WhyNot& why_not, const Plan& plan) {
  std::vector<Plan> plans;
  if (plan.configuration.policy != KvPolicy::kAttendRemote) {
    return plans;
  }
  const Rates rates(problem);
  const uint32_t nodes = plan.configuration.replicas * plan.configuration.stages;
  for (const uint32_t lanes : {nodes + 1, nodes}) {
    Plan other = plan;
    other.configuration.lanes = lanes;
    other.evaluation = Evaluate(problem, rates, other.configuration);
    other.why_not = why_not(other.configuration, other.evaluation);
    if (lanes < plan.configuration.lanes && other.evaluation.feasible &&
        other.why_not.empty() == plan.why_not.empty()) {
      plans.push_back(std::move(other));
    }
  }
  return plans;
}

// Plans that were simulated come first, in the order of what was found.
void Sort(const Problem& problem, std::vector<Plan>& plans) {
  const auto rank = [&](const Plan& plan) { return RankOfSimulated(problem, plan); };
  std::stable_sort(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
    if (!a.simulated.has_value() || !b.simulated.has_value()) {
      return a.simulated.has_value() && !b.simulated.has_value();
    }
    return Compare(rank(a), rank(b)) < 0;
  });
}

absl::Status CanSimulate(const Plan& plan, const PlanSimulationOptions& options) {
  const KvPolicy policy = plan.configuration.policy;
  if (policy != KvPolicy::kLocal && policy != KvPolicy::kAttendRemote) {
    return absl::UnimplementedError(
        absl::StrCat("policy ", cost::KvPolicyName(policy),
                     " sends K and V to compute nodes; the simulator knows only steps that attend "
                     "where K and V lie"));
  }
  if (!options.trace.empty() && options.trace.front().at == options.trace.back().at) {
    return absl::InvalidArgumentError(
        "all requests of the trace arrive at one instant; a rate needs arrivals that are apart");
  }
  return absl::OkStatus();
}

absl::StatusOr<SimulatedFigures> FiguresOf(const Problem& problem, const Plan& plan,
                                           const PlanSimulationOptions& options,
                                           const Simulator::Goodput& goodput) {
  return Simulator(problem, plan, options).FiguresAt(goodput);
}

// Whether a plan of which no rate is kept misses less than another such plan.
absl::StatusOr<bool> ComesNearer(const Problem& problem, const PlanSimulationOptions& options,
                                 Plan plan, const Simulator::Goodput& goodput, Plan than,
                                 const Simulator::Goodput& than_goodput) {
  LAMINA_ASSIGN_OR_RETURN(plan.simulated, FiguresOf(problem, plan, options, goodput));
  LAMINA_ASSIGN_OR_RETURN(than.simulated, FiguresOf(problem, than, options, than_goodput));
  return Compare(RankOfSimulated(problem, plan), RankOfSimulated(problem, than)) < 0;
}

// A plan gives way to itself with fewer lanes where these do better.
absl::Status SimulateOne(const Problem& problem, const WhyNot& why_not,
                         const PlanSimulationOptions& options, Plan& plan) {
  const absl::Status can = CanSimulate(plan, options);
  if (absl::IsUnimplemented(can)) {
    plan.why_not_simulated = std::string(can.message());
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(can);
  LAMINA_ASSIGN_OR_RETURN(auto best, Simulator(problem, plan, options).FindGoodput(0));
  for (Plan& other : WithFewerLanes(problem, why_not, plan)) {
    LAMINA_ASSIGN_OR_RETURN(const auto found,
                            Simulator(problem, other, options).FindGoodput(best->good));
    if (!found.has_value()) {
      continue;
    }
    bool better = found->good > best->good;
    if (best->good == 0 && found->good == 0) {
      LAMINA_ASSIGN_OR_RETURN(better, ComesNearer(problem, options, other, *found, plan, *best));
    }
    if (better) {
      plan = std::move(other);
      best = found;
    }
  }
  LAMINA_ASSIGN_OR_RETURN(plan.simulated, FiguresOf(problem, plan, options, *best));
  return absl::OkStatus();
}

absl::Status SimulateList(const Problem& problem, const WhyNot& why_not,
                          const PlanSimulationOptions& options, std::vector<Plan>& plans) {
  for (size_t i = 0; i < plans.size(); ++i) {
    if (i < options.plans) {
      LAMINA_RETURN_IF_ERROR(SimulateOne(problem, why_not, options, plans[i]));
    } else {
      plans[i].why_not_simulated = absl::StrCat("by the formulas it is not among the best ",
                                                options.plans, " of its list; raise --simulate");
    }
  }
  Sort(problem, plans);
  return absl::OkStatus();
}

// Leaves the best of the plans of one pool. The formulas' first may keep little of its bound where
// requests queue: the next ones are simulated too, as long as their bounds are better than what was
// found.
absl::Status SimulateBaselines(const Problem& problem, const WhyNot& why_not,
                               const PlanSimulationOptions& options, std::vector<Plan>& plans) {
  const Plan* best = nullptr;
  size_t simulated = 0;
  for (Plan& plan : plans) {
    if (best != nullptr &&
        Compare(RankOfSimulated(problem, *best), RankOf(problem, plan.evaluation)) <= 0) {
      break;
    }
    LAMINA_RETURN_IF_ERROR(SimulateOne(problem, why_not, options, plan));
    ++simulated;
    if (plan.simulated.has_value() &&
        (best == nullptr ||
         Compare(RankOfSimulated(problem, plan), RankOfSimulated(problem, *best)) < 0)) {
      best = &plan;
    }
  }
  plans.resize(simulated);
  Sort(problem, plans);
  plans.resize(std::min<size_t>(1, plans.size()));
  return absl::OkStatus();
}

// Whether another margin would change nothing: there are no plans, or none that was simulated, no
// rate, a plan that carries it, or none with a greater bound.
bool IsSettled(const Problem& problem, const std::vector<Plan>& plans) {
  if (plans.empty() || problem.load.rate == 0) {
    return true;
  }
  const Plan& first = plans.front();
  return !first.simulated.has_value() || first.simulated->carries || !first.evaluation.carries;
}

// The best plan of one pool with the margins so far.
struct Baseline {
  std::vector<Plan> plans;  // One, or none where there are none.
  bool settled = false;
};

// Looks at those of another margin.
absl::Status ImproveBaseline(const Problem& problem, const WhyNot& why_not,
                             const PlanSimulationOptions& options, std::vector<Plan> one_pool,
                             Baseline& baseline) {
  LAMINA_RETURN_IF_ERROR(SimulateBaselines(problem, why_not, options, one_pool));
  baseline.settled = IsSettled(problem, one_pool);
  if (baseline.plans.empty() ||
      (!one_pool.empty() && Compare(RankOfSimulated(problem, one_pool.front()),
                                    RankOfSimulated(problem, baseline.plans.front())) < 0)) {
    baseline.plans = std::move(one_pool);
  }
  return absl::OkStatus();
}

Shortfall ShortfallBySimulation(const Problem& problem, const SimulatedFigures& figures) {
  const double ttft = TtftMiss(problem, figures);
  const double tpot = TpotMiss(problem, figures);
  Shortfall shortfall{.limit = "goodput", .goodput = figures.goodput};
  std::string why = absl::StrFormat(
      "fewer than %g%% of the requests keep both latencies, or are answered as fast as they come",
      100 * problem.slo.at);
  if (std::max(ttft, tpot) > 1) {
    const bool first = ttft >= tpot;
    shortfall.limit = LimitName(first ? Limit::kTtft : Limit::kTpot);
    why = absl::StrFormat("p%g is %.1f ms, %.2f times the SLO's", 100 * problem.slo.at,
                          1e3 * (first ? figures.ttft_at : figures.tpot_at), std::max(ttft, tpot));
  }
  shortfall.text = absl::StrFormat(
      "simulated, it answers %.2f requests/s within the SLO; at %.2f requests/s %s limits it: %s",
      figures.goodput, figures.rate, shortfall.limit, why);
  return shortfall;
}

}  // namespace

SimFleet FleetOf(const Problem& problem, const Configuration& configuration,
                 const Evaluation& evaluation, const SimFailures& failures) {
  const Rates rates(problem);
  SimFleet fleet;
  SimCellSpec& cell = fleet.cell;
  cell.shape = problem.model;
  cell.cluster = rates.ClusterOf(configuration);
  cell.failures = failures;
  auto running = static_cast<uint32_t>(evaluation.rows);
  double kv_tokens = cost::KvTokensMax(problem.model, cell.cluster).value;
  if (configuration.policy == KvPolicy::kAttendRemote) {
    kv_tokens = cell.cluster.memory.capacity.value / problem.model.KvBytesPerToken();
  } else {
    fleet.cells = configuration.replicas;
    running = (running + fleet.cells - 1) / fleet.cells;
    kv_tokens /= fleet.cells;
    cell.cluster.lanes = configuration.stages;
    cell.cluster.replicas = 1;
  }
  cell.kv_tokens = static_cast<uint64_t>(kv_tokens);
  cell.scheduler = OptionsOf(problem, configuration, evaluation, cell.cluster.lanes, running);
  cell.compute_price = PriceOfDevice(problem, configuration.hardware.compute);
  cell.memory_price = PriceOfDevice(problem, configuration.hardware.memory);
  const double nodes = fleet.cells * (cell.compute_price * cell.compute_nodes() +
                                      cell.memory_price * cell.cluster.memory_nodes);
  fleet.other_price = std::max(0.0, evaluation.price_per_hour.value - nodes);
  return fleet;
}

absl::StatusOr<SimulatedFigures> SimulatePlan(const Problem& problem, const Plan& plan,
                                              const PlanSimulationOptions& options) {
  LAMINA_RETURN_IF_ERROR(CanSimulate(plan, options));
  const Simulator simulator(problem, plan, options);
  LAMINA_ASSIGN_OR_RETURN(const auto goodput, simulator.FindGoodput(0));
  return simulator.FiguresAt(*goodput);
}

absl::StatusOr<Plans> OptimiseAndSimulate(Problem& problem, size_t count, const WhyNot& why_not,
                                          const PlanSimulationOptions& options) {
  Baseline baseline;               // That of the first margin with which one pool carries the rate.
  Plans found;                     // Those of the first margin with which a runnable one does,
  double margin = problem.margin;  // and that margin.
  bool settled = false;
  for (int round = 1;; ++round) {
    LAMINA_ASSIGN_OR_RETURN(Plans plans, Optimise(problem, settled ? size_t{1} : count, why_not,
                                                  Search::kBounded, options.plans));
    if (!baseline.settled) {
      LAMINA_RETURN_IF_ERROR(
          ImproveBaseline(problem, why_not, options, std::move(plans.one_pool), baseline));
    }
    if (!settled) {
      found = std::move(plans);
      margin = problem.margin;
      LAMINA_RETURN_IF_ERROR(SimulateList(problem, why_not, options, found.runnable));
      settled = round == kRounds || IsSettled(problem, found.runnable);
    }
    if (settled && (baseline.settled || round == kRounds)) {
      break;
    }
    const Plan& behind = settled ? baseline.plans.front() : found.runnable.front();
    const double goodput = std::max(behind.simulated->goodput, 1e-6);
    problem.margin *= kAnotherMargin * std::clamp(problem.load.rate / goodput, 1.0, 2.0);
  }
  problem.margin = margin;
  found.one_pool = std::move(baseline.plans);
  LAMINA_RETURN_IF_ERROR(SimulateList(problem, why_not, options, found.others));
  return found;
}

std::optional<Shortfall> ShortfallOf(const Problem& problem, const std::vector<Plan>& plans) {
  if (plans.empty()) {
    return std::nullopt;
  }
  const Plan& first = plans.front();
  if (first.simulated.has_value()) {
    return first.simulated->carries
               ? std::nullopt
               : std::optional(ShortfallBySimulation(problem, *first.simulated));
  }
  const double goodput = first.evaluation.goodput.value;
  if (goodput >= problem.load.rate) {
    return std::nullopt;
  }
  const std::string limit = LimitName(first.evaluation.limit);
  return Shortfall{
      .limit = limit,
      .goodput = goodput,
      .text = absl::StrFormat(
          "by the formulas it answers at most %.2f of the load's %.2f requests/s, and %s limits it",
          goodput, problem.load.rate, limit)};
}

}  // namespace lamina::planner

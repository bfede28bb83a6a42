// SPDX-License-Identifier: Apache-2.0
#include "client/cli/plan_view.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cost/price.h"
#include "planner/simulated_plan.h"

namespace lamina::cli {
namespace {

using cost::Provenance;
using planner::Basis;
using planner::Evaluation;
using planner::Plan;
using planner::Plans;
using planner::Problem;

const char* BottleneckName(cost::Bottleneck bottleneck) {
  switch (bottleneck) {
    case cost::Bottleneck::kPath:
      return "a lane's path";
    case cost::Bottleneck::kCompute:
      return "compute nodes";
    case cost::Bottleneck::kMemory:
      return "memory nodes";
    case cost::Bottleneck::kNetwork:
      return "links";
  }
  return "?";
}

// What keeps it from more, and what its step waits for.
std::string Constraint(const Evaluation& evaluation) {
  return absl::StrCat(planner::LimitName(evaluation.limit),
                      "; step: ", BottleneckName(evaluation.times.bottleneck));
}

using Parts = std::vector<std::pair<const char*, Provenance>>;

Parts PartsOf(const Basis& basis) {
  Parts parts = {{"dense layers", basis.dense},
                 {"attention", basis.attention},
                 {"memory", basis.capacity},
                 {"price", basis.price}};
  if (basis.network.has_value()) {
    parts.emplace_back("network", *basis.network);
  }
  return parts;
}

// Simulated nodes take the times of the formulas.
Parts PartsOf(const Basis& basis, const planner::SimulatedFigures& figures) {
  Parts parts = PartsOf(basis);
  parts.emplace_back("coordinator", Provenance::kAssumed);
  if (figures.drawn_lengths) {
    parts.emplace_back("lengths", Provenance::kAssumed);
  }
  return parts;
}

Json PartsToJson(const Parts& parts) {
  Json json;
  for (const auto& [name, provenance] : parts) {
    json[name] = cost::ProvenanceName(provenance);
  }
  return json;
}

// "measured: dense layers; datasheet: network; assumed: attention, memory, price".
std::string BasisText(const Basis& basis) {
  std::vector<std::string> texts;
  for (const Provenance provenance :
       {Provenance::kMeasured, Provenance::kDatasheet, Provenance::kScaled, Provenance::kAssumed}) {
    std::vector<std::string> names;
    for (const auto& [name, of_part] : PartsOf(basis)) {
      if (of_part == provenance) {
        names.emplace_back(name);
      }
    }
    if (!names.empty() || provenance == Provenance::kMeasured) {
      texts.push_back(absl::StrCat(cost::ProvenanceName(provenance), ": ",
                                   names.empty() ? "nothing" : absl::StrJoin(names, ", ")));
    }
  }
  return absl::StrJoin(texts, "; ");
}

Json EstimateToJson(const cost::Estimate& estimate) {
  return {{"value", estimate.value}, {"by", cost::ProvenanceName(estimate.provenance)}};
}

Json PriceToJson(const Problem& problem, const cost::Machine* machine, const std::string& today) {
  const cost::PriceAge age = cost::AgeOfPrice(problem.catalogue, machine->price, today);
  return {{"machine", machine->name},
          {"kind", cost::PriceKindName(machine->price.kind)},
          {"date", age.date},
          {"old", age.old}};
}

Json SimulatedToJson(const Plan& plan) {
  const std::optional<planner::SimulatedFigures>& figures = plan.simulated;
  if (!figures.has_value()) {
    return nullptr;
  }
  return {{"rate", figures->rate},
          {"goodput", figures->goodput},
          {"carries_rate", figures->carries},
          {"tokens_per_second", figures->tokens_per_second},
          {"ttft_seconds", {{"p50", figures->ttft_p50}, {"at", figures->ttft_at}}},
          {"tpot_seconds", {{"p50", figures->tpot_p50}, {"at", figures->tpot_at}}},
          {"price_per_million_input", figures->input_price},
          {"price_per_million_output", figures->output_price},
          {"price_per_million_cached", figures->cached_price},
          {"hit", figures->hit},
          {"compute_busy", figures->compute_busy},
          {"memory_busy", figures->memory_busy},
          {"coordinator_busy", figures->coordinator_busy},
          {"requests", figures->requests},
          {"basis", PartsToJson(PartsOf(plan.evaluation.basis, *figures))}};
}

// By what was simulated, else by the bound alone: the margin that other plans are looked for with
// says nothing of this one.
bool Carries(const Problem& problem, const Plan& plan) {
  return problem.load.rate == 0 ||
         (plan.simulated.has_value() ? plan.simulated->carries
                                     : plan.evaluation.goodput.value >= problem.load.rate);
}

// Null where the first plan that runs does what was asked for, or there is none.
Json ShortfallToJson(const Problem& problem, const Plans& plans) {
  const std::optional<planner::Shortfall> shortfall = planner::ShortfallOf(problem, plans.runnable);
  if (!shortfall.has_value()) {
    return nullptr;
  }
  const planner::Configuration& nearest = plans.runnable.front().configuration;
  return {{"machines", planner::HardwareName(nearest.hardware)},
          {"arrangement", planner::ArrangementName(nearest)},
          {"limit", shortfall->limit},
          {"goodput", shortfall->goodput},
          {"by", plans.runnable.front().simulated.has_value() ? "simulation" : "formulas"},
          {"why", shortfall->text}};
}

Json PlanToJson(const Problem& problem, const Plan& plan, const std::string& today) {
  const planner::Configuration& c = plan.configuration;
  const Evaluation& e = plan.evaluation;
  Json prices = Json::array({PriceToJson(problem, c.hardware.compute, today)});
  if (c.hardware.memory != nullptr && c.hardware.memory != c.hardware.compute) {
    prices.push_back(PriceToJson(problem, c.hardware.memory, today));
  }
  return {{"machines", planner::HardwareName(c.hardware)},
          {"arrangement", planner::ArrangementName(c)},
          {"policy", cost::KvPolicyName(c.policy)},
          {"carries_rate", Carries(problem, plan)},
          {"rows", e.rows},
          {"tokens_per_second", EstimateToJson(e.tokens_per_second)},
          {"goodput_bound", EstimateToJson(e.goodput)},
          {"tpot_seconds", EstimateToJson(e.times.step)},
          {"ttft_seconds", EstimateToJson(e.ttft)},
          {"price_per_hour", EstimateToJson(e.price_per_hour)},
          {"price_per_million_input", EstimateToJson(e.input_price)},
          {"price_per_million_output", EstimateToJson(e.output_price)},
          {"price_per_million_cached", EstimateToJson(e.cached_price)},
          {"hit", e.hit},
          {"tokens_per_second_per_price", EstimateToJson(e.tokens_per_price)},
          {"limit", planner::LimitName(e.limit)},
          {"step_waits_for", BottleneckName(e.times.bottleneck)},
          {"basis", PartsToJson(PartsOf(e.basis))},
          {"prices", prices},
          {"why_not_runnable", plan.why_not},
          {"why_not_simulated", plan.why_not_simulated},
          {"simulated", SimulatedToJson(plan)}};
}

Json ListToJson(const Problem& problem, const std::vector<Plan>& plans, const std::string& today) {
  Json list = Json::array();
  for (const Plan& plan : plans) {
    list.push_back(PlanToJson(problem, plan, today));
  }
  return list;
}

std::string Header(const std::string& currency) {
  return absl::StrFormat("%-34s %9s %9s %8s %8s %9s %10s %10s %9s  %s\n", "machines", "tokens/s",
                         "goodput/s", "TPOT ms", "TTFT s", currency + "/h", currency + "/1M in",
                         currency + "/1M out", "tok/s per", "binding constraint") +
         absl::StrFormat("%-34s %9s %9s %8s %8s %9s %10s %10s %9s\n", "", "", "bound", "", "", "",
                         "", "", currency + "/h");
}

std::string PricesText(const Problem& problem, const Plan& plan, const std::string& today) {
  std::string text;
  const planner::Hardware& hardware = plan.configuration.hardware;
  std::vector<const cost::Machine*> machines = {hardware.compute};
  if (hardware.memory != nullptr && hardware.memory != hardware.compute) {
    machines.push_back(hardware.memory);
  }
  for (const cost::Machine* machine : machines) {
    const cost::PriceAge age = cost::AgeOfPrice(problem.catalogue, machine->price, today);
    absl::StrAppend(&text, text.empty() ? "" : ", ", machine->name, " ",
                    cost::PriceKindName(machine->price.kind), " ", age.date,
                    age.old ? " (OLD)" : "");
  }
  return text;
}

std::string FoundText(double hit, double price) {
  return absl::StrFormat(", %.0f%% of prompt tokens found at %.3f/1M", 100 * hit, price);
}

// Describes the simulated figures. Their provenance is that of the formulas, above, and their own.
std::string SimulatedText(const Problem& problem, const planner::SimulatedFigures& figures) {
  const double percent = 100 * problem.slo.at;
  return absl::StrFormat(
      "    simulated: goodput %.2f/s at p%g%s; at %.2f requests/s %.1f tokens/s, TTFT p50 %.2f s, "
      "p%g %.2f s, TPOT p50 %.1f ms, p%g %.1f ms, %s/1M in %.3f, out %.3f%s; busy: compute "
      "%.0f%%, memory %.0f%%, coordinator %.0f%%; %d requests; assumed too: the coordinator's "
      "time%s\n",
      figures.goodput, percent,
      problem.load.rate > 0 && !figures.carries ? ", which does not carry the rate" : "",
      figures.rate, figures.tokens_per_second, figures.ttft_p50, percent, figures.ttft_at,
      1e3 * figures.tpot_p50, percent, 1e3 * figures.tpot_at, problem.catalogue.economics.currency,
      figures.input_price, figures.output_price,
      figures.hit > 0 ? FoundText(figures.hit, figures.cached_price) : "",
      100 * figures.compute_busy, 100 * figures.memory_busy, 100 * figures.coordinator_busy,
      figures.requests, figures.drawn_lengths ? ", the spread of lengths" : "");
}

std::string PlanText(const Problem& problem, const Plan& plan, const std::string& today) {
  const Evaluation& e = plan.evaluation;
  std::string text = absl::StrFormat(
      "%-34s %9.1f %9.2f %8.1f %8.2f %9.2f %10.3f %10.3f %9.1f  %s\n",
      planner::HardwareName(plan.configuration.hardware), e.tokens_per_second.value,
      e.goodput.value, 1e3 * e.times.step.value, e.ttft.value, e.price_per_hour.value,
      e.input_price.value, e.output_price.value, e.tokens_per_price.value, Constraint(e));
  absl::StrAppend(&text, "    ", planner::ArrangementName(plan.configuration),
                  absl::StrFormat(", %.0f rows", e.rows),
                  e.hit > 0                ? FoundText(e.hit, e.cached_price.value)
                  : problem.load.hit() > 0 ? ", keeps no prefixes"
                                           : "",
                  Carries(problem, plan) ? "" : "; does not carry the rate", "\n    ",
                  BasisText(e.basis), "\n    prices: ", PricesText(problem, plan, today), "\n");
  if (plan.simulated.has_value()) {
    absl::StrAppend(&text, SimulatedText(problem, *plan.simulated));
  } else if (!plan.why_not_simulated.empty()) {
    absl::StrAppend(
        &text, "    not simulated, and so behind those that were: ", plan.why_not_simulated, "\n");
  }
  if (!plan.why_not.empty()) {
    absl::StrAppend(&text, "    not runnable: ", plan.why_not, "\n");
  }
  return text;
}

std::string ListText(const Problem& problem, const std::string& title,
                     const std::vector<Plan>& plans, const std::string& today) {
  std::string text = absl::StrCat("\n", Terminal::Output().Bold(title), "\n");
  if (plans.empty()) {
    return absl::StrCat(text, "none\n");
  }
  absl::StrAppend(&text, Header(problem.catalogue.economics.currency));
  for (const Plan& plan : plans) {
    absl::StrAppend(&text, PlanText(problem, plan, today));
  }
  return text;
}

std::string StepText(const Plan& plan) {
  const cost::StepTimes& t = plan.evaluation.times;
  return absl::StrFormat(
      "  %s, %s\n    %.2f/h, %.2f requests/s at most, %.0f rows, a step of %.1f ms waits for %s; "
      "of a lane's layer: dense %.3f ms, attention %.3f ms, network %.3f ms\n    %s\n",
      planner::HardwareName(plan.configuration.hardware),
      planner::ArrangementName(plan.configuration), plan.evaluation.price_per_hour.value,
      plan.evaluation.goodput.value, plan.evaluation.rows, 1e3 * t.step.value,
      BottleneckName(t.bottleneck), 1e3 * t.slice.value, 1e3 * t.attention.value,
      1e3 * t.network.value, BasisText(plan.evaluation.basis));
}

std::string WhyItLost(const Problem& problem, const Plan& winner, const Plan& runner_up) {
  const Evaluation& a = winner.evaluation;
  const Evaluation& b = runner_up.evaluation;
  if (winner.simulated.has_value() && !runner_up.simulated.has_value()) {
    return absl::StrCat("It was not simulated, and stands behind those that were: ",
                        runner_up.why_not_simulated, ".");
  }
  if (winner.simulated.has_value() && runner_up.simulated.has_value() &&
      winner.simulated->carries && !runner_up.simulated->carries && problem.load.rate > 0) {
    return absl::StrFormat(
        "Simulated, it answers %.2f requests/s within the SLO, fewer than the %.2f of the load.",
        runner_up.simulated->goodput, problem.load.rate);
  }
  if (winner.simulated.has_value() && runner_up.simulated.has_value() && problem.load.rate > 0 &&
      !winner.simulated->carries) {
    return absl::StrFormat(
        "Simulated, neither carries the load within the SLO; it answers %.2f requests/s, the "
        "winner "
        "%.2f.",
        runner_up.simulated->goodput, winner.simulated->goodput);
  }
  if (problem.load.rate > 0 && a.carries && !b.carries && b.goodput.value >= problem.load.rate) {
    return absl::StrFormat(
        "It answers %.2f requests/s at most, too few above the %.2f of the load for queues and "
        "unequal requests: %s.",
        b.goodput.value, problem.load.rate, Constraint(b));
  }
  if (problem.load.rate > 0 && a.carries && !b.carries) {
    return absl::StrFormat("It answers %.2f requests/s, fewer than the %.2f of the load: %s.",
                           b.goodput.value, problem.load.rate, Constraint(b));
  }
  if (problem.load.rate > 0 && a.carries && a.price_per_hour.value == 0) {
    return absl::StrFormat("Both carry the load; it costs %.2f by the hour, the winner nothing.",
                           b.price_per_hour.value);
  }
  if (problem.load.rate > 0 && a.carries) {
    return absl::StrFormat("Both carry the load; it costs %.1f%% more by the hour.",
                           100 * (b.price_per_hour.value / a.price_per_hour.value - 1));
  }
  if (problem.load.rate > 0) {
    return absl::StrFormat("Neither carries the load; it answers %.1f%% fewer requests: %s.",
                           100 * (1 - b.goodput.value / a.goodput.value), Constraint(b));
  }
  if (a.price_per_hour.value == 0) {
    return absl::StrFormat(
        "It answers %.2f times the requests for %.2f by the hour, and the winner costs nothing "
        "(%s).",
        b.goodput.value / a.goodput.value, b.price_per_hour.value, Constraint(b));
  }
  return absl::StrFormat(
      "A request costs %.1f%% more: it answers %.2f times the requests for %.2f times the price "
      "(%s).",
      100 *
          (b.price_per_hour.value / b.goodput.value * a.goodput.value / a.price_per_hour.value - 1),
      b.goodput.value / a.goodput.value, b.price_per_hour.value / a.price_per_hour.value,
      Constraint(b));
}

}  // namespace

Json PlansToJson(const Problem& problem, const Plans& plans, const std::string& today) {
  return {{"model", problem.model.name},
          {"currency", problem.catalogue.economics.currency},
          {"evaluation", "analytic, steady state; simulated where it says so"},
          {"slo_percentile", 100 * problem.slo.at},
          {"today", today},
          {"load",
           {{"rate", problem.load.rate},
            {"input", problem.load.input},
            {"output", problem.load.output},
            {"hit", problem.load.hit()}}},
          {"shortfall", ShortfallToJson(problem, plans)},
          {"hardware", plans.hardware},
          {"looked_at", plans.looked_at},
          {"runnable", ListToJson(problem, plans.runnable, today)},
          {"not_runnable", ListToJson(problem, plans.others, today)},
          {"one_pool", ListToJson(problem, plans.one_pool, today)}};
}

std::string PlansText(const Problem& problem, const Plans& plans, const std::string& today) {
  const std::string rate =
      problem.load.rate > 0 ? absl::StrFormat("%g requests/s", problem.load.rate) : "all it can";
  const std::string found =
      problem.load.hit() > 0 ? absl::StrFormat(" (%.0f%% found)", 100 * problem.load.hit()) : "";
  std::string text = absl::StrFormat(
      "%s, %s of %g input%s and %g output tokens; %d choices of machines, %d looked at\n"
      "Analytic evaluation of the steady state: means, without queues, variance or failures. "
      "Goodput is a bound. Lines that begin with \"simulated\" have queues, unequal requests and "
      "the coordinator's time in them.\n",
      problem.model.name, rate, problem.load.input, found, problem.load.output, plans.hardware,
      plans.looked_at);
  absl::StrAppend(&text, ListText(problem, "Plans that this software runs", plans.runnable, today),
                  ListText(problem, "Baseline: the best one pool (attention on compute nodes)",
                           plans.one_pool, today),
                  ListText(problem, "Plans that this software does not run", plans.others, today));
  return text;
}

std::string ShortfallText(const Problem& problem, const Plans& plans) {
  const std::optional<planner::Shortfall> shortfall = planner::ShortfallOf(problem, plans.runnable);
  if (!shortfall.has_value()) {
    return "";
  }
  const planner::Configuration& nearest = plans.runnable.front().configuration;
  return absl::StrCat("no plan does what was asked for; the nearest that runs is ",
                      planner::HardwareName(nearest.hardware), " (",
                      planner::ArrangementName(nearest), "): ", shortfall->text);
}

std::string ExplainText(const Problem& problem, const Plans& plans) {
  const std::vector<Plan>& list = plans.runnable.empty() ? plans.others : plans.runnable;
  if (list.size() < 2) {
    return "\nThere is no runner-up: no other choice of machines holds the model and the SLO.\n";
  }
  return absl::StrCat("\nWhy the runner-up lost: ", WhyItLost(problem, list[0], list[1]), "\n",
                      StepText(list[0]), StepText(list[1]));
}

}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
#include "planner/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "cost/price.h"

namespace lamina::planner {
namespace {

constexpr int kHalvings = 5;  // How often the way to an end of the span is halved.

// Changes one quantity of a problem by a factor.
using Change = std::function<void(Problem& problem, double factor)>;

struct Quantity {
  std::string what;
  double value = 0;
  std::string unit;
  std::string by = "load";
  Change change;
};

std::string By(cost::Estimate estimate) {
  return std::string(cost::ProvenanceName(estimate.provenance));
}

void Scale(cost::Figure& figure, double factor) { figure.value *= factor; }

cost::Machine& MachineOf(Problem& problem, const std::string& name) {
  return *std::find_if(problem.catalogue.machines.begin(), problem.catalogue.machines.end(),
                       [&](const cost::Machine& machine) { return machine.name == name; });
}

void ScalePrice(cost::Price& price, double factor) {
  for (cost::Figure* figure :
       {&price.host, &price.card, &price.nic, &price.switch_port, &price.hour}) {
    Scale(*figure, factor);
  }
}

Quantity PriceOf(const Problem& problem, const cost::Machine& machine) {
  const cost::Price& price = machine.price;
  const bool bought = price.kind == cost::PriceKind::kBought;
  const double value = bought ? price.host.value + machine.devices * price.card.value +
                                    price.nic.value + price.switch_port.value
                              : price.hour.value;
  return {.what = absl::StrCat("price of ", machine.name),
          .value = value,
          .unit = absl::StrCat(problem.catalogue.economics.currency, bought ? "" : "/h"),
          .by = By(bought ? price.host.estimate() + price.card.estimate() + price.nic.estimate() +
                                price.switch_port.estimate()
                          : price.hour.estimate()),
          .change = [name = machine.name](Problem& changed, double factor) {
            ScalePrice(MachineOf(changed, name).price, factor);
          }};
}

Quantity BandwidthOfDevice(const cost::Device& device) {
  return {.what = absl::StrCat("memory bandwidth of ", device.name),
          .value = device.bandwidth.value / 1e9,
          .unit = "GB/s",
          .by = By(device.bandwidth.estimate()),
          .change = [name = device.name](Problem& changed, double factor) {
            for (cost::Device& one : changed.catalogue.devices) {
              if (one.name == name) {
                Scale(one.bandwidth, factor);
              }
            }
          }};
}

Quantity BandwidthOfLink(const cost::Link& link) {
  return {.what = absl::StrCat("bandwidth of ", link.name),
          .value = link.bandwidth.value / 1e9,
          .unit = "GB/s",
          .by = By(link.bandwidth.estimate()),
          .change = [name = link.name](Problem& changed, double factor) {
            for (cost::Link& one : changed.catalogue.links) {
              if (one.name == name) {
                Scale(one.bandwidth, factor);
              }
            }
          }};
}

// Times that were measured do not follow the catalogue's bandwidth.
bool IsCalibrated(const Problem& problem, const cost::Device& device) {
  const auto it = problem.calibrations.find(device.name);
  return it != problem.calibrations.end() &&
         !(it->second.slices.empty() && it->second.attentions.empty());
}

std::vector<Quantity> QuantitiesOf(const Problem& problem, const Hardware& hardware) {
  const cost::Device* compute = problem.catalogue.FindDevice(hardware.compute->device);
  const cost::Device* memory = hardware.MemoryDevice(problem.catalogue);
  std::vector<Quantity> quantities = {PriceOf(problem, *hardware.compute)};
  if (!IsCalibrated(problem, *compute)) {
    quantities.push_back(BandwidthOfDevice(*compute));
  }
  if (hardware.memory != nullptr && hardware.memory != hardware.compute) {
    quantities.push_back(PriceOf(problem, *hardware.memory));
  }
  if (memory != nullptr) {
    if (memory != compute && !IsCalibrated(problem, *memory)) {
      quantities.push_back(BandwidthOfDevice(*memory));
    }
    quantities.push_back(BandwidthOfLink(*problem.catalogue.FindLink(hardware.memory_link())));
  }
  quantities.push_back({.what = "prompt tokens of a request",
                        .value = problem.load.input,
                        .unit = "tokens",
                        .change = [](Problem& changed, double factor) {
                          changed.load.input *= factor;
                          changed.load.prefix *= factor;  // The hit rate stays.
                        }});
  quantities.push_back(
      {.what = "generated tokens of a request",
       .value = problem.load.output,
       .unit = "tokens",
       .change = [](Problem& changed, double factor) { changed.load.output *= factor; }});
  if (problem.load.hit() > 0) {
    quantities.push_back({.what = "prefix hit rate",
                          .value = problem.load.hit(),
                          .unit = "of prompt tokens",
                          .change = [](Problem& changed, double factor) {
                            changed.load.prefix =
                                std::min(changed.load.input, factor * changed.load.prefix);
                          }});
  }
  return quantities;
}

struct Winner {
  std::string machines;  // Without their numbers: these follow the load.
  std::string name;
  double cost = 0;
  cost::Provenance basis = cost::Provenance::kMeasured;
};

std::string KindsOf(const Hardware& hardware) {
  return absl::StrCat(hardware.compute->name, "+",
                      hardware.on_hosts            ? "its host"
                      : hardware.memory == nullptr ? ""
                                                   : hardware.memory->name);
}

// Machines cost as much when the load is low: by the catalogue's mean load, as prices of tokens.
double CostOfRequest(const Problem& problem, const Evaluation& evaluation) {
  const double rate = problem.load.rate > 0 ? std::min(problem.load.rate, evaluation.goodput.value)
                                            : evaluation.goodput.value;
  const double served = rate * cost::MeanLoad(problem.catalogue.economics).value;
  return evaluation.price_per_hour.value / 3600 / served;
}

Winner WinnerFrom(const Problem& problem, const Plan& plan) {
  return {.machines = KindsOf(plan.configuration.hardware),
          .name = HardwareName(plan.configuration.hardware),
          .cost = CostOfRequest(problem, plan.evaluation),
          .basis = WorstOf(plan.evaluation.basis)};
}

const std::vector<Plan>& ListOf(const Plans& plans, bool runnable) {
  return runnable ? plans.runnable : plans.others;
}

std::optional<Winner> WinnerOf(const Problem& problem, const WhyNot& why_not, bool runnable) {
  const absl::StatusOr<Plans> plans = Optimise(problem, 1, why_not, Search::kBounded);
  if (!plans.ok() || ListOf(*plans, runnable).empty()) {
    return std::nullopt;
  }
  return WinnerFrom(problem, ListOf(*plans, runnable).front());
}

class Study {
 public:
  Study(const Problem& problem, const WhyNot& why_not, const Winner& now, bool runnable)
      : problem_(problem), why_not_(why_not), now_(now), runnable_(runnable) {}

  Sensitivity Of(const Quantity& quantity) const {
    Sensitivity result{
        .what = quantity.what, .value = quantity.value, .unit = quantity.unit, .by = quantity.by};
    const auto lower = At(quantity, 1 - kSensitivitySpan);
    const auto upper = At(quantity, 1 + kSensitivitySpan);
    result.lower = EndOf(lower);
    result.upper = EndOf(upper);
    result.basis = Worse(now_.basis, Worse(result.lower.basis, result.upper.basis));
    double nearest = 0;
    for (const double end : {1 - kSensitivitySpan, 1 + kSensitivitySpan}) {
      const auto& winner = end < 1 ? lower : upper;
      if (!winner.has_value() || winner->machines == now_.machines) {
        continue;
      }
      const double change = ChangeBetween(quantity, end);
      if (nearest == 0 || std::abs(change - 1) < std::abs(nearest - 1)) {
        nearest = change;
        result.new_winner = winner->name;
      }
    }
    if (nearest != 0) {
      result.winner_changes_at = nearest * quantity.value;
    }
    return result;
  }

 private:
  // The problem's pointers into its own catalogue do not outlive it: plans are made and read here.
  std::optional<Winner> At(const Quantity& quantity, double factor) const {
    Problem changed = problem_;
    quantity.change(changed, factor);
    const WhyNot why_not = why_not_;
    return WinnerOf(changed, why_not, runnable_);
  }
  Sensitivity::End EndOf(const std::optional<Winner>& winner) const {
    if (!winner.has_value()) {
      return {};
    }
    const bool alike = winner->cost == now_.cost;  // Both may be 0.
    return {alike ? 1 : winner->cost / now_.cost, winner->name, Worse(winner->basis, now_.basis)};
  }
  double ChangeBetween(const Quantity& quantity, double end) const {
    double same = 1;
    double other = end;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (same + other) / 2;
      const auto winner = At(quantity, middle);
      (winner.has_value() && winner->machines == now_.machines ? same : other) = middle;
    }
    return other;
  }

  const Problem& problem_;
  const WhyNot& why_not_;
  const Winner& now_;
  const bool runnable_;
};

void AddPoint(const Problem& problem, double tpot, const std::vector<Plan>& plans,
              std::vector<ParetoPoint>& points) {
  if (plans.empty()) {
    return;
  }
  const Plan& best = plans.front();
  const ParetoPoint point = {.tpot_seconds = std::min(tpot, best.evaluation.times.step.value),
                             .cost = CostOfRequest(problem, best.evaluation),
                             .machines = HardwareName(best.configuration.hardware),
                             .basis = WorstOf(best.evaluation.basis)};
  // Times grow from call to call: a later plan is one of the front if it is cheaper.
  if (points.empty() || point.cost < points.back().cost * (1 - 1e-9)) {
    points.push_back(point);
  }
}

}  // namespace

absl::StatusOr<SensitivityStudy> SensitivityOf(const Problem& problem, const Plans& plans,
                                               const WhyNot& why_not) {
  const bool runnable = !plans.runnable.empty();
  LAMINA_ASSIGN_OR_RETURN(const Plans by_formula, Optimise(problem, 1, why_not, Search::kBounded));
  const std::vector<Plan>& list = ListOf(by_formula, runnable);
  if (list.empty()) {
    return absl::NotFoundError("no plan to vary: none is there by the formulas alone");
  }
  const Configuration& best = list.front().configuration;
  const Winner now = WinnerFrom(problem, list.front());
  const std::vector<Plan>& first = ListOf(plans, runnable);
  SensitivityStudy result{
      .machines = now.name,
      .arrangement = ArrangementName(best),
      .is_first = first.empty() || HardwareName(first.front().configuration.hardware) == now.name};
  const Study study(problem, why_not, now, runnable);
  for (const Quantity& quantity : QuantitiesOf(problem, best.hardware)) {
    result.quantities.push_back(study.Of(quantity));
  }
  return result;
}

Pareto ParetoOf(const Problem& problem, const WhyNot& why_not) {
  constexpr int kPoints = 12;
  constexpr double kShortest = 0.005;
  constexpr double kLongest = 0.5;
  Pareto pareto;
  for (int i = 0; i < kPoints; ++i) {
    Problem changed = problem;
    changed.slo.tpot_seconds = kShortest * std::pow(kLongest / kShortest, i / (kPoints - 1.0));
    const absl::StatusOr<Plans> plans = Optimise(changed, 1, why_not, Search::kBounded);
    if (plans.ok()) {
      AddPoint(changed, changed.slo.tpot_seconds, plans->runnable, pareto.runnable);
      AddPoint(changed, changed.slo.tpot_seconds, plans->others, pareto.others);
      AddPoint(changed, changed.slo.tpot_seconds, plans->one_pool, pareto.one_pool);
    }
  }
  return pareto;
}

}  // namespace lamina::planner

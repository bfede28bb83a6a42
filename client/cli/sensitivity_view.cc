// SPDX-License-Identifier: Apache-2.0
//
// The parts of plan_view.h that are not about one plan.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/plan_view.h"

namespace lamina::cli {
namespace {

using planner::ParetoPoint;
using planner::Sensitivity;
using planner::SensitivityStudy;

constexpr double kWidth = 640;
constexpr double kHeight = 400;
constexpr double kLeft = 70;
constexpr double kRight = 20;
constexpr double kTop = 40;
constexpr double kBottom = 50;

std::string EndText(const Sensitivity::End& end) {
  return end.machines.empty() ? "no plan" : absl::StrFormat("%.2f x, %s", end.cost, end.machines);
}

Json EndToJson(const Sensitivity::End& end) {
  return end.machines.empty() ? Json()
                              : Json{{"cost", end.cost},
                                     {"machines", end.machines},
                                     {"basis", cost::ProvenanceName(end.basis)}};
}

// A range of positive values, drawn by its logarithm.
class Axis {
 public:
  Axis(double low, double high, double from, double to)
      : low_(std::log(low)), high_(std::log(std::max(high, low * 1.01))), from_(from), to_(to) {}
  double At(double value) const {
    return from_ + (to_ - from_) * (std::log(value) - low_) / (high_ - low_);
  }
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    for (int i = 0; i <= 4; ++i) {
      ticks.push_back(std::exp(low_ + (high_ - low_) * i / 4));
    }
    return ticks;
  }

 private:
  double low_, high_, from_, to_;
};

using Series = std::pair<const char*, const std::vector<ParetoPoint>*>;

std::string SeriesSvg(const Series& series, const char* color, int index, const Axis& x,
                      const Axis& y) {
  std::string line;
  std::string points;
  for (const ParetoPoint& point : *series.second) {
    const double px = x.At(1e3 * point.tpot_seconds);
    const double py = y.At(1e3 * point.cost);
    absl::StrAppendFormat(&line, "%.1f,%.1f ", px, py);
    absl::StrAppendFormat(
        &points,
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s, figures %s at "
        "worst</title></circle>\n",
        px, py, color, point.machines, cost::ProvenanceName(point.basis));
  }
  return absl::StrFormat(
             "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"/>\n"
             "<text x=\"%.0f\" y=\"%d\" fill=\"%s\">%s</text>\n",
             line, color, kWidth - 190, 58 + 14 * index, color, series.first) +
         points;
}

std::string FrameSvg(const std::string& title, const std::string& y_label, const Axis& x,
                     const Axis& y) {
  std::string svg = absl::StrFormat(
      "<rect width=\"%.0f\" height=\"%.0f\" fill=\"white\"/>\n"
      "<text x=\"%.0f\" y=\"22\" font-size=\"13\">%s</text>\n"
      "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">ms per token, mean</text>\n"
      "<text transform=\"translate(14 %.0f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
      kWidth, kHeight, kLeft, title, kWidth / 2, kHeight - 10, kHeight / 2, y_label);
  for (const double tick : x.Ticks()) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.3g</text>\n",
                          x.At(tick), kHeight - kBottom + 15, tick);
  }
  for (const double tick : y.Ticks()) {
    absl::StrAppendFormat(
        &svg,
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n",
        kLeft, kWidth - kRight, y.At(tick), y.At(tick), kLeft - 4, y.At(tick) + 3, tick);
  }
  return svg;
}

}  // namespace

Json SensitivityPlanToJson(const SensitivityStudy& study) {
  return {{"machines", study.machines},
          {"arrangement", study.arrangement},
          {"is_first_plan", study.is_first},
          {"by", "formulas"},
          {"span", planner::kSensitivitySpan}};
}

Json SensitivityToJson(const SensitivityStudy& study) {
  Json list = Json::array();
  for (const Sensitivity& one : study.quantities) {
    list.push_back({{"what", one.what},
                    {"value", one.value},
                    {"unit", one.unit},
                    {"by", one.by},
                    {"lower", EndToJson(one.lower)},
                    {"upper", EndToJson(one.upper)},
                    {"winner_changes_at",
                     one.winner_changes_at.has_value() ? Json(*one.winner_changes_at) : Json()},
                    {"new_winner", one.new_winner},
                    {"basis", cost::ProvenanceName(one.basis)}});
  }
  return list;
}

std::string SensitivityText(const SensitivityStudy& study) {
  const double percent = 100 * planner::kSensitivitySpan;
  std::string text = absl::StrFormat(
      "\nSensitivity, by the formulas alone: the price of a request of their best plan, %s (%s)%s, "
      "with each value %.0f%% lower and higher; \"by\" says where the value is from, \"figures\" "
      "the worst of what prices follow from\n%-34s %16s %-9s  %-38s %-38s %-9s winner changes\n",
      study.machines, study.arrangement,
      study.is_first ? "" : ", which is not the first above since simulations think less of it",
      percent, "what", "now", "by", "lower", "higher", "figures");
  for (const Sensitivity& one : study.quantities) {
    const std::string change =
        one.winner_changes_at.has_value()
            ? absl::StrFormat("at %.4g: %s", *one.winner_changes_at, one.new_winner)
            : absl::StrFormat("none within %.0f%%", percent);
    absl::StrAppendFormat(&text, "%-34s %16s %-9s  %-38s %-38s %-9s %s\n", one.what,
                          absl::StrFormat("%.4g %s", one.value, one.unit), one.by,
                          EndText(one.lower), EndText(one.upper), cost::ProvenanceName(one.basis),
                          change);
  }
  return text;
}

std::string ParetoSvg(const planner::Problem& problem, const planner::Pareto& pareto) {
  const std::vector<Series> all = {{"plans that run", &pareto.runnable},
                                   {"plans that do not run", &pareto.others},
                                   {"one pool", &pareto.one_pool}};
  constexpr const char* kColors[] = {"#1f77b4", "#999999", "#ff7f0e"};
  double lows[] = {1e300, 1e300};
  double highs[] = {0, 0};
  cost::Provenance basis = cost::Provenance::kMeasured;
  for (const Series& series : all) {
    for (const ParetoPoint& point : *series.second) {
      const double values[] = {1e3 * point.tpot_seconds, 1e3 * point.cost};
      basis = Worse(basis, point.basis);
      for (int i = 0; i < 2; ++i) {
        lows[i] = std::min(lows[i], values[i]);
        highs[i] = std::max(highs[i], values[i]);
      }
    }
  }
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      kWidth, kHeight);
  if (highs[0] > 0) {
    const Axis x(lows[0], highs[0], kLeft, kWidth - kRight);
    const Axis y(lows[1], highs[1], kHeight - kBottom, kTop);
    absl::StrAppend(
        &svg,
        FrameSvg(absl::StrCat(problem.model.name, ": cost against latency (formulas; figures ",
                              cost::ProvenanceName(basis), " at worst)"),
                 absl::StrCat(problem.catalogue.economics.currency, " for 1000 requests"), x, y));
    for (int i = 0; i < 3; ++i) {
      if (!all[static_cast<size_t>(i)].second->empty()) {
        absl::StrAppend(&svg, SeriesSvg(all[static_cast<size_t>(i)], kColors[i], i, x, y));
      }
    }
  }
  return svg + "</svg>\n";
}

}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
#include "control/reported_figures.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lamina::control {

double ReportedFigures::Take(absl::string_view name, double figure) {
  return std::isfinite(figure) && figure >= 0 ? figure : Refuse(name, figure);
}

double ReportedFigures::TakeSigned(absl::string_view name, double figure) {
  return std::isfinite(figure) ? figure : Refuse(name, figure);
}

double ReportedFigures::Refuse(absl::string_view name, double figure) {
  if (refused_.empty()) {
    refused_ = absl::StrCat(name, " ", figure);
  }
  return 0;
}

}  // namespace lamina::control

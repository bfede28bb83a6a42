// SPDX-License-Identifier: Apache-2.0
#include "cost/quantity.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::cost {
namespace {

using Suffixes = std::vector<std::pair<std::string, double>>;

Suffixes SuffixesOf(Unit unit, absl::string_view currency) {
  const std::string money(currency);
  switch (unit) {
    case Unit::kNone:
      return {{"", 1}};
    case Unit::kBytes:
      return {{"GB", 1e9}, {"GiB", 1073741824.0}, {"MB", 1e6}, {"MiB", 1048576.0}, {"TB", 1e12}};
    case Unit::kBytesPerSecond:
      return {{"GB/s", 1e9}, {"TB/s", 1e12}, {"MB/s", 1e6}, {"Gbit/s", 1.25e8}};
    case Unit::kFlops:
      return {{"TFLOPS", 1e12}, {"GFLOPS", 1e9}, {"PFLOPS", 1e15}};
    case Unit::kWatts:
      return {{"W", 1}, {"kW", 1000}};
    case Unit::kSeconds:
      return {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
    case Unit::kMoney:
      return {{money, 1}};
    case Unit::kMoneyPerHour:
      return {{money + "/h", 1}};
    case Unit::kMoneyPerKilowattHour:
      return {{money + "/kWh", 1}};
  }
  return {};
}

bool IsMoney(Unit unit) {
  return unit == Unit::kMoney || unit == Unit::kMoneyPerHour || unit == Unit::kMoneyPerKilowattHour;
}

// "17500 EUR" where prices are in USD: the number is not wrong, but nothing here converts it.
bool NamesAnotherCurrency(absl::string_view suffix, absl::string_view currency) {
  const absl::string_view code = suffix.substr(0, 3);
  return code.size() == 3 && code != currency &&
         std::all_of(code.begin(), code.end(), absl::ascii_isupper);
}

}  // namespace

absl::StatusOr<double> ParseQuantity(absl::string_view text, Unit unit,
                                     absl::string_view currency) {
  const absl::string_view all = absl::StripAsciiWhitespace(text);
  const size_t end = std::min(all.find_first_not_of("0123456789.+-eE"), all.size());
  // "1e3" is a number; the E of "1 EUR" is behind a space, and a unit begins with no digit.
  const absl::string_view number = all.substr(0, end);
  const absl::string_view suffix = absl::StripAsciiWhitespace(all.substr(end));
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !std::isfinite(value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' does not begin with a number of zero or more"));
  }
  std::vector<std::string> known;
  for (const auto& [name, factor] : SuffixesOf(unit, currency)) {
    if (name == suffix && std::isfinite(value * factor)) {
      return value * factor;
    }
    if (name == suffix) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is more than can be counted"));
    }
    known.push_back(name);
  }
  if (unit == Unit::kNone) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' has the unit '", suffix, "'; give a number alone"));
  }
  if (IsMoney(unit) && NamesAnotherCurrency(suffix, currency)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not in ", currency,
                     ", the catalogue's currency; convert it, and say the "
                     "rate in the source"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' has ",
                   suffix.empty() ? "no unit" : absl::StrCat("the unknown unit '", suffix, "'"),
                   "; write it with one of ", absl::StrJoin(known, ", ")));
}

}  // namespace lamina::cost

// SPDX-License-Identifier: Apache-2.0
#include "cost/catalogue.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lamina::cost {
namespace {

template <typename Entry>
const Entry* Find(const std::vector<Entry>& entries, absl::string_view name) {
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const Entry& entry) { return entry.name == name; });
  return it == entries.end() ? nullptr : &*it;
}

}  // namespace

absl::string_view PriceKindName(PriceKind kind) {
  switch (kind) {
    case PriceKind::kBought:
      return "bought";
    case PriceKind::kOnDemand:
      return "on demand";
    case PriceKind::kSpot:
      return "spot";
  }
  return "?";
}

const Device* Catalogue::FindDevice(absl::string_view name) const { return Find(devices, name); }
const Link* Catalogue::FindLink(absl::string_view name) const { return Find(links, name); }
const Machine* Catalogue::FindMachine(absl::string_view name) const { return Find(machines, name); }
const ModelShape* Catalogue::FindModel(absl::string_view name) const { return Find(models, name); }

absl::StatusOr<int64_t> ParseDate(absl::string_view date) {
  int year = 0;
  int month = 0;
  int day = 0;
  const bool spelled = date.size() == 10 && date[4] == '-' && date[7] == '-' &&
                       std::count_if(date.begin(), date.end(), absl::ascii_isdigit) == 8 &&
                       absl::SimpleAtoi(date.substr(0, 4), &year) &&
                       absl::SimpleAtoi(date.substr(5, 2), &month) &&
                       absl::SimpleAtoi(date.substr(8, 2), &day);
  const std::chrono::year_month_day day_of_calendar(
      std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
      std::chrono::day(static_cast<unsigned>(day)));
  if (!spelled || !day_of_calendar.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", date, "' is not a date; write it like 2026-11-24"));
  }
  return std::chrono::sys_days(day_of_calendar).time_since_epoch().count();
}

PriceAge AgeOfPrice(const Catalogue& catalogue, const Price& price, absl::string_view today) {
  std::vector<const Figure*> figures = {&price.hour};
  if (price.kind == PriceKind::kBought) {
    figures = {&price.host, &price.card, &price.nic, &price.switch_port};
  }
  PriceAge age;
  for (const Figure* figure : figures) {
    const auto source = catalogue.sources.find(figure->source);
    if (source != catalogue.sources.end() && (age.date.empty() || source->second.date < age.date)) {
      age.date = source->second.date;
    }
  }
  const absl::StatusOr<int64_t> then = ParseDate(age.date);
  const absl::StatusOr<int64_t> now = ParseDate(today);
  age.old = then.ok() && now.ok() && *now - *then > kPriceDaysMax;
  return age;
}

}  // namespace lamina::cost

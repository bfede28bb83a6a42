// SPDX-License-Identifier: Apache-2.0
#include "common/units.h"

#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace lamina {
namespace {

struct Unit {
  absl::string_view name;
  double factor;
};

constexpr std::array<Unit, 10> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"KiB", 0x1p10},
                                              {"MiB", 0x1p20},
                                              {"GiB", 0x1p30},
                                              {"TiB", 0x1p40},
                                              {"KB", 1e3},
                                              {"MB", 1e6},
                                              {"GB", 1e9},
                                              {"TB", 1e12}}};
constexpr std::array<Unit, 6> kTimeUnits = {
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}}};

absl::StatusOr<int64_t> ParseQuantity(absl::string_view text, absl::Span<const Unit> units,
                                      absl::string_view example) {
  const absl::string_view all = absl::StripAsciiWhitespace(text);
  const size_t end = std::min(all.find_first_not_of("0123456789."), all.size());
  const absl::string_view unit = absl::StripLeadingAsciiWhitespace(all.substr(end));
  double number = 0;
  for (const Unit& candidate : units) {
    if (candidate.name != unit) {
      continue;
    }
    const bool ok = absl::SimpleAtod(all.substr(0, end), &number);
    const double value = number * candidate.factor;
    if (!ok || !std::isfinite(value) || value >= 0x1p63) {
      break;
    }
    return static_cast<int64_t>(value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a quantity; write it like ", example));
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  auto value = ParseQuantity(text, kByteUnits, "512MiB or 2GiB");
  if (!value.ok()) {
    return value.status();
  }
  return static_cast<uint64_t>(*value);
}

absl::StatusOr<Nanos> ParseDuration(absl::string_view text) {
  return ParseQuantity(text, kTimeUnits, "250ms or 5s");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<absl::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t index = 0;
  double value = static_cast<double>(bytes);
  while (value >= 1024 && index + 1 < kNames.size()) {
    value /= 1024;
    ++index;
  }
  return index == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kNames[index]);
}

}  // namespace lamina

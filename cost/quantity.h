// SPDX-License-Identifier: Apache-2.0
//
// ParseQuantity: numbers with their unit, as a catalogue writes them: "1935 GB/s", "312 TFLOPS",
// "400 W", "17500 USD", "0.12 USD/kWh".
//
// Threading: pure.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lamina::cost {

enum class Unit {
  kNone,  // A share or a count: a number alone.
  kBytes,
  kBytesPerSecond,
  kFlops,
  kWatts,
  kSeconds,
  kMoney,
  kMoneyPerHour,
  kMoneyPerKilowattHour,
};

// Returns the number in bytes, bytes/s, operations/s, watts, seconds or `currency`. The number is
// finite and not negative. Units of money are those of `currency`, three capital letters.
//
// Errors: kInvalidArgument  no number, no unit or another one (lists those that are known here), or
//                           another currency than the catalogue's.
absl::StatusOr<double> ParseQuantity(absl::string_view text, Unit unit, absl::string_view currency);

}  // namespace lamina::cost

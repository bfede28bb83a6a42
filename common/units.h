// SPDX-License-Identifier: Apache-2.0
//
// Sizes and durations as people write them: "512MiB", "2GiB", "250ms", "5s".

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"

namespace lamina {

constexpr uint64_t KiB(uint64_t n) { return n << 10; }
constexpr uint64_t MiB(uint64_t n) { return n << 20; }
constexpr uint64_t GiB(uint64_t n) { return n << 30; }

// Takes a decimal number with an optional unit: B, KiB, MiB, GiB, TiB, or KB, MB, GB, TB (powers of
// 1000). Errors: kInvalidArgument for anything else, and for more than 2^63 bytes.
absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);

// Takes a decimal number with a unit: ns, us, ms, s, min, h.
absl::StatusOr<Nanos> ParseDuration(absl::string_view text);

// "1.5 GiB", "23.0 KiB", "17 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace lamina

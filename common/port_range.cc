// SPDX-License-Identifier: Apache-2.0
#include "common/port_range.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lamina {
namespace {

bool ParsePort(absl::string_view text, uint16_t& port) {
  uint32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 1 || number > 65535) {
    return false;
  }
  port = static_cast<uint16_t>(number);
  return true;
}

}  // namespace

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  const bool is_one = text.find('-') == absl::string_view::npos;
  PortRange range;
  if (!ParsePort(parts.first, range.first) ||
      !ParsePort(is_one ? parts.first : parts.second, range.last) || range.last < range.first) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not a range of ports like 23000-23099"));
  }
  return range;
}

std::string ToString(const PortRange& range) { return absl::StrCat(range.first, "-", range.last); }

}  // namespace lamina

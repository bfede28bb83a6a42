// SPDX-License-Identifier: Apache-2.0
#include "common/link_options.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/shared_bus.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina {
namespace {

struct Option {
  std::function<bool(absl::string_view)> parse;
  std::string allowed;
};

Option Delay(Nanos& out) {
  return {[&out](absl::string_view text) {
            const absl::StatusOr<Nanos> duration = ParseDuration(text);
            out = duration.value_or(0);
            return duration.ok() && out >= 0 && out <= kLinkDelayMost;
          },
          "a time from 0 to 60s, like 20us"};
}

Option Share(double& out) {
  return {[&out](absl::string_view text) {
            return absl::SimpleAtod(text, &out) && out >= 0 && out <= 1;
          },
          "a share from 0 to 1"};
}

Option Count(uint64_t& out) {
  return {[&out](absl::string_view text) { return absl::SimpleAtoi(text, &out); },
          "a whole number"};
}

Option Bandwidth(uint64_t& out) {
  return {[&out](absl::string_view text) {
            const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
            out = bytes.value_or(0);
            return bytes.ok() && out >= kLinkBandwidthLeast;
          },
          absl::StrCat("bytes per second, at least ", FormatBytes(kLinkBandwidthLeast),
                       ", like 100MB; without it the link is as fast as the one below")};
}

Option BusName(std::string& out) {
  return {[&out](absl::string_view text) {
            out = std::string(text);
            return IsBusName(text);
          },
          "a name of letters, digits, '-', '_' and '.'"};
}

absl::Status Parse(absl::string_view name, absl::string_view text,
                   const std::map<std::string, Option>& known) {
  std::set<std::string> seen;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, absl::string_view> given =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto option = known.find(given.first);
    if (option == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": unknown option \"", given.first, "\"; known are ",
          absl::StrJoin(known, ", ",
                        [](std::string* out, const auto& one) { out->append(one.first); })));
    }
    if (!seen.insert(given.first).second) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", given.first, " is given twice"));
    }
    if (!option->second.parse(given.second)) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", given.first, " cannot be \"",
                                                     given.second, "\"; it is ",
                                                     option->second.allowed));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ThrottleOptions> ParseThrottle(absl::string_view text) {
  ThrottleOptions options;
  LAMINA_RETURN_IF_ERROR(Parse("throttle", text,
                               {{"bandwidth", Bandwidth(options.bytes_per_second)},
                                {"latency", Delay(options.latency)},
                                {"jitter", Delay(options.jitter)},
                                {"seed", Count(options.seed)},
                                {"bus", BusName(options.bus)}}));
  if (!options.bus.empty() && options.bytes_per_second == 0) {
    return absl::InvalidArgumentError("throttle: a bus needs a bandwidth");
  }
  return options;
}

std::string WithBusDirection(absl::string_view uri, absl::string_view direction) {
  constexpr absl::string_view kKey = "bus=";
  const size_t close = uri.find(")+");
  const size_t key = uri.substr(0, close == absl::string_view::npos ? 0 : close).find(kKey);
  if (key == absl::string_view::npos) {
    return std::string(uri);
  }
  const size_t end = std::min(uri.find(',', key), close);
  return absl::StrCat(uri.substr(0, end), ".", direction, uri.substr(end));
}

absl::StatusOr<FaultOptions> ParseFault(absl::string_view text) {
  FaultOptions options;
  LAMINA_RETURN_IF_ERROR(Parse("fault", text,
                               {{"delay", Delay(options.delay)},
                                {"drop", Share(options.drop)},
                                {"corrupt", Share(options.corrupt)},
                                {"cut", Count(options.cut)},
                                {"seed", Count(options.seed)}}));
  return options;
}

}  // namespace lamina

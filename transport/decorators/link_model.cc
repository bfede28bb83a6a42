// SPDX-License-Identifier: Apache-2.0
#include "transport/decorators/link_model.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/units.h"

namespace lamina::transport {
namespace {

constexpr double kNanosPerSecond = 1e9;

Nanos Draw(Prng& prng, Nanos most) {
  return most == 0 ? 0 : static_cast<Nanos>(prng.Below(static_cast<uint64_t>(most) + 1));
}

using Parse = std::function<bool(absl::string_view)>;

Parse ToNanos(Nanos& out) {
  return [&out](absl::string_view text) {
    const absl::StatusOr<Nanos> duration = ParseDuration(text);
    out = duration.value_or(0);
    return duration.ok() && out >= 0 && out <= Seconds(60);
  };
}

Parse ToShare(double& out) {
  return [&out](absl::string_view text) {
    return absl::SimpleAtod(text, &out) && out >= 0 && out <= 1;
  };
}

Parse ToCount(uint64_t& out) {
  return [&out](absl::string_view text) { return absl::SimpleAtoi(text, &out); };
}

Parse ToBytes(uint64_t& out) {
  return [&out](absl::string_view text) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
    out = bytes.value_or(0);
    return bytes.ok() && out > 0;
  };
}

absl::Status ParseOptions(absl::string_view name, absl::string_view text,
                          const std::map<std::string, Parse>& known) {
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, absl::string_view> option =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto parse = known.find(option.first);
    if (parse == known.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": unknown option \"", option.first, "\"; known are ",
          absl::StrJoin(known, ", ",
                        [](std::string* out, const auto& one) { out->append(one.first); })));
    }
    if (!parse->second(option.second)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", option.first, " cannot be \"", option.second, "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace

Throttle::Throttle(const ThrottleOptions& options) : options_(options), prng_(options.seed) {}

PutFate Throttle::Judge(uint64_t bytes, Nanos now) {
  free_at_ = std::max(free_at_, static_cast<double>(now));
  if (options_.bytes_per_second > 0) {
    free_at_ += static_cast<double>(bytes) * kNanosPerSecond /
                static_cast<double>(options_.bytes_per_second);
  }
  const Nanos due = static_cast<Nanos>(free_at_) + options_.latency + Draw(prng_, options_.jitter);
  last_due_ = std::max(last_due_, due);
  return {.due = last_due_};
}

Fault::Fault(const FaultOptions& options) : options_(options), prng_(options.seed) {}

PutFate Fault::Judge(uint64_t, Nanos now) {
  ++puts_;
  PutFate fate{.due = now + Draw(prng_, options_.delay)};
  // Always drawn, so that one option does not change what another one draws.
  fate.dropped = prng_.Chance(options_.drop);
  fate.corrupt = prng_.Chance(options_.corrupt);
  fate.dropped = fate.dropped || (options_.cut > 0 && puts_ >= options_.cut);
  return fate;
}

absl::StatusOr<std::unique_ptr<LinkModel>> MakeLinkModel(absl::string_view name,
                                                         absl::string_view options) {
  if (name == "throttle") {
    ThrottleOptions throttle;
    LAMINA_RETURN_IF_ERROR(ParseOptions(name, options,
                                        {{"bandwidth", ToBytes(throttle.bytes_per_second)},
                                         {"latency", ToNanos(throttle.latency)},
                                         {"jitter", ToNanos(throttle.jitter)},
                                         {"seed", ToCount(throttle.seed)}}));
    return std::make_unique<Throttle>(throttle);
  }
  if (name == "fault") {
    FaultOptions fault;
    LAMINA_RETURN_IF_ERROR(ParseOptions(name, options,
                                        {{"delay", ToNanos(fault.delay)},
                                         {"drop", ToShare(fault.drop)},
                                         {"corrupt", ToShare(fault.corrupt)},
                                         {"cut", ToCount(fault.cut)},
                                         {"seed", ToCount(fault.seed)}}));
    return std::make_unique<Fault>(fault);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown decorator \"", name, "\"; known are throttle, fault"));
}

}  // namespace lamina::transport

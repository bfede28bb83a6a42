// SPDX-License-Identifier: Apache-2.0
#include "transport/link_probe.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "transport/put_all.h"

namespace lamina::transport {
namespace {

constexpr size_t kRoundsMin = 3;
constexpr size_t kRoundsMax = 33;
constexpr Nanos kRoundsTime = Millis(20);
constexpr size_t kPutsMax = 16;  // The most Puts of a burst.
constexpr Nanos kPutsTime = Millis(10);
// A burst takes at least so many times the way there, which counts, so that the way is little of
// it.
constexpr double kWaysMin = 16;
// The first is one Put; one may have a bad moment, and one sizes the others.
constexpr size_t kBurstsMin = 3;
constexpr size_t kBurstsMax = 8;
constexpr Nanos kBurstsTime = Millis(20);
constexpr uint64_t kLast = UINT64_MAX;

absl::Status Ask(Transport& transport, const LinkAsker& asker, absl::Span<const std::byte> bytes,
                 uint64_t value, const WaitOptions& wait) {
  const SignalUpdate signal{.word = asker.ask_word, .value = value};
  return PutAll(transport, *asker.peer, asker.offset, bytes, &signal, wait);
}

absl::Status AwaitAnswer(Transport& transport, const LinkAsker& asker, uint64_t value,
                         const WaitOptions& wait) {
  const std::array come = {SignalCondition{.word = asker.answer_word, .at_least = value}};
  return WaitInNaps(transport, *asker.region, come, wait).status();
}

// Half of the fastest round. The last value that was asked for is in `value`.
absl::StatusOr<double> MeasureLatency(Transport& transport, const LinkAsker& asker,
                                      const WaitOptions& wait, const Clock& clock,
                                      uint64_t& value) {
  const Nanos begin = clock.Now();
  Nanos fastest = INT64_MAX;
  Nanos now = begin;
  for (size_t rounds = 0; rounds < kRoundsMin || (rounds < kRoundsMax && now < begin + kRoundsTime);
       ++rounds) {
    LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, ++value, wait));
    LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
    const Nanos end = clock.Now();
    fastest = std::min(fastest, end - now);
    now = end;
  }
  return ToSeconds(fastest) / 2;
}

absl::StatusOr<LinkBurst> RunBurst(Transport& transport, const LinkAsker& asker,
                                   const WaitOptions& wait, const Clock& clock, size_t puts_max,
                                   uint64_t& value) {
  const Nanos start = clock.Now();
  size_t puts = 0;
  while (puts == 0 || (puts < puts_max && clock.Now() < start + kPutsTime)) {
    LAMINA_RETURN_IF_ERROR(Ask(transport, asker, asker.bytes, ++value, wait));
    ++puts;
  }
  LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
  return LinkBurst{.bytes = puts * asker.bytes.size(),
                   .seconds = ToSeconds(std::max<Nanos>(clock.Now() - start, 1))};
}

// Some bursts, and the fastest. A transport takes Puts long before they have crossed, so each burst
// is as long as the ones before say: a slow link would carry more for seconds.
absl::Status MeasureBandwidth(Transport& transport, const LinkAsker& asker, const WaitOptions& wait,
                              const Clock& clock, uint64_t& value, LinkSpeed& speed) {
  const double latency = speed.latency_seconds;
  const double burst_seconds = std::max(ToSeconds(kPutsTime), kWaysMin * latency);
  const Nanos begin = clock.Now();
  double put_seconds = burst_seconds;
  for (size_t bursts = 0;
       bursts < kBurstsMin || (bursts < kBurstsMax && clock.Now() < begin + kBurstsTime);
       ++bursts) {
    const double puts = std::min<double>(kPutsMax, burst_seconds / put_seconds);
    LAMINA_ASSIGN_OR_RETURN(
        const LinkBurst burst,
        RunBurst(transport, asker, wait, clock, static_cast<size_t>(std::max(puts, 1.0)), value));
    // Less the way of the answer; of a link that is all latency half a round is left.
    const double took = std::max(burst.seconds - latency, burst.seconds / 2);
    const auto bytes = static_cast<double>(burst.bytes);
    speed.bytes_per_second = std::max(speed.bytes_per_second, bytes / took);
    const double crossing = std::max(burst.seconds - 2 * latency, ToSeconds(1));
    put_seconds = std::min(put_seconds, crossing * static_cast<double>(asker.bytes.size()) / bytes);
    speed.bytes_put += burst.bytes;
    speed.bursts.push_back(burst);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LinkSpeed> MeasureLink(Transport& transport, const LinkAsker& asker,
                                      const WaitOptions& wait, const Clock& clock) {
  uint64_t value = 0;
  // The first round waits for the answerer, and for connections to be made: it does not count.
  LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, ++value, wait));
  LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
  LinkSpeed speed;
  LAMINA_ASSIGN_OR_RETURN(speed.latency_seconds,
                          MeasureLatency(transport, asker, wait, clock, value));
  LAMINA_RETURN_IF_ERROR(MeasureBandwidth(transport, asker, wait, clock, value, speed));
  LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, kLast, wait));
  LAMINA_RETURN_IF_ERROR(DrainPuts(transport, *asker.peer, wait));
  return speed;
}

absl::Status AnswerLinks(Transport& transport, const Region& region,
                         absl::Span<const LinkAnswerer> answerers, const WaitOptions& wait,
                         size_t& late) {
  std::vector<uint64_t> seen(answerers.size(), 0);
  std::vector<SignalCondition> conditions;
  std::vector<size_t> whose;
  for (;;) {
    conditions.clear();
    whose.clear();
    for (size_t i = 0; i < answerers.size(); ++i) {
      if (seen[i] != kLast) {
        conditions.push_back({.word = answerers[i].ask_word, .at_least = seen[i] + 1});
        whose.push_back(i);
      }
    }
    if (conditions.empty()) {
      return absl::OkStatus();
    }
    late = whose.front();
    LAMINA_ASSIGN_OR_RETURN(const size_t ready, WaitInNaps(transport, region, conditions, wait));
    late = whose[ready];
    const LinkAnswerer& answerer = answerers[late];
    seen[late] = region.LoadSignal(answerer.ask_word);
    if (seen[late] == kLast) {
      continue;
    }
    const SignalUpdate signal{.word = answerer.answer_word, .value = seen[late]};
    LAMINA_RETURN_IF_ERROR(PutAll(transport, *answerer.peer, 0, {}, &signal, wait));
  }
}

}  // namespace lamina::transport

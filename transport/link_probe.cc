// SPDX-License-Identifier: Apache-2.0
#include "transport/link_probe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "common/clock.h"
#include "common/status_macros.h"
#include "transport/put_all.h"

namespace lamina::transport {
namespace {

// How often something is measured: `least` times, on to `usual` times or for as long, and while the
// fastest is not confirmed on to `most` times or for as long.
struct TrialLimits {
  size_t least = 0;
  size_t usual = 0;
  size_t most = 0;
  Nanos usual_time = 0;
  Nanos most_time = 0;
};

constexpr TrialLimits kRounds = {
    .least = 3, .usual = 33, .most = 1000, .usual_time = Millis(20), .most_time = Millis(50)};
// The first burst is one Put; one may have a bad moment, and one sizes the others.
constexpr TrialLimits kBursts = {
    .least = 3, .usual = 8, .most = 100, .usual_time = Millis(20), .most_time = Millis(100)};
// Where the shortest time is an undisturbed one, another is longer by less than this factor most
// often. If none is, each may have been disturbed.
constexpr double kConfirmed = 1.1;

constexpr size_t kPutsMax = 16;  // The most Puts of a burst.
constexpr Nanos kPutsTime = Millis(10);
// Bursts behind the usual ones are short, to find a moment in which a busy host lets them pass.
constexpr Nanos kShortPutsTime = Micros(1250);
// A burst takes at least so many times the way there, which counts, so that the way is little of
// it.
constexpr double kWaysMin = 16;
constexpr uint64_t kLast = UINT64_MAX;

static_assert(kRounds.most_time + kBursts.most_time + kPutsTime < kLinkMeasuringMax);

// What was measured so far: the two shortest times.
class Trials {
 public:
  explicit Trials(const TrialLimits& limits) : limits_(limits) {}

  // After so many trials, which have taken `spent` together.
  bool WantsMore(Nanos spent) const {
    if (count_ < limits_.least || (count_ < limits_.usual && spent < limits_.usual_time)) {
      return true;
    }
    const bool confirmed = second_ <= kConfirmed * fastest_;
    return !confirmed && count_ < limits_.most && spent < limits_.most_time;
  }

  void Add(double seconds) {
    ++count_;
    second_ = std::min(second_, std::max(seconds, fastest_));
    fastest_ = std::min(fastest_, seconds);
  }

  double fastest() const { return fastest_; }

 private:
  const TrialLimits limits_;
  size_t count_ = 0;
  double fastest_ = std::numeric_limits<double>::infinity();
  double second_ = std::numeric_limits<double>::infinity();
};

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
  Trials rounds(kRounds);
  const Nanos begin = clock.Now();
  Nanos now = begin;
  while (rounds.WantsMore(now - begin)) {
    LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, ++value, wait));
    LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
    const Nanos end = clock.Now();
    rounds.Add(ToSeconds(end - now));
    now = end;
  }
  return rounds.fastest() / 2;
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

// Some bursts, and the fastest, which another one has to confirm: on a busy host each of the first
// ones may have waited for a core. A transport takes Puts long before they have crossed, so each
// burst is as long as the ones before say: a slow link would carry more for seconds.
absl::Status MeasureBandwidth(Transport& transport, const LinkAsker& asker, const WaitOptions& wait,
                              const Clock& clock, uint64_t& value, LinkSpeed& speed) {
  const double latency = speed.latency_seconds;
  double put_seconds = std::max(ToSeconds(kPutsTime), kWaysMin * latency);
  Trials bursts(kBursts);
  const Nanos begin = clock.Now();
  for (Nanos spent = 0; bursts.WantsMore(spent); spent = clock.Now() - begin) {
    const Nanos puts_time = spent < kBursts.usual_time ? kPutsTime : kShortPutsTime;
    const double burst_seconds = std::max(ToSeconds(puts_time), kWaysMin * latency);
    const double puts = std::min<double>(kPutsMax, burst_seconds / put_seconds);
    LAMINA_ASSIGN_OR_RETURN(
        const LinkBurst burst,
        RunBurst(transport, asker, wait, clock, static_cast<size_t>(std::max(puts, 1.0)), value));
    // Less the way of the answer; of a link that is all latency half a round is left.
    const double took = std::max(burst.seconds - latency, burst.seconds / 2);
    const auto bytes = static_cast<double>(burst.bytes);
    bursts.Add(burst.seconds / bytes);
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

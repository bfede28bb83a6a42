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

constexpr size_t kRoundsMax = 33;
constexpr Nanos kRoundsTime = Millis(20);
constexpr size_t kPutsMax = 16;
constexpr Nanos kPutsTime = Millis(20);
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

double Median(std::vector<Nanos>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return ToSeconds(*middle);
}

}  // namespace

absl::StatusOr<LinkSpeed> MeasureLink(Transport& transport, const LinkAsker& asker,
                                      const WaitOptions& wait) {
  const Clock& clock = RealClock();
  uint64_t value = 0;
  // The first round waits for the answerer, and for connections to be made: it does not count.
  LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, ++value, wait));
  LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
  std::vector<Nanos> rounds;
  const Nanos begin = clock.Now();
  for (Nanos now = begin;
       rounds.empty() || (rounds.size() < kRoundsMax && now < begin + kRoundsTime);) {
    LAMINA_RETURN_IF_ERROR(Ask(transport, asker, {}, ++value, wait));
    LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
    rounds.push_back(clock.Now() - now);
    now += rounds.back();
  }
  LinkSpeed speed{.latency_seconds = Median(rounds) / 2};
  const Nanos start = clock.Now();
  size_t puts = 0;
  while (puts == 0 || (puts < kPutsMax && clock.Now() < start + kPutsTime)) {
    LAMINA_RETURN_IF_ERROR(Ask(transport, asker, asker.bytes, ++value, wait));
    ++puts;
  }
  LAMINA_RETURN_IF_ERROR(AwaitAnswer(transport, asker, value, wait));
  // Less the way of the answer; of a link that is all latency half a round is left.
  const double took = ToSeconds(std::max<Nanos>(clock.Now() - start, 1));
  speed.bytes_per_second = static_cast<double>(puts * asker.bytes.size()) /
                           std::max(took - speed.latency_seconds, took / 2);
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

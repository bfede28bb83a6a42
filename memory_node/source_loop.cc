// SPDX-License-Identifier: Apache-2.0
#include "memory_node/source_loop.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"

namespace lamina::memory_node {
namespace {

// How long an idle loop sleeps before it looks for plans of steps without rows here.
constexpr Nanos kIdleWait = Millis(50);
// A multiple of the shares that sources have.
constexpr uint64_t kStride = 5040;

}  // namespace

SourceLoop::SourceLoop(const NodeEpoch& epoch, StepFeed& feed, UnitMeter& meter,
                       const std::vector<WorkSource*>& sources)
    : epoch_(epoch), feed_(feed), meter_(meter) {
  for (WorkSource* source : sources) {
    entries_.push_back({.source = source});
  }
  conditions_.reserve(entries_.size() * epoch.layout.query_region_words());
}

absl::Status SourceLoop::Run() {
  meter_.Start();
  while (epoch_.abort.load(std::memory_order_acquire) == 0) {
    epoch_.counters.beat.Raise();
    if (absl::Status turned = Turn(); !turned.ok()) {
      return absl::IsCancelled(turned) ? absl::OkStatus() : turned;
    }
  }
  return absl::OkStatus();
}

absl::Status SourceLoop::Turn() {
  const Nanos now = RealClock().Now();
  Nanos until = now + kIdleWait;
  if (feed_.awaits_any() && now >= feed_.LookAt()) {  // However busy other lanes are.
    LAMINA_RETURN_IF_ERROR(feed_.Look());
  }
  if (feed_.awaits_any()) {
    until = std::min(until, feed_.LookAt());
  }
  Entry* const due = Ask(now, until);
  const absl::StatusOr<size_t> ready =
      epoch_.transport.Wait(epoch_.region, conditions_,
                            {.deadline = due != nullptr ? now : until, .abort = &epoch_.abort});
  if (ready.ok()) {
    return Serve(*ready);
  }
  if (!absl::IsDeadlineExceeded(ready.status())) {
    return ready.status();
  }
  if (due == nullptr) {
    return NothingHappened();
  }
  WorkSource& source = *due->source;
  Charge(*due);
  return source.Look();
}

SourceLoop::Entry* SourceLoop::Ask(Nanos now, Nanos& until) {
  conditions_.clear();
  asked_ = 0;
  for (Entry& entry : entries_) {
    entry.first = conditions_.size();
    entry.source->AppendAwaited(conditions_);
    ++asked_;
    const Nanos at = entry.source->LookAt(now);
    if (at <= now) {
      return &entry;
    }
    until = std::min(until, at);
  }
  return nullptr;
}

absl::Status SourceLoop::Serve(size_t condition) {
  epoch_.counters.beat.Begin(ThreadActivity::kWorking);
  size_t owner = asked_ - 1;
  while (entries_[owner].first > condition) {
    --owner;
  }
  WorkSource& source = *entries_[owner].source;
  const size_t of_source = condition - entries_[owner].first;
  Charge(entries_[owner]);
  return source.Serve(of_source);
}

absl::Status SourceLoop::NothingHappened() {
  if (!feed_.awaits_any() && RealClock().Now() - meter_.end() >= kIdleWait) {
    epoch_.counters.beat.Begin(ThreadActivity::kIdle);
    meter_.LapIdle();
  }
  return feed_.Look();
}

void SourceLoop::Charge(Entry& entry) {
  pass_ = std::max(pass_, entry.pass);
  entry.pass = pass_ + kStride / entry.source->share();
  // Back to its place: behind those that have had no more turns.
  for (Entry* at = &entry; at != &entries_.back() && at[1].pass <= at->pass; ++at) {
    std::swap(at[0], at[1]);
  }
}

}  // namespace lamina::memory_node

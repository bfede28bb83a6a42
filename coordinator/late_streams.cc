// SPDX-License-Identifier: Apache-2.0
#include "coordinator/late_streams.h"

#include <chrono>
#include <utility>

namespace lamina::coordinator {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);

}  // namespace

LateStreams::LateStreams(SinceLastByte since_last_byte, Repeat repeat, const Clock& clock)
    : since_last_byte_(std::move(since_last_byte)), repeat_(std::move(repeat)), clock_(clock) {}

LateStreams::~LateStreams() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void LateStreams::Start() {
  thread_ = std::thread([this] { Run(); });
}

void LateStreams::Heard(NodeWord word) {
  const std::lock_guard lock(mutex_);
  Last& last = last_[word.source.port];
  last = {.word = std::move(word), .at = clock_.Now()};
}

void LateStreams::Forget(const NodePort* port) {
  const std::lock_guard lock(mutex_);
  last_.erase(port);
}

void LateStreams::Look() {
  const std::lock_guard lock(mutex_);
  for (auto& [port, last] : last_) {
    if (clock_.Now() - last.at <= kLate) {
      continue;
    }
    const std::optional<Nanos> since = since_last_byte_(last.word.peer);
    if (since.has_value() && *since <= kLate) {
      // What its data thread does is among the words that are not here yet.
      last.word.counters.activity = ThreadActivity::kNone;
      repeat_(last.word);
    }
  }
}

void LateStreams::Run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kInterval, [this] { return stopped_; })) {
    lock.unlock();
    Look();
    lock.lock();
  }
}

}  // namespace lamina::coordinator

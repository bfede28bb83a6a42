// SPDX-License-Identifier: Apache-2.0
#include "coordinator/event_loop.h"

#include <chrono>
#include <utility>

namespace lamina::coordinator {

EventLoop::EventLoop(Options options) : options_(std::move(options)) {}

void EventLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void EventLoop::Post(Event event) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(event));
  }
  wake_.notify_one();
}

void EventLoop::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void EventLoop::Run() {
  std::unique_lock lock(mutex_);
  pause_ = options_.pause_max;
  while (!stopping_) {
    wake_.wait_for(lock, std::chrono::nanoseconds(pause_),
                   [this] { return !queue_.empty() || stopping_; });
    std::deque<Event> batch;
    batch.swap(queue_);
    lock.unlock();
    pause_ = options_.pause_max;
    options_.begin_turn();
    for (Event& event : batch) {
      event();
    }
    options_.end_turn();
    lock.lock();
  }
}

}  // namespace lamina::coordinator

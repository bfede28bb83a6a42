// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_io.h"

#include <pthread.h>

#include <utility>

#include "common/status_macros.h"

namespace lamina::memory_node {

SpillIo::SpillIo(SpillFile& file) : file_(file) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), kName);
  }
}

SpillIo::~SpillIo() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void SpillIo::Order(SpillOrder order) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(order));
  }
  wake_.notify_one();
}

void SpillIo::Take(std::vector<SpillOrder>& done) {
  done.clear();
  const std::lock_guard lock(mutex_);
  done.swap(done_);
  done_count_.store(0, std::memory_order_release);
}

void SpillIo::Wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return orders_.empty() && working_ == 0; });
}

absl::Status SpillIo::Run(const SpillOrder& order) {
  if (!order.write) {
    LAMINA_RETURN_IF_ERROR(file_.Read(order.block, order.bytes));
  }
  if (order.copy != nullptr) {
    LAMINA_RETURN_IF_ERROR(order.copy());
  }
  return order.write ? file_.Write(order.block, order.bytes) : absl::OkStatus();
}

void SpillIo::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || !orders_.empty(); });
    if (orders_.empty()) {
      return;
    }
    SpillOrder order = std::move(orders_.front());
    orders_.pop_front();
    ++working_;
    lock.unlock();
    order.status = Run(order);
    lock.lock();
    --working_;
    done_.push_back(std::move(order));
    done_count_.store(done_.size(), std::memory_order_release);
    if (orders_.empty() && working_ == 0) {
      idle_.notify_all();
    }
  }
}

}  // namespace lamina::memory_node

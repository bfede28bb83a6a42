// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_io.h"

#include <pthread.h>

#include <utility>

#include "common/status_macros.h"

namespace lamina::memory_node {

SpillIo::SpillIo(SpillFile& file) : file_(file) {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this, i] { Work(i); });
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

absl::Status SpillIo::Open() {
  for (kernels::ArenaMemory& buffer : buffers_) {
    LAMINA_ASSIGN_OR_RETURN(buffer, kernels::ArenaMemory::Create(file_.block_bytes()));
  }
  return absl::OkStatus();
}

void SpillIo::Close() { buffers_ = {}; }

void SpillIo::Order(SpillOrder order) {
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back(std::move(order));
  }
  wake_.notify_one();
}

size_t SpillIo::Cancel() {
  const std::lock_guard lock(mutex_);
  const size_t dropped = orders_.size();
  orders_.clear();
  if (working_ == 0) {
    idle_.notify_all();
  }
  return dropped;
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

absl::Status SpillIo::Run(const SpillOrder& order, absl::Span<std::byte> bytes) {
  if (order.write) {
    LAMINA_RETURN_IF_ERROR(order.copy(bytes));
    return file_.Write(order.block, bytes);
  }
  LAMINA_RETURN_IF_ERROR(file_.Read(order.block, bytes));
  return order.copy(bytes);
}

void SpillIo::Work(int thread) {
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
    order.status = Run(order, {buffers_[thread].data(), file_.block_bytes()});
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

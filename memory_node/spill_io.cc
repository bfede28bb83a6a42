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
  std::unique_lock lock(mutex_);
  const Entry entry = under_way_.insert(under_way_.end(), UnderWay{.order = std::move(order)});
  if (entry->order.blocks.empty()) {
    return End(entry, lock);
  }
  const bool for_one = entry->order.blocks.size() == 1;
  lock.unlock();
  if (for_one) {
    wake_.notify_one();
  } else {
    wake_.notify_all();
  }
}

void SpillIo::Cancel() {
  std::unique_lock lock(mutex_);
  for (Entry next = under_way_.begin(); next != under_way_.end();) {
    const Entry entry = next++;
    GiveUp(*entry, absl::CancelledError("the tier is closed"));
    if (entry->working == 0) {
      End(entry, lock);
    }
  }
}

void SpillIo::Take(std::vector<SpillOrder>& done) {
  done.clear();
  const std::lock_guard lock(mutex_);
  done.swap(done_);
  done_count_.store(0, std::memory_order_release);
}

void SpillIo::Wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return under_way_.empty() && telling_ == 0; });
}

absl::Status SpillIo::Run(const SpillOrder& order, size_t index, absl::Span<std::byte> bytes) {
  const uint32_t block = order.blocks[index];
  if (order.write) {
    LAMINA_RETURN_IF_ERROR(order.copy(index, bytes));
    return file_.Write(block, bytes);
  }
  LAMINA_RETURN_IF_ERROR(file_.Read(block, bytes));
  return order.copy(index, bytes);
}

SpillIo::Entry SpillIo::Next() {
  Entry first_write = under_way_.end();
  for (Entry entry = under_way_.begin(); entry != under_way_.end(); ++entry) {
    if (entry->begun == entry->order.blocks.size()) {
      continue;
    }
    if (!entry->order.write) {
      return entry;
    }
    if (first_write == under_way_.end()) {
      first_write = entry;
    }
  }
  return first_write;
}

void SpillIo::GiveUp(UnderWay& entry, const absl::Status& why) {
  entry.order.status.Update(why);
  entry.begun = entry.order.blocks.size();
}

// It is among those done before anybody is told, who may want it.
void SpillIo::End(Entry entry, std::unique_lock<std::mutex>& lock) {
  SpillOrder order = std::move(entry->order);
  under_way_.erase(entry);
  order.ended = RealClock().Now();
  std::function<void()> tell;
  if (order.status.ok()) {
    tell = std::move(order.went_well);
  }
  done_.push_back(std::move(order));
  done_count_.store(done_.size(), std::memory_order_release);
  if (tell != nullptr) {
    ++telling_;
    lock.unlock();
    tell();
    lock.lock();
    --telling_;
  }
  if (under_way_.empty() && telling_ == 0) {
    idle_.notify_all();
  }
}

void SpillIo::Work(int thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || Next() != under_way_.end(); });
    const Entry entry = Next();
    if (entry == under_way_.end()) {
      return;
    }
    const size_t index = entry->begun++;
    ++entry->working;
    lock.unlock();
    const absl::Status status =
        Run(entry->order, index, {buffers_[thread].data(), file_.block_bytes()});
    lock.lock();
    --entry->working;
    if (!status.ok()) {
      GiveUp(*entry, status);
    }
    if (entry->working == 0 && entry->begun == entry->order.blocks.size()) {
      End(entry, lock);
    }
  }
}

}  // namespace lamina::memory_node

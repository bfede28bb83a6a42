// SPDX-License-Identifier: Apache-2.0
#include "memory_node/spill_io.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "common/status_macros.h"
#include "common/thread_pool.h"

namespace lamina::memory_node {

SpillIo::SpillIo(SpillFile& file, std::vector<int> cores) : file_(file), cores_(std::move(cores)) {
  free_.resize(kBuffers);
  std::iota(free_.begin(), free_.end(), 0);
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
  if (!entry->order.write) {
    Claim(entry, lock);
  }
  lock.unlock();
  if (for_one) {
    wake_.notify_one();
  } else {
    wake_.notify_all();
  }
}

void SpillIo::ReadAhead(std::vector<uint32_t> blocks) {
  {
    const std::lock_guard lock(mutex_);
    ahead_.Want(std::move(blocks), free_);
  }
  wake_.notify_one();
}

void SpillIo::Cancel() {
  std::unique_lock lock(mutex_);
  ahead_.Forget(free_);
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

bool SpillIo::Wait(Nanos most) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::nanoseconds(most), [this] { return IsIdle(); });
}

SpillIo::Job SpillIo::Next() {
  const bool reads = FirstToBegin(/*write=*/false) != under_way_.end();
  if (reads && reading_ < kReads && HasBuffer()) {
    return Job::kFetch;
  }
  if (!fetched_.empty()) {
    return Job::kTakeAway;
  }
  const bool writes = !reads && FirstToBegin(/*write=*/true) != under_way_.end();
  if (writes && HasBuffer()) {
    return Job::kWrite;
  }
  const bool ahead = under_way_.empty() && !ends_ && !free_.empty() && ahead_.HasNext();
  return ahead ? Job::kFetchAhead : Job::kNone;
}

int SpillIo::TakeBuffer() {
  if (free_.empty()) {
    return ahead_.GiveUpLast();
  }
  const int buffer = free_.back();
  free_.pop_back();
  return buffer;
}

// None is read ahead behind one that could not be read: what went wrong is of the last one.
void SpillIo::Claim(Entry entry, std::unique_lock<std::mutex>& lock) {
  const SpillAhead::Claimed claimed = ahead_.Claim(entry->order.blocks, free_);
  const size_t count = claimed.read.size();
  if (count == 0 && !claimed.next_comes) {
    return;
  }
  SpillTimes& times = entry->order.times;
  times.begun = RealClock().Now();
  times.fetched = times.begun;
  times.ahead = static_cast<uint32_t>(count);
  entry->begun = count + (claimed.next_comes ? 1 : 0);
  entry->working = entry->begun;
  if (claimed.next_comes) {
    awaited_ = Block{.entry = entry, .index = count};
    BeginRead(*entry);
  }
  for (size_t index = 0; index < count; ++index) {
    const SpillAhead::Read& read = claimed.read[index];
    const Block block{.entry = entry, .index = index, .buffer = read.buffer};
    if (read.status.ok()) {
      fetched_.push_back(block);
    } else {
      EndBlock(block, read.status, lock);
    }
  }
}

SpillIo::Entry SpillIo::FirstToBegin(bool write) {
  return std::find_if(under_way_.begin(), under_way_.end(), [write](const UnderWay& entry) {
    return entry.order.write == write && entry.begun < entry.order.blocks.size();
  });
}

SpillIo::Block SpillIo::Begin(Entry entry) {
  const int buffer = TakeBuffer();
  if (entry->begun == 0) {
    entry->order.times.begun = RealClock().Now();
  }
  ++entry->working;
  return {.entry = entry, .index = entry->begun++, .buffer = buffer};
}

void SpillIo::BeginRead(UnderWay& entry) {
  if (entry.reads++ == 0) {
    entry.reads_since = RealClock().Now();
  }
}

void SpillIo::EndRead(const Block& block, const absl::Status& status,
                      std::unique_lock<std::mutex>& lock) {
  UnderWay& entry = *block.entry;
  entry.order.times.fetched = RealClock().Now();
  if (--entry.reads == 0) {
    entry.order.times.at_disk += entry.order.times.fetched - entry.reads_since;
  }
  if (status.ok()) {
    fetched_.push_back(block);
  } else {
    EndBlock(block, status, lock);
  }
}

void SpillIo::Fetch(std::unique_lock<std::mutex>& lock) {
  const Block block = Begin(FirstToBegin(/*write=*/false));
  BeginRead(*block.entry);
  ++reading_;
  LetGo(lock);
  const absl::Status status =
      file_.Fetch(block.entry->order.blocks[block.index], BytesOf(block.buffer));
  lock.lock();
  --reading_;
  EndRead(block, status, lock);
}

void SpillIo::FetchAhead(std::unique_lock<std::mutex>& lock) {
  const uint32_t number = ahead_.Begin();
  const int buffer = TakeBuffer();
  ++reading_;
  LetGo(lock);
  const absl::Status status = file_.Fetch(number, BytesOf(buffer));
  lock.lock();
  --reading_;
  const bool kept = ahead_.End({.buffer = buffer, .status = status});
  if (awaited_.has_value()) {
    Block block = *awaited_;
    awaited_.reset();
    block.buffer = buffer;
    EndRead(block, status, lock);
  } else if (!kept) {
    free_.push_back(buffer);
  }
  if (IsIdle()) {
    idle_.notify_all();
  }
}

void SpillIo::TakeAway(std::unique_lock<std::mutex>& lock) {
  const Block block = fetched_.front();
  fetched_.pop_front();
  LetGo(lock);
  const Nanos start = RealClock().Now();
  SpillOrder& order = block.entry->order;
  SpillPass pass(BytesOf(block.buffer));
  absl::Status status = order.copy(block.index, pass);
  if (status.ok()) {
    status = file_.Check(order.blocks[block.index], pass.End());
  }
  lock.lock();
  order.times.copying += RealClock().Now() - start;
  EndBlock(block, status, lock);
}

void SpillIo::Write(std::unique_lock<std::mutex>& lock) {
  const Block block = Begin(FirstToBegin(/*write=*/true));
  LetGo(lock);
  const SpillOrder& order = block.entry->order;
  SpillPass pass(BytesOf(block.buffer));
  absl::Status status = order.copy(block.index, pass);
  if (status.ok()) {
    status = file_.Write(order.blocks[block.index], BytesOf(block.buffer), pass.End());
  }
  lock.lock();
  EndBlock(block, status, lock);
}

void SpillIo::LetGo(std::unique_lock<std::mutex>& lock) {
  const bool more = Next() != Job::kNone;
  lock.unlock();
  if (more) {
    wake_.notify_one();
  }
}

void SpillIo::EndBlock(const Block& block, const absl::Status& status,
                       std::unique_lock<std::mutex>& lock) {
  free_.push_back(block.buffer);
  UnderWay& entry = *block.entry;
  --entry.working;
  if (!status.ok()) {
    GiveUp(entry, status);
  }
  if (entry.working == 0 && entry.begun == entry.order.blocks.size()) {
    End(block.entry, lock);
  }
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
    LetGo(lock);
    tell();
    lock.lock();
    --telling_;
  }
  if (IsIdle()) {
    idle_.notify_all();
  }
}

void SpillIo::Work() {
  if (!cores_.empty()) {
    PinThisThread(cores_);  // Where the host refuses, it runs anywhere.
  }
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ends_ || Next() != Job::kNone; });
    switch (Next()) {
      case Job::kNone:
        return;
      case Job::kFetch:
        Fetch(lock);
        break;
      case Job::kTakeAway:
        TakeAway(lock);
        break;
      case Job::kWrite:
        Write(lock);
        break;
      case Job::kFetchAhead:
        FetchAhead(lock);
        break;
    }
  }
}

}  // namespace lamina::memory_node

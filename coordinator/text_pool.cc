// SPDX-License-Identifier: Apache-2.0
#include "coordinator/text_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace lamina::coordinator {

TextPool::TextPool(TextPoolOptions options) : options_(options) {
  LAMINA_CHECK(options_.threads >= 2);
  for (size_t i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this, last = i + 1 == options_.threads] { Run(/*short_only=*/last); });
  }
}

TextPool::~TextPool() {
  std::deque<Job> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(queue_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  for (const Job& job : left) {
    job.drop();
  }
}

absl::Status TextPool::CheckRoom(size_t bytes) const {
  if (queue_.size() < options_.jobs_max && bytes_ + bytes <= options_.bytes_max) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(queue_.size(), " texts of ", bytes_, " bytes wait to be tokenized, and one of ",
                   bytes, " bytes would exceed the limit of ", options_.jobs_max, " texts and ",
                   options_.bytes_max, " bytes; try again later"));
}

absl::Status TextPool::Add(Job job) {
  std::vector<Job> gone;
  absl::Status room;
  {
    const std::lock_guard lock(mutex_);
    room = CheckRoom(job.bytes);
    if (!room.ok()) {
      gone = TakeGone();
      room = CheckRoom(job.bytes);
    }
    if (room.ok()) {
      bytes_ += job.bytes;
      queue_.push_back(std::move(job));
    }
  }
  changed_.notify_all();  // Not every thread may take it.
  for (const Job& left : gone) {
    left.drop();
  }
  return room;
}

std::vector<TextPool::Job> TextPool::TakeGone() {
  std::vector<Job> gone;
  std::deque<Job> wanted;
  for (Job& job : queue_) {
    if (job.gone()) {
      bytes_ -= job.bytes;
      gone.push_back(std::move(job));
    } else {
      wanted.push_back(std::move(job));
    }
  }
  queue_ = std::move(wanted);
  return gone;
}

std::deque<TextPool::Job>::iterator TextPool::Next(bool short_only) {
  return std::find_if(queue_.begin(), queue_.end(), [&](const Job& job) {
    return !short_only || job.bytes <= options_.short_bytes_max;
  });
}

void TextPool::Run(bool short_only) {
  std::unique_lock lock(mutex_);
  while (true) {
    auto next = queue_.end();
    changed_.wait(lock, [&] {
      next = Next(short_only);
      return stopped_ || next != queue_.end();
    });
    if (stopped_) {
      return;
    }
    const Job job = std::move(*next);
    queue_.erase(next);
    bytes_ -= job.bytes;
    lock.unlock();
    job.gone() ? job.drop() : job.run();
    lock.lock();
  }
}

}  // namespace lamina::coordinator

// SPDX-License-Identifier: Apache-2.0
#include "gateway/side_work.h"

#include <deque>
#include <limits>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace lamina::gateway {

class SideWork::Queue {
 public:
  explicit Queue(PostFunction post) : post_(std::move(post)) {
    for (size_t i = 0; i < kThreads; ++i) {
      threads_.emplace_back([this] { Loop(); });
    }
  }
  ~Queue() {
    {
      const absl::MutexLock lock(&mu_);
      ended_ = true;
      jobs_.clear();
    }
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // False: `waiting_max` wait already.
  bool Push(Job job, size_t waiting_max) {
    const absl::MutexLock lock(&mu_);
    if (jobs_.size() >= waiting_max) {
      return false;
    }
    jobs_.push_back(std::move(job));
    return true;
  }

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_ || !jobs_.empty(); }

  // The next job; nothing at the end.
  std::optional<Job> Pop() {
    const absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &Queue::HasNews));
    if (ended_) {
      return std::nullopt;
    }
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    return job;
  }

  void Loop() {
    while (std::optional<Job> job = Pop()) {
      job->work();
      job->work = nullptr;  // What it read is freed here, which takes its time too.
      post_(std::move(job->done));
    }
  }

  const PostFunction post_;
  absl::Mutex mu_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

SideWork::SideWork(PostFunction post) : queue_(std::make_unique<Queue>(std::move(post))) {}
SideWork::~SideWork() = default;

absl::Status SideWork::Add(Job job) {
  if (queue_->Push(std::move(job), kWaitingMax)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("the gateway has ", kWaitingMax,
                                                   " or more large requests and answers waiting to "
                                                   "be read or written; try again later"));
}

void SideWork::AddForAnswer(Job job) {
  queue_->Push(std::move(job), std::numeric_limits<size_t>::max());
}

}  // namespace lamina::gateway

// SPDX-License-Identifier: Apache-2.0
//
// TextPool: threads of the coordinator that render chats and turn texts into tokens and back, so
// that no request's text occupies the threads that read what nodes and other clients say. Short
// texts do not wait behind long ones: one thread takes nothing else.
//
// Threading: any thread adds. Jobs are begun in order, but for short ones, and run side by side.
// Limits: jobs_max and bytes_max of jobs that wait; more are refused, after jobs that nobody waits
// for any more have made room.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace lamina::coordinator {

struct TextPoolOptions {
  size_t threads = 3;  // At least 2: the last takes short texts only.
  size_t jobs_max = 1024;
  size_t bytes_max = size_t{128} << 20;
  size_t short_bytes_max = size_t{64} << 10;
};

class TextPool {
 public:
  struct Job {
    size_t bytes = 0;  // Bytes of the text, for the limits.
    std::function<void()> run;
    // Whether nobody waits for it any more; then drop() is called instead of run(). Once true it
    // stays so. Must not wait.
    std::function<bool()> gone;
    std::function<void()> drop;
  };

  explicit TextPool(TextPoolOptions options = {});
  // Waits for the jobs that run, and drops those that wait.
  ~TextPool();
  TextPool(const TextPool&) = delete;
  TextPool& operator=(const TextPool&) = delete;

  // Does not wait for a job.
  // Errors: kResourceExhausted  beyond a limit, which it names; nothing of the job is called.
  absl::Status Add(Job job);

 private:
  void Run(bool short_only);
  // Guarded by mutex_: the next that a thread may take; end() if there is none.
  std::deque<Job>::iterator Next(bool short_only);
  // Guarded by mutex_: takes those that are gone out of the queue.
  std::vector<Job> TakeGone();
  absl::Status CheckRoom(size_t bytes) const;

  const TextPoolOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  size_t bytes_ = 0;  // Bytes of queue_.
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lamina::coordinator

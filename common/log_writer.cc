// SPDX-License-Identifier: Apache-2.0
#include "common/log_writer.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>

namespace lamina {

LogWriter* LogWriter::Start(int descriptor, TellOfLost tell_of_lost) {
  auto* writer = new LogWriter(descriptor, std::move(tell_of_lost));
  std::thread([writer] { writer->Run(); }).detach();
  return writer;
}

LogWriter::LogWriter(int descriptor, TellOfLost tell_of_lost)
    : descriptor_(descriptor), tell_of_lost_(std::move(tell_of_lost)) {}

void LogWriter::Add(absl::string_view line) {
  {
    const std::lock_guard lock(mutex_);
    // Once a line is lost, so are all until the queue is taken: what is told of them then stands
    // where they would.
    const bool full = lost_ > 0 || queue_.size() + line.size() > kLogQueueBytesMax;
    if (full && gettid() != thread_) {
      ++lost_;
      return;
    }
    queue_.append(line.data(), line.size());
    bytes_added_ += line.size();
  }
  added_.notify_one();
}

bool LogWriter::Flush(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  const uint64_t wanted = bytes_added_;
  if (gettid() == thread_ || (bytes_done_ < wanted && in_vain_at_ == bytes_done_)) {
    return false;
  }
  const bool done = written_.wait_for(lock, most, [&] { return bytes_done_ >= wanted; });
  in_vain_at_ = done ? UINT64_MAX : bytes_done_;
  return done;
}

void LogWriter::Run() {
  std::unique_lock lock(mutex_);
  thread_ = gettid();
  std::string lines;
  while (true) {
    added_.wait(lock, [this] { return !queue_.empty() || lost_ > 0; });
    lines.clear();
    lines.swap(queue_);
    const uint64_t lost = std::exchange(lost_, 0);
    lock.unlock();
    Write(lines);
    if (lost > 0) {
      tell_of_lost_(lost);
    }
    lock.lock();
  }
}

void LogWriter::Write(absl::string_view lines) {
  while (!lines.empty()) {
    const ssize_t count = write(descriptor_, lines.data(), lines.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && errno == EAGAIN) {
      // Whoever gave it to us made it so; it waits as others do.
      pollfd wanted{.fd = descriptor_, .events = POLLOUT, .revents = 0};
      poll(&wanted, 1, /*timeout=*/-1);
      continue;
    }
    const size_t done = count < 0 ? lines.size() : static_cast<size_t>(count);
    lines.remove_prefix(done);
    {
      const std::lock_guard lock(mutex_);
      bytes_done_ += done;
    }
    written_.notify_all();
  }
}

}  // namespace lamina

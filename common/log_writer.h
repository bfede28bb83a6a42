// SPDX-License-Identifier: Apache-2.0
//
// LogWriter: lines for a descriptor that may not take them, such as a pipe that nobody reads. A
// thread of its own writes; who logs only puts the line into a bounded queue. Lines that find it
// full are dropped, and their number is told once the descriptor has taken what was there.
//
// Threading: any thread.
// Limits: kLogQueueBytesMax of waiting lines, and as many that are being written.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

// Ten thousand lines or so. A line that is longer than this is dropped, too.
inline constexpr size_t kLogQueueBytesMax = size_t{1} << 20;
// The longest that the end of a process waits for a descriptor that takes nothing.
inline constexpr std::chrono::milliseconds kLogFlushMax{1000};

class LogWriter {
 public:
  // `tell_of_lost` is called on the writer's thread when `lines` were dropped; what it adds is
  // never dropped.
  using TellOfLost = std::function<void(uint64_t lines)>;

  // Starts the thread, which is never joined: the last line of a process may come from the
  // destructor of a static object. So a writer is never destroyed.
  static LogWriter* Start(int descriptor, TellOfLost tell_of_lost);
  ~LogWriter() = delete;
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Never waits for the descriptor.
  void Add(absl::string_view line);

  // Waits until all that was added before is written, at most for `most`. Returns whether it is.
  // While the descriptor has taken nothing since a wait that was in vain, the next do not wait.
  bool Flush(std::chrono::milliseconds most = kLogFlushMax);

 private:
  LogWriter(int descriptor, TellOfLost tell_of_lost);

  void Run();
  // Writes what the descriptor takes; an error of it loses the rest.
  void Write(absl::string_view lines);

  const int descriptor_;
  const TellOfLost tell_of_lost_;

  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable written_;
  std::string queue_;
  uint64_t bytes_added_ = 0;
  uint64_t bytes_done_ = 0;
  uint64_t lost_ = 0;                 // Lines that were dropped since the queue was taken last.
  uint64_t in_vain_at_ = UINT64_MAX;  // bytes_done_ when a Flush() had waited in vain.
  pid_t thread_ = 0;
};

}  // namespace lamina

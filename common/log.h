// SPDX-License-Identifier: Apache-2.0
//
// Logging: one line per event on stderr, `key value` words. The first function that names an error
// logs it; callers only propagate.
//
// Lines are written by who logs, until WriteLogsOnAThread(): from then on no line waits for stderr,
// and lines that it does not take are dropped and counted (common/log_writer.h).
//
// Threading: any thread. Not for the data path.

#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lamina {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// Names this process in every line, and sets the least level that is written.
void SetUpLogging(absl::string_view process_name, LogLevel least);

// For daemons, which a pipe that nobody reads must not stop. Starts a thread; call it before other
// threads log, with the signals blocked that no thread may get. What is logged until main() returns
// is written then, if stderr takes it within kLogFlushMax. Again: does nothing.
void WriteLogsOnAThread();

// Waits until the lines so far are written, at most kLogFlushMax: before _exit().
void FlushLog();

void WriteLog(LogLevel level, absl::string_view message);

template <typename... Args>
void LogDebug(const Args&... args) {
  WriteLog(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(const Args&... args) {
  WriteLog(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  WriteLog(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  WriteLog(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace lamina

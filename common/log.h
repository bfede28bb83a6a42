// SPDX-License-Identifier: Apache-2.0
//
// Logging: one line per event on stderr, `key value` words. The first function that names an error
// logs it; callers only propagate.
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

// SPDX-License-Identifier: Apache-2.0
//
// LogEvent: a line of the log with named values besides its words, and the form that lines take.
//
// As text the fields stand behind the message, `key value`, control characters of values escaped.
// As JSON every line is one object:
// {"time":"2026-11-21T10:00:00.123Z","level":"info","node":"m0","message":"...", field: value, ...}
//
// Threading: any thread; SetLogFormat before other threads start. Not for the data path.
// Limits:    kLogValueBytesMax of each value, then "... (N bytes)".

#pragma once

#include <cmath>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log.h"

namespace lamina {

// kJournal is text without times, which the journal knows itself.
enum class LogFormat : uint8_t { kText, kJson, kJournal };

constexpr size_t kLogValueBytesMax = 4096;

// Text is what there is before the call.
void SetLogFormat(LogFormat format);

// Whether lines of this level are written. For what is costly to put together.
bool LogEnabled(LogLevel level);

// Times in names carry their unit; names are snake_case. `time`, `level`, `node` and `message` are
// taken.
class LogField {
 public:
  LogField(absl::string_view name, absl::string_view value)
      : name_(name), value_(value), is_number_(false) {}
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  LogField(absl::string_view name, T value)
      : name_(name), value_(absl::StrCat(value)), is_number_(IsFinite(value)) {}

  const std::string& name() const { return name_; }
  const std::string& value() const { return value_; }
  // JSON has no infinity and no NaN: those are words.
  bool is_number() const { return is_number_; }

 private:
  template <typename T>
  static bool IsFinite(T value) {
    return std::isfinite(static_cast<double>(value));
  }

  std::string name_;
  std::string value_;
  bool is_number_;
};

void LogEvent(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields);

// `text` as a JSON string with its quotes, in ASCII; what is not UTF-8 becomes U+FFFD.
std::string JsonString(absl::string_view text);

}  // namespace lamina

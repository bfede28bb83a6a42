// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/check.h"
#include "common/foreign_text.h"
#include "common/log_event.h"

namespace lamina {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* NameOf(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "lamina", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

// Set before there are other threads.
struct Form {
  std::string process_name;
  bool json = false;
};
Form& TheForm() {
  static Form* const form = new Form();  // Never destroyed: logs are written until the end.
  return *form;
}

void SetPattern() {
  Logger().set_pattern(
      TheForm().json ? "%v" : "%Y-%m-%dT%H:%M:%S.%e %^%L%$ " + TheForm().process_name + " %v");
}

std::string UtcNow() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  std::tm utc{};
  gmtime_r(&now.tv_sec, &utc);
  char text[32];
  const size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text + length, sizeof(text) - length, ".%03ldZ", now.tv_nsec / 1000000);
  return text;
}

std::string JsonLine(LogLevel level, absl::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string line =
      absl::StrCat(R"({"time":")", UtcNow(), R"(","level":")", NameOf(level), R"(","node":)",
                   JsonString(TheForm().process_name), R"(,"message":)", JsonString(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",", JsonString(field.name()), ":",
                    field.is_number() ? field.value() : JsonString(field.value()));
  }
  return line + "}";
}

void Write(LogLevel level, absl::string_view line) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

void SetUpLogging(absl::string_view process_name, LogLevel least) {
  TheForm().process_name = std::string(process_name);
  SetPattern();
  Logger().set_level(ToSpdlog(least));
}

void SetLogFormat(LogFormat format) {
  TheForm().json = format == LogFormat::kJson;
  SetPattern();
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

std::string JsonString(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

void LogEvent(LogLevel level, absl::string_view message, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) {
    return;
  }
  if (TheForm().json) {
    return Write(level, JsonLine(level, message, fields));
  }
  std::string line(message);
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", field.name(), " ",
                    ForeignText(field.value(), field.value().size()));
  }
  Write(level, line);
}

void WriteLog(LogLevel level, absl::string_view message) { LogEvent(level, message, {}); }

namespace internal {

void CheckFailed(const char* file, int line, const char* condition) {
  if (TheForm().json) {
    LogEvent(LogLevel::kError, absl::StrCat(file, ":", line, ": check failed: ", condition), {});
  } else {
    std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  }
  std::abort();
}

}  // namespace internal
}  // namespace lamina

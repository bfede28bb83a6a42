// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "common/check.h"
#include "common/foreign_text.h"
#include "common/log_event.h"
#include "common/log_writer.h"

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

// The thread that writes, where there is one.
std::atomic<LogWriter*>& Writer() {
  static std::atomic<LogWriter*> writer = nullptr;
  return writer;
}

const char* ColorOf(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::info:
      return "\033[32m";
    case spdlog::level::warn:
      return "\033[33m\033[1m";
    case spdlog::level::err:
      return "\033[31m\033[1m";
    default:
      return "\033[36m";
  }
}

// Lines for the writer, in colour on a terminal.
class WriterSink final : public spdlog::sinks::base_sink<std::mutex> {
 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (terminal_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[m");
      line.insert(message.color_range_start, ColorOf(message.level));
    }
    Writer().load()->Add(line);
  }
  void flush_() override {}

  const bool terminal_ = isatty(STDERR_FILENO) != 0;
};

spdlog::logger& Logger() {
  // Never destroyed: logs are written until the end.
  static spdlog::logger* const logger = [] {
    auto* made =
        new spdlog::logger("lamina", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *logger;
}

struct Form {
  std::string process_name;  // Set before there are other threads.
  std::atomic<bool> json = false;
  std::atomic<bool> times = true;
};
Form& TheForm() {
  static Form* const form = new Form();  // Never destroyed: logs are written until the end.
  return *form;
}

void SetPattern() {
  const std::string times = TheForm().times ? "%Y-%m-%dT%H:%M:%S.%e " : "";
  Logger().set_pattern(TheForm().json ? "%v" : times + "%^%L%$ " + TheForm().process_name + " %v");
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

// A JSON string of a value; of a long one, of its beginning.
std::string JsonValue(absl::string_view value) {
  if (value.size() <= kLogValueBytesMax) {
    return JsonString(value);
  }
  return JsonString(
      absl::StrCat(WholeCharacters(value, kLogValueBytesMax), "... (", value.size(), " bytes)"));
}

std::string JsonLine(LogLevel level, absl::string_view message,
                     std::initializer_list<LogField> fields) {
  std::string line =
      absl::StrCat(R"({"time":")", UtcNow(), R"(","level":")", NameOf(level), R"(","node":)",
                   JsonString(TheForm().process_name), R"(,"message":)", JsonString(message));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, ",", JsonString(field.name()), ":",
                    field.is_number() ? field.value() : JsonValue(field.value()));
  }
  return line + "}";
}

void Write(LogLevel level, absl::string_view line) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void TellOfLostLines(uint64_t lines) {
  LogEvent(LogLevel::kWarning, "lines of this log were dropped because stderr took none",
           {{"lines", lines}});
}

}  // namespace

void SetUpLogging(absl::string_view process_name, LogLevel least) {
  // Daemons set the same name again once the log has its thread, which may read it.
  if (TheForm().process_name != process_name) {
    TheForm().process_name = std::string(process_name);
  }
  SetPattern();
  Logger().set_level(ToSpdlog(least));
}

void SetLogFormat(LogFormat format) {
  TheForm().json = format == LogFormat::kJson;
  TheForm().times = format != LogFormat::kJournal;
  SetPattern();
}

void WriteLogsOnAThread() {
  if (Writer().load() != nullptr) {
    return;
  }
  Writer() = LogWriter::Start(STDERR_FILENO, TellOfLostLines);
  Logger().sinks() = {std::make_shared<WriterSink>()};
  SetPattern();
  std::atexit(FlushLog);
}

void FlushLog() {
  if (LogWriter* writer = Writer().load(); writer != nullptr) {
    writer->Flush();
  }
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
    absl::StrAppend(&line, " ", field.name(), " ", ForeignText(field.value(), kLogValueBytesMax));
  }
  Write(level, line);
}

void WriteLog(LogLevel level, absl::string_view message) { LogEvent(level, message, {}); }

namespace internal {

void CheckFailed(const char* file, int line, const char* condition) {
  const std::string words = absl::StrCat(file, ":", line, ": check failed: ", condition);
  LogWriter* const writer = Writer().load();
  if (TheForm().json) {
    LogEvent(LogLevel::kError, words, {});
  } else if (writer != nullptr) {
    writer->Add(words + "\n");
  } else {
    std::fprintf(stderr, "%s\n", words.c_str());
  }
  FlushLog();
  std::abort();
}

}  // namespace internal
}  // namespace lamina

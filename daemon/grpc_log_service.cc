// SPDX-License-Identifier: Apache-2.0
#include "daemon/grpc_log_service.h"

#include <grpc/support/log.h>

#include "common/clock.h"
#include "common/log_event.h"
#include "daemon/line_limit.h"

namespace lamina::daemon {
namespace {

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      return LogLevel::kError;
  }
  return LogLevel::kError;
}

// Never destroyed: the library logs until the end.
LineLimit& Limit() {
  static LineLimit* const limit = new LineLimit();
  return *limit;
}

void Write(gpr_log_func_args* args) {
  // Others come to who has asked for them alone, and all are wanted then.
  const bool is_error = args->severity == GPR_LOG_SEVERITY_ERROR;
  const LineLimit::Verdict verdict =
      is_error ? Limit().Take(args->file, args->line, RealClock().Now()) : LineLimit::Verdict();
  if (!verdict.logs) {
    return;
  }
  if (verdict.dropped > 0) {
    LogEvent(LogLevel::kWarning, "lines like the next one were left out",
             {{"library", "grpc"}, {"lines", verdict.dropped}});
  }
  LogEvent(LevelOf(args->severity), args->message,
           {{"library", "grpc"}, {"file", args->file}, {"line", args->line}});
  if (is_error) {
    FlushLog();  // The library's failed assertions are errors, behind which it aborts.
  }
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(Write); }

}  // namespace lamina::daemon

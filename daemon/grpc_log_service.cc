// SPDX-License-Identifier: Apache-2.0
#include "daemon/grpc_log_service.h"

#include <grpc/support/log.h>

#include "common/log_event.h"

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

void Write(gpr_log_func_args* args) {
  LogEvent(LevelOf(args->severity), args->message,
           {{"library", "grpc"}, {"file", args->file}, {"line", args->line}});
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    FlushLog();  // The library's failed assertions are errors, behind which it aborts.
  }
}

}  // namespace

void RouteGrpcLog() { gpr_set_log_function(Write); }

}  // namespace lamina::daemon

// SPDX-License-Identifier: Apache-2.0
//
// lamina trace.

#pragma once

#include "client/cli/command.h"

namespace lamina::cli {

void AddTraceCommand(CLI::App& app, Invocation& invocation);

}  // namespace lamina::cli

// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/xgrammar_warnings.h"

#include <utility>

#include "support/logging.h"

namespace {

thread_local std::string dropped;

}  // namespace

namespace lamina::model {

std::string TakeDropped() { return std::exchange(dropped, {}); }

}  // namespace lamina::model

namespace xgrammar {

void LogFatalImpl(const std::string& file, int lineno, const std::string& message) {
  throw LogFatalError(file, lineno, message);
}

// Each warning about a schema says what is left out; most about regular expressions say what is
// read as it is written, which is right.
void LogMessageImpl(const std::string& file, int /*lineno*/, int level,
                    const std::string& message) {
  const bool of_schema = file.find("json_schema_converter") != std::string::npos;
  const bool lookahead = message.find("Lookahead assertion") != std::string::npos;
  if (level == XGRAMMAR_LOG_LEVEL_WARNING && (of_schema || lookahead) && dropped.empty()) {
    dropped = message;
  }
}

}  // namespace xgrammar

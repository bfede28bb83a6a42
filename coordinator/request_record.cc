// SPDX-License-Identifier: Apache-2.0
#include "coordinator/request_record.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/log_event.h"
#include "common/random_hex.h"

namespace lamina::coordinator {
namespace {

constexpr char kMadePrefix[] = "req-";
constexpr size_t kMadeDigits = 24;
constexpr size_t kTracedDigits = 8;

// From `from` to `to`, or 0 where there was no such time.
double Millis(Nanos from, Nanos to) {
  return from == 0 || to == 0 ? 0 : ToSeconds(to - from) * 1e3;
}

}  // namespace

std::string MakeRequestId() { return absl::StrCat(kMadePrefix, RandomHex(kMadeDigits)); }

std::string TracedId(const std::string& id) {
  const size_t digits = id.find('-') + 1;  // 0: there is no dash.
  size_t end = digits;
  while (end < id.size() && absl::ascii_isxdigit(static_cast<unsigned char>(id[end]))) {
    ++end;
  }
  return end - digits >= kMadeDigits ? id.substr(0, digits + kTracedDigits) : id;
}

void LogAdmitted(const RequestRecord& record, uint64_t first_sequence) {
  LogEvent(LogLevel::kInfo, "admitted",
           {{"request_id", record.followed_id},
            {"id", record.id},
            {"prompt_tokens", record.prompt_tokens},
            {"sequence", first_sequence},
            {"choices", record.choices}});
}

void LogEnded(const RequestRecord& record) {
  const Nanos until_first = record.first_token != 0 ? record.first_token : record.ended;
  if (!record.status.ok()) {
    LogEvent(LogLevel::kInfo, "failed",
             {{"request_id", record.followed_id},
              {"id", record.id},
              {"status", absl::StatusCodeToString(record.status.code())},
              {"error", record.status.message()},
              {"prompt_tokens", record.prompt_tokens},
              {"completion_tokens", record.completion_tokens},
              {"ms", Millis(record.arrived, record.ended)}});
    return;
  }
  LogEvent(LogLevel::kInfo, "finished",
           {{"request_id", record.followed_id},
            {"id", record.id},
            {"prompt_tokens", record.prompt_tokens},
            {"completion_tokens", record.completion_tokens},
            {"preemptions", record.preemptions},
            {"queue_ms", Millis(record.arrived, record.started)},
            {"prefill_ms", Millis(record.started, until_first)},
            {"decode_ms", Millis(record.first_token, record.ended)},
            {"ms", Millis(record.arrived, record.ended)}});
}

}  // namespace lamina::coordinator

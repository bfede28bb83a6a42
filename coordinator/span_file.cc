// SPDX-License-Identifier: Apache-2.0
#include "coordinator/span_file.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/version.h"

namespace lamina::coordinator {
namespace {

using Json = nlohmann::ordered_json;

// Values of OpenTelemetry's enums.
constexpr int kKindInternal = 1;
constexpr int kKindServer = 2;
constexpr int kStatusOk = 1;
constexpr int kStatusError = 2;

Nanos WallNow() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Json Text(const char* key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

// 64-bit numbers are strings in JSON.
Json Number(const char* key, uint64_t value) {
  return {{"key", key}, {"value", {{"intValue", absl::StrCat(value)}}}};
}

Json Span(const std::string& trace, const std::string& span, const std::string& parent,
          const std::string& name, int kind, Nanos start, Nanos end) {
  Json json = {{"traceId", trace}, {"spanId", span}};
  if (!parent.empty()) {
    json["parentSpanId"] = parent;
  }
  json.update({{"name", name},
               {"kind", kind},
               {"startTimeUnixNano", absl::StrCat(start)},
               {"endTimeUnixNano", absl::StrCat(end)}});
  return json;
}

Json StatusOf(const absl::Status& status) {
  if (status.ok()) {
    return {{"code", kStatusOk}};
  }
  return {
      {"code", kStatusError},
      {"message", absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message())}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanFile>> SpanFile::Open(const std::string& path,
                                                         const Clock& clock) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("coordinator.spans: cannot write '", path, "': ", std::strerror(errno)));
  }
  return std::unique_ptr<SpanFile>(new SpanFile(file, path, clock));
}

SpanFile::~SpanFile() { std::fclose(file_); }

std::string SpanFile::RandomHex(int digits) {
  std::string text;
  while (static_cast<int>(text.size()) < digits) {
    // Not all zeros: the standard's mark for no id.
    text += absl::StrFormat("%016x", random_() | 1);
  }
  return text;
}

std::string SpanFile::LineOf(const RequestRecord& record, Nanos offset) {
  const std::string trace = record.caller.has_value() ? record.caller->trace_id : RandomHex(32);
  const std::string parent = record.caller.has_value() ? record.caller->span_id : "";
  const std::string root = RandomHex(16);
  Json spans = Json::array();
  Json whole = Span(trace, root, parent, record.score ? "score" : "generate", kKindServer,
                    record.arrived + offset, record.ended + offset);
  whole["attributes"] = {Text("lamina.request_id", record.followed_id),
                         Text("lamina.id", record.id),
                         Number("lamina.choices", record.choices),
                         Number("lamina.preemptions", record.preemptions),
                         Number("gen_ai.usage.input_tokens", record.prompt_tokens),
                         Number("gen_ai.usage.output_tokens", record.completion_tokens)};
  whole["status"] = StatusOf(record.status);
  spans.push_back(std::move(whole));
  const auto part = [&](const char* name, Nanos from, Nanos to) {
    if (from != 0) {
      spans.push_back(Span(trace, RandomHex(16), root, name, kKindInternal, from + offset,
                           (to != 0 ? to : record.ended) + offset));
    }
  };
  part("queue", record.arrived, record.started);
  part("prefill", record.started, record.first_token);
  part("decode", record.first_token, record.ended);
  if (record.caller.has_value() && !record.caller->state.empty()) {
    for (Json& span : spans) {
      span["traceState"] = record.caller->state;
    }
  }
  const Json resource = {{"attributes",
                          {Text("service.name", "lamina-coordinator"),
                           Text("service.version", std::string(kVersion))}}};
  const Json scope = {{"name", "lamina"}, {"version", std::string(kVersion)}};
  const Json line = {
      {"resourceSpans",
       Json::array({{{"resource", resource},
                     {"scopeSpans", Json::array({{{"scope", scope}, {"spans", spans}}})}}})}};
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void SpanFile::Write(const RequestRecord& record) {
  if (record.caller.has_value() && !record.caller->sampled) {
    return;
  }
  const std::string line = LineOf(record, WallNow() - clock_.Now());
  const bool written =
      std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  if (!written && !std::exchange(failed_, true)) {
    LogWarning("coordinator.spans: cannot write ", path_, ": ", std::strerror(errno));
  }
}

}  // namespace lamina::coordinator

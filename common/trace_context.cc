// SPDX-License-Identifier: Apache-2.0
#include "common/trace_context.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace lamina {
namespace {

// version "-" trace-id "-" parent-id "-" flags
constexpr size_t kTraceIdAt = 3;
constexpr size_t kTraceIdDigits = 32;
constexpr size_t kSpanIdAt = kTraceIdAt + kTraceIdDigits + 1;
constexpr size_t kSpanIdDigits = 16;
constexpr size_t kFlagsAt = kSpanIdAt + kSpanIdDigits + 1;
constexpr size_t kLength = kFlagsAt + 2;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == text.npos; }

}  // namespace

bool IsRequestId(absl::string_view text) {
  return !text.empty() && text.size() <= kFollowedIdBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

std::optional<TraceContext> ParseTraceParent(absl::string_view header) {
  // Later versions may add fields behind another dash.
  const bool known = header.substr(0, 2) == "00";
  if (header.size() < kLength || (known && header.size() != kLength) ||
      (header.size() > kLength && header[kLength] != '-')) {
    return std::nullopt;
  }
  const absl::string_view version = header.substr(0, 2);
  const absl::string_view trace_id = header.substr(kTraceIdAt, kTraceIdDigits);
  const absl::string_view span_id = header.substr(kSpanIdAt, kSpanIdDigits);
  const absl::string_view flags = header.substr(kFlagsAt, 2);
  if (header[kTraceIdAt - 1] != '-' || header[kSpanIdAt - 1] != '-' ||
      header[kFlagsAt - 1] != '-' || !IsHex(version) || version == "ff" || !IsHex(trace_id) ||
      IsZero(trace_id) || !IsHex(span_id) || IsZero(span_id) || !IsHex(flags)) {
    return std::nullopt;
  }
  const char low = flags[1];
  const int digit = low <= '9' ? low - '0' : low - 'a' + 10;
  return TraceContext{.trace_id = std::string(trace_id),
                      .span_id = std::string(span_id),
                      .sampled = (digit & 1) != 0};
}

std::string TraceParentToPassOn(absl::string_view header) {
  return absl::StrCat("00", header.substr(kTraceIdAt - 1, kLength - (kTraceIdAt - 1)));
}

bool IsTraceState(absl::string_view text) {
  return !text.empty() && text.size() <= kTraceStateBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
}

}  // namespace lamina

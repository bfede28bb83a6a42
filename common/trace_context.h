// SPDX-License-Identifier: Apache-2.0
//
// Names by which one request is followed from a client through all daemons: the request id, and the
// traceparent of W3C's Trace Context. Both are headers of HTTP and metadata of gRPC.

#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

inline constexpr char kRequestIdHeader[] = "x-request-id";
inline constexpr char kTraceParentHeader[] = "traceparent";
inline constexpr size_t kFollowedIdBytesMax = 128;

// Whether a client's request id may stand in headers and logs: 1 to kFollowedIdBytesMax bytes that
// ASCII can show, no space.
bool IsRequestId(absl::string_view text);

// Who called, as a tracing system knows it.
struct TraceContext {
  std::string trace_id;  // 32 digits, lower-case hexadecimal, not all 0.
  std::string span_id;   // 16 digits, the same.
  bool sampled = false;
};

// What a header says; nothing if it is not of the standard's form: then a trace begins here.
std::optional<TraceContext> ParseTraceParent(absl::string_view header);

}  // namespace lamina

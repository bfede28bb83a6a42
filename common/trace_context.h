// SPDX-License-Identifier: Apache-2.0
//
// Names by which one request is followed from a client through all daemons: the request id, and
// traceparent and tracestate of W3C's Trace Context. All are headers of HTTP and metadata of gRPC.

#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lamina {

inline constexpr char kRequestIdHeader[] = "x-request-id";
inline constexpr char kTraceParentHeader[] = "traceparent";
inline constexpr char kTraceStateHeader[] = "tracestate";
// Initial metadata of a stream of tokens: the id by which Inference.Attach goes on with it.
inline constexpr char kJournaledHeader[] = "lamina-journaled";
inline constexpr size_t kFollowedIdBytesMax = 128;
inline constexpr size_t kTraceStateBytesMax = 512;

// Whether a client's request id may stand in headers and logs: 1 to kFollowedIdBytesMax bytes that
// ASCII can show, no space.
bool IsRequestId(absl::string_view text);

// Who called, as a tracing system knows it.
struct TraceContext {
  std::string trace_id;  // 32 digits, lower-case hexadecimal, not all 0.
  std::string span_id;   // 16 digits, the same.
  bool sampled = false;
  std::string state;  // What tracing systems say to each other; passed on as it is.
};

// What a header says; nothing if it is not of the standard's form: then a trace begins here.
std::optional<TraceContext> ParseTraceParent(absl::string_view header);

// The header as it is passed on: in version 00, without what a later version has behind it, which
// may be any bytes, also those that metadata of gRPC cannot have.
// Requires: ParseTraceParent() takes `header`.
std::string TraceParentToPassOn(absl::string_view header);

// Whether a tracestate is passed on: 1 to kTraceStateBytesMax bytes that ASCII can show, or spaces.
bool IsTraceState(absl::string_view text);

}  // namespace lamina

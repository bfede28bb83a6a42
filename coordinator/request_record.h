// SPDX-License-Identifier: Apache-2.0
//
// RequestRecord: what is left to say of a request when it has ended: for the log and for spans.
// Holds no text of the prompt and none of the answer.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/trace_context.h"

namespace lamina::coordinator {

struct RequestRecord {
  std::string followed_id;  // The client's x-request-id, or the id below.
  std::string id;
  std::optional<TraceContext> caller;
  bool score = false;
  uint32_t choices = 0;
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;  // Tokens of all choices.
  uint32_t preemptions = 0;
  Nanos arrived = 0;
  Nanos started = 0;      // The first step with a part of it was planned; 0: never.
  Nanos first_token = 0;  // The first token of any choice; 0: none came.
  Nanos ended = 0;
  absl::Status status;
};

// An id that nobody guesses: whoever knows it may cancel the request.
std::string MakeRequestId();

// What timelines, which everybody may read, call a request: its id as logs have it, but of one that
// was made, here or by the gateway, only enough to find it in them.
std::string TracedId(const std::string& id);

using RequestEndFunction = std::function<void(const RequestRecord& record)>;

// One line each: `admitted`, with the sequences by which nodes know the request, and `finished` or
// `failed`.
void LogAdmitted(const RequestRecord& record, uint64_t first_sequence);
void LogEnded(const RequestRecord& record);

}  // namespace lamina::coordinator

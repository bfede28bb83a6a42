// SPDX-License-Identifier: Apache-2.0
//
// CacheSaltOf: with whom a request shares cached K and V (SequenceRequest::cache_salt).

#pragma once

#include <string>

#include "absl/strings/match.h"
#include "coordinator/engine_options.h"

namespace lamina::coordinator {

// K and V of rows with heads that stream are made of other values than those of exact ones, so that
// blocks of these are found by requests of the same heads, sink and window alone; and so are those
// of INT8 next to bf16, which lie in slots of their own, too. Those of fetch_hybrid are exact, but
// in slots of their own: nobody waits for what lies in the others. A salt that a client chose
// cannot be one of those: what begins as they do gets one more zero byte.
inline std::string CacheSaltOf(const PreparedPolicy& policy, const std::string& salt) {
  const std::string zero(1, '\0');
  if (policy.path == plan::AttentionPath::kStreaming ||
      policy.path == plan::AttentionPath::kRemoteInt8) {
    return zero + policy.lossy + zero + salt;
  }
  if (policy.path == plan::AttentionPath::kHybrid) {
    return zero + policy.name + zero + salt;
  }
  return absl::StartsWith(salt, zero) ? zero + salt : salt;
}

}  // namespace lamina::coordinator

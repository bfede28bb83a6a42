// SPDX-License-Identifier: Apache-2.0
//
// What every backend refuses about the arguments of a Put, before anything is sent.

#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "transport/transport.h"

namespace lamina::transport {

// The status of CheckPutArguments() for arguments that are wrong.
absl::Status PutArgumentsError(absl::string_view scheme, uint64_t region_bytes,
                               absl::Span<const uint64_t> raised, size_t offset, size_t bytes,
                               const SignalUpdate* signal);

// `raised` has the greatest value put to each signal word of the target; `scheme` is named in
// messages.
// Errors: kInvalidArgument  the range leaves the region, the word is not there, or its value would
//         not grow.
// Cost:   a few comparisons; a message is made only for an error.
inline absl::Status CheckPutArguments(absl::string_view scheme, uint64_t region_bytes,
                                      absl::Span<const uint64_t> raised, size_t offset,
                                      size_t bytes, const SignalUpdate* signal) {
  const bool inside = offset <= region_bytes && bytes <= region_bytes - offset;
  const bool grows =
      signal == nullptr || (signal->word < raised.size() && signal->value > raised[signal->word]);
  return inside && grows ? absl::OkStatus()
                         : PutArgumentsError(scheme, region_bytes, raised, offset, bytes, signal);
}

}  // namespace lamina::transport

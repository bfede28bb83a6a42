// SPDX-License-Identifier: Apache-2.0
#include "transport/put_check.h"

#include "absl/strings/str_cat.h"

namespace lamina::transport {

absl::Status PutArgumentsError(absl::string_view scheme, uint64_t region_bytes,
                               absl::Span<const uint64_t> raised, size_t offset, size_t bytes,
                               const SignalUpdate* signal) {
  if (offset > region_bytes || bytes > region_bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat(scheme, ": put of ", bytes, " bytes at ", offset,
                                                   " into a region of ", region_bytes));
  }
  if (signal->word >= raised.size()) {
    return absl::InvalidArgumentError(absl::StrCat(scheme, ": signal word ", signal->word,
                                                   " of a region that has ", raised.size()));
  }
  return absl::InvalidArgumentError(absl::StrCat(scheme, ": signal word ", signal->word, " is ",
                                                 raised[signal->word], " and cannot become ",
                                                 signal->value, ": values only grow"));
}

}  // namespace lamina::transport

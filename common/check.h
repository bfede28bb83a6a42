// SPDX-License-Identifier: Apache-2.0
//
// LAMINA_CHECK: aborts on what only a bug of ours can cause. Never used on bytes from a peer, a
// file or a flag: those are absl::Status.

#pragma once

namespace lamina::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace lamina::internal

// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define LAMINA_CHECK(condition) \
  ((condition) ? void() : ::lamina::internal::CheckFailed(__FILE__, __LINE__, #condition))

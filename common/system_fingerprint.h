// SPDX-License-Identifier: Apache-2.0
//
// What OpenAI's answers call `system_fingerprint`: the version, and what makes an answer lossy.

#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/version.h"

namespace lamina {

// "lamina-0.1.0", or "lamina-0.1.0-fetch_sparse-0.5-window_sums" with the word of a lossy answer.
inline std::string SystemFingerprint(absl::string_view lossy) {
  return absl::StrCat("lamina-", kVersion, lossy.empty() ? "" : "-", lossy);
}

}  // namespace lamina

// SPDX-License-Identifier: Apache-2.0
//
// SparseTokens: which tokens a decode row attends to under policy fetch_sparse
// (policy/fetch_sparse.h).

#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace lamina {

enum class SparseTokens : uint8_t {
  kWindowSums,  // The most recent ones, and those with the largest attention sums of late.
  kLocal,       // The most recent ones.
  kStrided,     // Ones at a fixed stride.
};

// Names are those of the cluster file.
inline absl::string_view SparseTokensName(SparseTokens tokens) {
  switch (tokens) {
    case SparseTokens::kWindowSums:
      return "window_sums";
    case SparseTokens::kLocal:
      return "local";
    case SparseTokens::kStrided:
      return "strided";
  }
  return "?";
}

}  // namespace lamina

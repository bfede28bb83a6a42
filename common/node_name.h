// SPDX-License-Identifier: Apache-2.0
//
// How nodes may be named, in the cluster file and in calls that change members.

#pragma once

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace lamina {

inline constexpr size_t kNodeNameBytesMax = 63;  // Names become file names and host labels.

// 1 to kNodeNameBytesMax letters, digits, '_' or '-', beginning with a letter or digit.
inline bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= kNodeNameBytesMax &&
         absl::ascii_isalnum(static_cast<unsigned char>(name[0])) &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

// Whether other daemons of a cluster have this name.
inline bool IsDaemonName(absl::string_view name) {
  return name == "coordinator" || name == "gateway";
}

}  // namespace lamina

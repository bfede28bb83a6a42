// SPDX-License-Identifier: Apache-2.0
//
// Overrides of a cluster file: "key.path=value" put into its YAML tree before it is read.

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "yaml-cpp/yaml.h"

namespace lamina::internal {

// Sets the value at the path in `root`, making maps on the way. A segment under a list is an index
// (one past the end appends) or the `name` of an element. The value is YAML: a word, a number,
// [a, b] or {k: v}; "null" takes the key away.
//
// Returns the path with names turned into indices: "memory.m0.capacity" gives "memory.0.capacity".
// Errors: kInvalidArgument  no '=', an empty path, a path through a value, or an unknown element
//                           (lists the known ones). `root` is then unspecified.
absl::StatusOr<std::string> ApplyOverride(const std::string& assignment, const YAML::Node& root);

}  // namespace lamina::internal

// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/host_port.h"
#include "common/status_macros.h"
#include "config/override_internal.h"

namespace lamina::internal {
namespace {

// Turns an index or a name into the index of a list's element.
absl::StatusOr<size_t> FindElement(const YAML::Node& list, const std::string& segment,
                                   const std::string& assignment) {
  size_t index = 0;
  if (absl::SimpleAtoi(segment, &index) && index <= list.size()) {
    return index;
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < list.size(); ++i) {
    const YAML::Node element = list[i];
    if (!element.IsMap() || !element["name"] || !element["name"].IsScalar()) {
      continue;
    }
    names.push_back(element["name"].Scalar());
    if (names.back() == segment) {
      return i;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("--set ", assignment, ": no element '", segment,
                                                 "'; the list has ", list.size(), " (",
                                                 absl::StrJoin(names, ", "), ")"));
}

absl::StatusOr<YAML::Node> ParseValue(const std::string& assignment, const std::string& text) {
  // What is empty would be no value, and [::1]:7400 a list with something behind it.
  if (text.empty() || (text.front() == '[' && ParseHostPort(text).has_value())) {
    return YAML::Node(text);
  }
  try {
    const std::vector<YAML::Node> values = YAML::LoadAll(text);
    if (values.size() > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", assignment, ": the value ends before the text does; put all of ",
                       "it into the brackets, or into quotes"));
    }
    return values.empty() ? YAML::Node() : values[0];
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": the value is not YAML: ", error.msg));
  }
}

}  // namespace

absl::StatusOr<std::string> ApplyOverride(const std::string& assignment, const YAML::Node& root) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set ", assignment, ": write it like pipeline.mode=fixed"));
  }
  LAMINA_ASSIGN_OR_RETURN(const YAML::Node value,
                          ParseValue(assignment, assignment.substr(equals + 1)));
  std::vector<std::string> path = absl::StrSplit(assignment.substr(0, equals), '.');
  YAML::Node at = root;
  for (size_t i = 0; i < path.size(); ++i) {
    const bool last = i + 1 == path.size();
    if (path[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", assignment, ": the key has an empty part"));
    }
    if (at.IsSequence()) {
      LAMINA_ASSIGN_OR_RETURN(const size_t index, FindElement(at, path[i], assignment));
      path[i] = absl::StrCat(index);
      if (index == at.size()) {
        at.push_back(YAML::Node());
      }
      if (last) {
        at[index] = value;
      }
      at.reset(at[index]);
    } else if (at.IsMap() || at.IsNull() || !at.IsDefined()) {
      if (last && value.IsNull()) {
        at.remove(path[i]);
        break;
      }
      if (last) {
        at[path[i]] = value;
      } else if (!at[path[i]]) {
        at[path[i]] = YAML::Node();
      }
      at.reset(at[path[i]]);
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--set ", assignment, ": '", absl::StrJoin(absl::MakeSpan(path).first(i), "."),
          "' is a value and has no keys"));
    }
  }
  return absl::StrJoin(path, ".");
}

}  // namespace lamina::internal

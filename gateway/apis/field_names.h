// SPDX-License-Identifier: Apache-2.0
//
// FieldNames: what the fields of a translated chat are called in the request that the client sent,
// so that errors name what the client knows.
//
// Threading: const calls from any thread.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace lamina::gateway {

class FieldNames {
 public:
  // The chat's field `ours`, as "tools[0].function", is the client's `theirs`, and so is what lies
  // within it, unless that has a name of its own.
  void Add(std::string ours, std::string theirs) {
    names_.emplace_back(std::move(ours), std::move(theirs));
  }

  // The error, in its parameter and its message, with the client's name of the field. All others,
  // and OK, stay as they are.
  absl::Status InClientsWords(const absl::Status& status) const;

 private:
  std::vector<std::pair<std::string, std::string>> names_;
};

}  // namespace lamina::gateway

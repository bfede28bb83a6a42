// SPDX-License-Identifier: Apache-2.0
#include "config/model_name.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lamina {

std::string ModelNameOf(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(
      path, '/', [](absl::string_view part) { return !part.empty() && part != "."; });
  if (parts.empty()) {
    return std::string(path);
  }
  const size_t last = parts.size() - 1;
  if (last >= 2 && parts[last - 1] == "snapshots" &&
      absl::StartsWith(parts[last - 2], "models--")) {
    const absl::string_view repository = parts[last - 2];
    // Names of organisations and of models have no "--" in them.
    return std::string(repository.substr(repository.rfind("--") + 2));
  }
  return std::string(absl::StripSuffix(parts[last], ".gguf"));
}

}  // namespace lamina

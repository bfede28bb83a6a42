// SPDX-License-Identifier: Apache-2.0
#include "config/model_name.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lamina {
namespace {

// The first part of a split GGUF file is NAME-00001-of-00003.
absl::string_view WithoutPart(absl::string_view name) {
  constexpr absl::string_view kFirst = "-00001-of-";
  constexpr size_t kDigits = 5;
  const size_t place = name.rfind(kFirst);
  const bool part = place != absl::string_view::npos && place > 0 &&
                    name.size() == place + kFirst.size() + kDigits;
  return part ? name.substr(0, place) : name;
}

}  // namespace

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
  absl::string_view name = parts[last];
  return std::string(absl::ConsumeSuffix(&name, ".gguf") ? WithoutPart(name) : name);
}

}  // namespace lamina

// SPDX-License-Identifier: Apache-2.0
#include "model/generation_config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/mapped_file.h"

namespace lamina::model {
namespace {

using Json = nlohmann::json;

constexpr size_t kBytesMax = 1 << 20;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  LAMINA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  if (file.bytes().empty() || file.bytes().size() > kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has ", file.bytes().size(), " bytes; it must have 1 to ", kBytesMax));
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

template <typename T>
absl::Status Read(const Json& json, const std::string& path, const char* name, double least,
                  double most, std::optional<T>& out) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) {
    return absl::OkStatus();
  }
  const double value = found->is_number() ? found->get<double>() : std::nan("");
  if (!(value >= least && value <= most) ||
      (std::is_integral_v<T> && !found->is_number_integer())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", name, " is ", found->dump(), "; it must be in [", least, ", ",
                     most, "]; generation_config: none leaves the file alone"));
  }
  out = static_cast<T>(value);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingDefaults> ReadSamplingDefaults(const std::string& path) {
  SamplingDefaults defaults;
  const std::string file = path + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored)) {
    return defaults;
  }
  LAMINA_ASSIGN_OR_RETURN(const std::string text, ReadText(file));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, " is not a JSON object"));
  }
  constexpr double kSmallest = 1e-6;
  LAMINA_RETURN_IF_ERROR(Read(json, file, "temperature", 0, 100, defaults.temperature));
  LAMINA_RETURN_IF_ERROR(
      Read(json, file, "top_k", 0, std::numeric_limits<int32_t>::max(), defaults.top_k));
  LAMINA_RETURN_IF_ERROR(Read(json, file, "top_p", kSmallest, 1, defaults.top_p));
  LAMINA_RETURN_IF_ERROR(Read(json, file, "min_p", 0, 1, defaults.min_p));
  LAMINA_RETURN_IF_ERROR(
      Read(json, file, "repetition_penalty", kSmallest, 1e6, defaults.repetition_penalty));
  return defaults;
}

absl::StatusOr<std::string> ReadChatTemplate(const std::string& path) { return ReadText(path); }

}  // namespace lamina::model

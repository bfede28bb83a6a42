// SPDX-License-Identifier: Apache-2.0
//
// The typed look-ups of GgufFile.

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/gguf/gguf_file.h"

namespace lamina::model {
namespace {

absl::Status WrongType(absl::string_view key, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("metadata \"", key, "\" is not ", expected, ", as it should be"));
}

absl::StatusOr<const GgufValue*> FindValue(const std::map<std::string, GgufValue>& metadata,
                                           absl::string_view key) {
  const auto found = metadata.find(std::string(key));
  if (found == metadata.end()) {
    return absl::NotFoundError(absl::StrCat("the file has no metadata \"", key, "\""));
  }
  return &found->second;
}

template <typename T>
absl::StatusOr<const T*> FindTyped(const std::map<std::string, GgufValue>& metadata,
                                   absl::string_view key, absl::string_view expected) {
  LAMINA_ASSIGN_OR_RETURN(const GgufValue* value, FindValue(metadata, key));
  const T* typed = std::get_if<T>(value);
  if (typed == nullptr) {
    return WrongType(key, expected);
  }
  return typed;
}

}  // namespace

bool GgufFile::Has(absl::string_view key) const {
  return metadata_.find(std::string(key)) != metadata_.end();
}

absl::StatusOr<uint64_t> GgufFile::GetUint(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(const GgufValue* value, FindValue(metadata_, key));
  if (const auto* number = std::get_if<uint64_t>(value)) {
    return *number;
  }
  const auto* number = std::get_if<int64_t>(value);
  if (number != nullptr && *number >= 0) {
    return static_cast<uint64_t>(*number);
  }
  return WrongType(key, "a whole number of zero or more");
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(const GgufValue* value, FindValue(metadata_, key));
  if (const auto* number = std::get_if<double>(value)) {
    return *number;
  }
  if (const auto* number = std::get_if<uint64_t>(value)) {
    return static_cast<double>(*number);
  }
  if (const auto* number = std::get_if<int64_t>(value)) {
    return static_cast<double>(*number);
  }
  return WrongType(key, "a number");
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(const bool* value, FindTyped<bool>(metadata_, key, "true or false"));
  return *value;
}

absl::StatusOr<std::string> GgufFile::GetString(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(const std::string* value,
                          FindTyped<std::string>(metadata_, key, "a string"));
  return *value;
}

absl::StatusOr<absl::Span<const std::string>> GgufFile::GetStrings(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(
      const std::vector<std::string>* values,
      FindTyped<std::vector<std::string>>(metadata_, key, "an array of strings"));
  return absl::MakeConstSpan(*values);
}

absl::StatusOr<absl::Span<const int64_t>> GgufFile::GetInts(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(
      const std::vector<int64_t>* values,
      FindTyped<std::vector<int64_t>>(metadata_, key, "an array of whole numbers"));
  return absl::MakeConstSpan(*values);
}

absl::StatusOr<absl::Span<const double>> GgufFile::GetFloats(absl::string_view key) const {
  LAMINA_ASSIGN_OR_RETURN(const std::vector<double>* values,
                          FindTyped<std::vector<double>>(metadata_, key, "an array of numbers"));
  return absl::MakeConstSpan(*values);
}

}  // namespace lamina::model

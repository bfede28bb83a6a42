// SPDX-License-Identifier: Apache-2.0
#include "gateway/apis/field_names.h"

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

bool IsWithin(absl::string_view path, absl::string_view field) {
  return absl::ConsumePrefix(&path, field) &&
         (path.empty() || path.front() == '.' || path.front() == '[');
}

}  // namespace

absl::Status FieldNames::InClientsWords(const absl::Status& status) const {
  const std::string field = FieldOf(status);
  const std::pair<std::string, std::string>* nearest = nullptr;
  for (const auto& name : names_) {
    if (IsWithin(field, name.first) &&
        (nearest == nullptr || name.first.size() > nearest->first.size())) {
      nearest = &name;
    }
  }
  return nearest == nullptr ? status : RenameField(status, nearest->first, nearest->second);
}

}  // namespace lamina::gateway

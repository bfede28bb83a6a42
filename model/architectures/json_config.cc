// SPDX-License-Identifier: Apache-2.0
//
// JsonConfig over nlohmann's JSON, exceptions switched off.

#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "model/architectures/json_config_internal.h"
#include "model/json_text.h"

namespace lamina::model {
namespace {

absl::Status Wrong(absl::string_view key, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("config.json: \"", key, "\" should be ", expected));
}

bool AsUint(const nlohmann::json& value, uint32_t& out) {
  if (!value.is_number_unsigned()) {
    return false;
  }
  const auto number = value.get<uint64_t>();
  out = static_cast<uint32_t>(number);
  return number <= std::numeric_limits<uint32_t>::max();
}

}  // namespace

absl::StatusOr<JsonConfig> JsonConfig::Parse(absl::Span<const uint8_t> text) {
  LAMINA_RETURN_IF_ERROR(CheckJsonText({reinterpret_cast<const char*>(text.data()), text.size()},
                                       "config.json", kSettingsLimits));
  JsonConfig config;
  config.json_ =
      nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (config.json_.is_discarded()) {
    config.json_ = nlohmann::json::parse(
        WithNullForNan({reinterpret_cast<const char*>(text.data()), text.size()}), nullptr,
        /*allow_exceptions=*/false);
  }
  if (!config.json_.is_object()) {
    return absl::DataLossError("it is not a JSON object; fetch the file again");
  }
  return config;
}

bool JsonConfig::Has(const char* key) const {
  const auto found = json_.find(key);
  return found != json_.end() && !found->is_null();
}

absl::StatusOr<uint32_t> JsonConfig::GetUint(const char* key) const {
  uint32_t value = 0;
  if (!Has(key) || !AsUint(json_[key], value)) {
    return Wrong(key, "a whole number of zero or more");
  }
  return value;
}

absl::StatusOr<uint32_t> JsonConfig::GetUint(const char* key, uint32_t otherwise) const {
  return Has(key) ? GetUint(key) : otherwise;
}

absl::StatusOr<float> JsonConfig::GetFloat(const char* key) const {
  if (!Has(key) || !json_[key].is_number()) {
    return Wrong(key, "a number");
  }
  const auto value = json_[key].get<double>();
  if (!(std::abs(value) <= double{std::numeric_limits<float>::max()})) {
    return Wrong(key, "a number that fits 32 bits");
  }
  return static_cast<float>(value);
}

absl::StatusOr<float> JsonConfig::GetFloat(const char* key, float otherwise) const {
  return Has(key) ? GetFloat(key) : otherwise;
}

absl::StatusOr<bool> JsonConfig::GetBool(const char* key, bool otherwise) const {
  if (!Has(key)) {
    return otherwise;
  }
  if (!json_[key].is_boolean()) {
    return Wrong(key, "true or false");
  }
  return json_[key].get<bool>();
}

absl::StatusOr<std::string> JsonConfig::GetString(const char* key,
                                                  absl::string_view otherwise) const {
  if (!Has(key)) {
    return std::string(otherwise);
  }
  if (!json_[key].is_string()) {
    return Wrong(key, "a string");
  }
  return json_[key].get<std::string>();
}

absl::StatusOr<std::vector<uint32_t>> JsonConfig::GetUints(const char* key) const {
  std::vector<uint32_t> values;
  if (!Has(key)) {
    return values;
  }
  const nlohmann::json& value = json_[key];
  const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
  for (const nlohmann::json& item : list) {
    if (!AsUint(item, values.emplace_back())) {
      return Wrong(key, "a whole number or a list of them");
    }
  }
  return values;
}

absl::StatusOr<std::vector<std::string>> JsonConfig::GetStrings(const char* key) const {
  std::vector<std::string> values;
  if (!Has(key)) {
    return values;
  }
  if (!json_[key].is_array()) {
    return Wrong(key, "a list of strings");
  }
  for (const nlohmann::json& item : json_[key]) {
    if (!item.is_string()) {
      return Wrong(key, "a list of strings");
    }
    values.push_back(item.get<std::string>());
  }
  return values;
}

absl::StatusOr<std::vector<float>> JsonConfig::GetFloats(const char* key) const {
  std::vector<float> values;
  if (!Has(key)) {
    return values;
  }
  if (!json_[key].is_array()) {
    return Wrong(key, "a list of numbers");
  }
  for (const nlohmann::json& item : json_[key]) {
    if (!item.is_number() ||
        !(std::abs(item.get<double>()) <= double{std::numeric_limits<float>::max()})) {
      return Wrong(key, "a list of numbers that fit 32 bits");
    }
    values.push_back(static_cast<float>(item.get<double>()));
  }
  return values;
}

JsonConfig JsonConfig::WithDefaults(absl::string_view object) const {
  JsonConfig all;
  all.json_ = nlohmann::json::parse(object, nullptr, /*allow_exceptions=*/false);
  LAMINA_CHECK(all.json_.is_object());
  for (const auto& [key, value] : json_.items()) {
    if (!value.is_null() || !all.json_.contains(key)) {
      all.json_[key] = value;
    }
  }
  return all;
}

JsonConfig JsonConfig::Without(const char* key) const {
  JsonConfig rest = *this;
  rest.json_.erase(key);
  return rest;
}

absl::StatusOr<JsonConfig> JsonConfig::Section(const char* key) const {
  JsonConfig section;
  if (Has(key)) {
    section.json_ = json_[key];
    if (!section.json_.is_object()) {
      return Wrong(key, "an object");
    }
  }
  return section;
}

bool JsonConfig::HasSections() const {
  for (const nlohmann::json& value : json_) {
    if (value.is_object()) {
      return true;
    }
  }
  return false;
}

}  // namespace lamina::model

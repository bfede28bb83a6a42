// SPDX-License-Identifier: Apache-2.0
#include "client/json_object.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/field_error.h"

namespace lamina::client {

absl::string_view JsonTypeName(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
      return "an integer";
    case Json::value_t::number_float:
      return "a decimal";
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return "unknown";
}

std::optional<int64_t> ExactInteger(const Json& value) {
  constexpr double kExactMax = 9007199254740992;  // 2^53: above, decimals leave integers out.
  if (value.is_number_float()) {
    const auto decimal = value.get<double>();
    const bool exact = std::trunc(decimal) == decimal && std::abs(decimal) <= kExactMax;
    return exact ? std::optional<int64_t>(static_cast<int64_t>(decimal)) : std::nullopt;
  }
  const bool fits =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  return fits ? std::optional<int64_t>(value.get<int64_t>()) : std::nullopt;
}

absl::Status WrongType(absl::string_view path, absl::string_view expected, const Json& value) {
  return BadField(
      std::string(path), "invalid_type",
      absl::StrCat("'", path, "' must be ", expected, ", and is ", JsonTypeName(value)));
}

absl::Status Missing(absl::string_view path) {
  return BadField(std::string(path), "missing_required_parameter",
                  absl::StrCat("'", path, "' is missing"));
}

const Json* JsonObject::Find(absl::string_view name) {
  const std::string key(name);
  known_.insert(key);
  const auto found = value_.find(key);
  return found == value_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<const Json*> JsonObject::Object(absl::string_view name) {
  const Json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    return WrongType(PathOf(name), "an object", *value);
  }
  return value;
}

absl::StatusOr<std::optional<bool>> JsonObject::Bool(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    return WrongType(PathOf(name), "a boolean", *value);
  }
  return value->get<bool>();
}

absl::StatusOr<std::optional<int64_t>> JsonObject::Integer(absl::string_view name, int64_t least,
                                                           int64_t most) {
  const Json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  const std::optional<int64_t> exact = ExactInteger(*value);
  if (exact.has_value() && *exact >= least && *exact <= most) {
    return exact;
  }
  // What is too large for an integer is read as a decimal.
  const bool whole =
      value->is_number_integer() ||
      (value->is_number_float() && std::trunc(value->get<double>()) == value->get<double>());
  const double about = whole ? value->get<double>() : 0;
  const bool above = exact.has_value()
                         ? *exact > most
                         : value->is_number_integer() || about > static_cast<double>(most);
  const bool below = exact.has_value() ? *exact < least : about < static_cast<double>(least);
  if (!whole || (!above && !below)) {
    return WrongType(PathOf(name), "an integer", *value);
  }
  return BadField(PathOf(name), above ? "integer_above_max_value" : "integer_below_min_value",
                  absl::StrCat("'", PathOf(name), "' is ", value->dump(), "; it must be in [",
                               least, ", ", most, "]"));
}

absl::StatusOr<std::optional<double>> JsonObject::Number(absl::string_view name, double least,
                                                         double most) {
  const Json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    return WrongType(PathOf(name), "a number", *value);
  }
  const auto number = value->get<double>();
  if (!(number >= least && number <= most)) {
    return BadField(PathOf(name),
                    number > most ? "decimal_above_max_value" : "decimal_below_min_value",
                    absl::StrCat("'", PathOf(name), "' is ", number, "; it must be in [", least,
                                 ", ", most, "]"));
  }
  return number;
}

absl::StatusOr<std::optional<std::string>> JsonObject::String(absl::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    return WrongType(PathOf(name), "a string", *value);
  }
  return value->get<std::string>();
}

absl::StatusOr<std::vector<std::string>> JsonObject::Strings(absl::string_view name,
                                                             size_t count_max) {
  const Json* value = Find(name);
  std::vector<std::string> strings;
  if (value == nullptr) {
    return strings;
  }
  if (value->is_string()) {
    strings.push_back(value->get<std::string>());
    return strings;
  }
  if (!value->is_array()) {
    return WrongType(PathOf(name), "a string or an array of strings", *value);
  }
  if (value->size() > count_max) {
    return BadField(PathOf(name), "array_above_max_length",
                    absl::StrCat("'", PathOf(name), "' has ", value->size(), " strings; at most ",
                                 count_max, " are allowed"));
  }
  for (const Json& element : *value) {
    if (!element.is_string()) {
      return WrongType(PathOf(name), "a string or an array of strings", element);
    }
    strings.push_back(element.get<std::string>());
  }
  return strings;
}

absl::Status JsonObject::Refuse(absl::string_view name, const std::vector<Json>& neutral,
                                absl::string_view why) {
  const Json* value = Find(name);
  if (value == nullptr || std::find(neutral.begin(), neutral.end(), *value) != neutral.end()) {
    return absl::OkStatus();
  }
  return BadField(PathOf(name), "unsupported_parameter",
                  absl::StrCat("'", PathOf(name), "' is not supported: ", why));
}

absl::Status JsonObject::RefuseUnknown() const {
  for (const auto& [name, value] : value_.items()) {
    if (!value.is_null() && !known_.contains(name)) {
      return BadField(PathOf(name), "unknown_parameter",
                      absl::StrCat("unknown parameter '", PathOf(name), "'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace lamina::client

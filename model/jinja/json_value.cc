// SPDX-License-Identifier: Apache-2.0
#include "model/jinja/json_value.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/jinja/limits.h"

namespace lamina::jinja {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<Value> Convert(const Json& json, int depth) {
  if (depth > kNestingMax) {
    return absl::InvalidArgumentError(absl::StrCat("JSON nested deeper than ", kNestingMax));
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return absl::InvalidArgumentError(
            absl::StrCat("the number ", json.get<uint64_t>(), " does not fit 64 bits"));
      }
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return Value::String(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      for (const Json& item : json) {
        LAMINA_ASSIGN_OR_RETURN(Value value, Convert(item, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::List(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      for (const auto& [key, item] : json.items()) {
        LAMINA_ASSIGN_OR_RETURN(Value value, Convert(item, depth + 1));
        entries.emplace_back(Value::String(key), std::move(value));
      }
      return Value::Dict(std::move(entries));
    }
    case Json::value_t::null:
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return Value();
}

}  // namespace

absl::StatusOr<Value> FromJson(const Json& json) { return Convert(json, 0); }

}  // namespace lamina::jinja

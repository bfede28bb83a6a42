// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer/json_internal.h"

#include <limits>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace lamina::model {
namespace {

// The most bytes of a name that an error shows.
constexpr size_t kShownBytes = 64;

absl::Status Wrong(const char* key, absl::string_view expected, const Json* found) {
  return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is ",
                                                 found == nullptr ? "missing" : found->type_name(),
                                                 "; ", expected, " expected"));
}

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view path,
                               const JsonTextLimits& limits) {
  LAMINA_RETURN_IF_ERROR(CheckJsonText(text, path, limits));
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    Json repaired = Json::parse(WithNullForNan(text), nullptr, /*allow_exceptions=*/false);
    if (!repaired.is_discarded()) {
      return repaired;
    }
    return absl::DataLossError(
        absl::StrCat(path, " is damaged (", error.what(), "); fetch it again"));
  }
}

const Json* Member(const Json& json, const char* key) {
  if (!json.is_object()) {
    return nullptr;
  }
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::string> GetString(const Json& json, const char* key) {
  const Json* member = Member(json, key);
  if (member == nullptr || !member->is_string()) {
    return Wrong(key, "a string", member);
  }
  return member->get_ref<const std::string&>();
}

absl::StatusOr<TokenId> GetTokenId(const Json& json, const char* key) {
  const Json* member = Member(json, key);
  return member == nullptr ? Wrong(key, "a token id", member) : AsTokenId(*member, key);
}

absl::StatusOr<TokenId> AsTokenId(const Json& value, absl::string_view what) {
  constexpr TokenId kMost = std::numeric_limits<TokenId>::max();
  // A number over 2^63 is negative as an int64_t.
  if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(what.substr(0, kShownBytes)), "\" is ",
                     value.is_number() ? value.dump() : value.type_name(), "; a token id, 0 to ",
                     kMost, ", expected"));
  }
  return value.get<TokenId>();
}

absl::StatusOr<const Json*> GetArray(const Json& json, const char* key) {
  const Json* member = Member(json, key);
  if (member == nullptr || !member->is_array()) {
    return Wrong(key, "a list", member);
  }
  return member;
}

absl::StatusOr<const Json*> GetObject(const Json& json, const char* key) {
  const Json* member = Member(json, key);
  if (member == nullptr || !member->is_object()) {
    return Wrong(key, "an object", member);
  }
  return member;
}

absl::StatusOr<bool> GetBool(const Json& json, const char* key, bool fallback) {
  const Json* member = Member(json, key);
  if (member == nullptr) {
    return fallback;
  }
  if (!member->is_boolean()) {
    return Wrong(key, "true or false", member);
  }
  return member->get<bool>();
}

}  // namespace lamina::model

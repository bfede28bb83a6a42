// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/schema_keywords.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "model/grammar/text_patterns.h"

namespace lamina::model {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::set<std::string>;

// Schemas within each other, those that references name among them: what follows these takes them
// apart by recursion.
constexpr size_t kDepthMax = 256;

// Everything by which a draft of JSON Schema, 4 to 2020-12, demands something of a value.
const Words& Demands() {
  static const auto* const words = new Words{"$ref",
                                             "$dynamicRef",
                                             "$recursiveRef",
                                             "const",
                                             "enum",
                                             "type",
                                             "anyOf",
                                             "oneOf",
                                             "allOf",
                                             "not",
                                             "if",
                                             "then",
                                             "else",
                                             "dependencies",
                                             "dependentRequired",
                                             "dependentSchemas",
                                             "properties",
                                             "required",
                                             "patternProperties",
                                             "propertyNames",
                                             "additionalProperties",
                                             "unevaluatedProperties",
                                             "minProperties",
                                             "maxProperties",
                                             "items",
                                             "prefixItems",
                                             "additionalItems",
                                             "unevaluatedItems",
                                             "minItems",
                                             "maxItems",
                                             "uniqueItems",
                                             "contains",
                                             "minContains",
                                             "maxContains",
                                             "multipleOf",
                                             "divisibleBy",
                                             "minimum",
                                             "maximum",
                                             "exclusiveMinimum",
                                             "exclusiveMaximum",
                                             "format",
                                             "pattern",
                                             "minLength",
                                             "maxLength",
                                             "contentEncoding",
                                             "contentMediaType",
                                             "contentSchema"};
  return *words;
}

const Words& OfObjects() {
  static const auto* const words = new Words{"properties",           "required",
                                             "patternProperties",    "propertyNames",
                                             "additionalProperties", "unevaluatedProperties",
                                             "minProperties",        "maxProperties",
                                             "dependencies",         "dependentRequired",
                                             "dependentSchemas"};
  return *words;
}

const Words& OfArrays() {
  static const auto* const words =
      new Words{"items",    "prefixItems", "additionalItems", "unevaluatedItems", "minItems",
                "maxItems", "uniqueItems", "contains",        "minContains",      "maxContains"};
  return *words;
}

const Words& OfNumbers() {
  static const auto* const words = new Words{"multipleOf", "divisibleBy",      "minimum",
                                             "maximum",    "exclusiveMinimum", "exclusiveMaximum"};
  return *words;
}

const Words& OfTexts() {
  static const auto* const words =
      new Words{"format",          "pattern",          "minLength",    "maxLength",
                "contentEncoding", "contentMediaType", "contentSchema"};
  return *words;
}

// Values of "format" that outputs will obey.
const Words& Formats() {
  static const auto* const words = new Words{"email",         "date",
                                             "time",          "date-time",
                                             "duration",      "ipv4",
                                             "ipv6",          "hostname",
                                             "uuid",          "uri",
                                             "uri-reference", "uri-template",
                                             "json-pointer",  "relative-json-pointer"};
  return *words;
}

std::string TypeOf(const Json& value) {
  if (value.is_object()) {
    return "object";
  }
  if (value.is_array()) {
    return "array";
  }
  if (value.is_string()) {
    return "string";
  }
  if (value.is_boolean()) {
    return "boolean";
  }
  if (value.is_number()) {
    return value.is_number_integer() || std::floor(value.get<double>()) == value.get<double>()
               ? "integer"
               : "number";
  }
  return "null";
}

Words TypesOf(const Json& schema) {
  Words types;
  const auto found = schema.find("type");
  if (found != schema.end()) {
    for (const Json& type : found->is_array() ? *found : Json::array({*found})) {
      if (type.is_string()) {
        types.insert(type.get<std::string>());
      }
    }
  }
  return types;
}

bool Takes(const Words& types, const std::string& type) {
  return types.contains(type) || (type == "integer" && types.contains("number"));
}

// A pattern for the lengths of a string; nothing if there are none, if they allow the empty string
// alone, or if they are for the compiler to refuse.
std::optional<std::string> PatternOfLengths(const Json& schema) {
  constexpr uint64_t kBoundMax = INT32_MAX;  // The compiler's; what is above it is no bound.
  const auto least = schema.find("minLength");
  const auto most = schema.find("maxLength");
  for (const auto& bound : {least, most}) {
    if (bound != schema.end() && !bound->is_number_unsigned()) {
      return std::nullopt;
    }
  }
  const uint64_t low = least == schema.end() ? 0 : least->get<uint64_t>();
  const uint64_t high = most == schema.end() ? UINT64_MAX : most->get<uint64_t>();
  const bool bounded = high <= kBoundMax;
  if (low > kBoundMax || low > high || high == 0 || (low == 0 && !bounded)) {
    return std::nullopt;
  }
  return PatternOfLength(low, bounded ? std::optional<uint64_t>(high) : std::nullopt);
}

class Checker {
 public:
  explicit Checker(const Json& root) : root_(root) {}

  absl::Status Check(const Json& schema, const std::string& path);

  // Schemas that were looked at whose strings have lengths that a pattern is to say.
  const std::set<const Json*>& with_lengths() const { return with_lengths_; }

 private:
  // Refuses what is too deep.
  absl::Status Reach(size_t depth, const std::string& path);
  absl::Status CheckInside(const Json& schema, const std::string& path);
  static absl::Status Refuse(const std::string& path, absl::string_view keyword,
                             absl::string_view why);
  // Refuses each demand of `schema` but those of `obeyed`.
  static absl::Status Only(const Json& schema, const std::string& path, const Words& obeyed,
                           absl::string_view why);
  absl::Status CheckReference(const Json& schema, const std::string& path);
  absl::Status CheckValues(const Json& schema, const std::string& path, const char* keyword) const;
  absl::Status CheckAlternatives(const Json& schema, const std::string& path, const char* keyword);
  absl::Status CheckTypes(const Json& schema, const std::string& path);
  absl::Status CheckObject(const Json& schema, const std::string& path);
  absl::Status CheckArray(const Json& schema, const std::string& path);
  static absl::Status CheckNumber(const Json& schema, const std::string& path, bool whole);
  absl::Status CheckText(const Json& schema, const std::string& path);
  static absl::Status CheckPattern(const std::string& pattern, const std::string& path,
                                   absl::string_view keyword);
  absl::Status CheckEach(const Json& schema, const std::string& path, const char* keyword);
  // What was found in a copy, which may have more members, is true of `original`.
  void MoveLengths(const Json& copy, const Json& original);

  const Json& root_;
  size_t depth_ = 0;    // Schemas that are being looked at.
  size_t deepest_ = 0;  // The most of them below the last reference that is being followed.
  // References that were followed, and how many schemas within each other are behind each; 0 while
  // it is being followed, as one that leads back to itself is.
  std::map<std::string, size_t> heights_;
  std::set<const Json*> with_lengths_;
};

absl::Status Checker::Refuse(const std::string& path, absl::string_view keyword,
                             absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("the keyword '", keyword, "' of the JSON schema at ",
                   path.empty() ? "its root" : path, " would not be obeyed", why));
}

absl::Status Checker::Only(const Json& schema, const std::string& path, const Words& obeyed,
                           absl::string_view why) {
  for (const auto& [keyword, value] : schema.items()) {
    if (Demands().contains(keyword) && !obeyed.contains(keyword)) {
      return Refuse(path, keyword, why);
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::Reach(size_t depth, const std::string& path) {
  deepest_ = std::max(deepest_, depth);
  return depth <= kDepthMax
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("the JSON schema has schemas more than ", kDepthMax,
                                " deep within each other, counted through its references, at ",
                                path.empty() ? "its root" : path, "; write one that is less deep"));
}

absl::Status Checker::Check(const Json& schema, const std::string& path) {
  LAMINA_RETURN_IF_ERROR(Reach(depth_ + 1, path));
  ++depth_;
  absl::Status status = CheckInside(schema, path);
  --depth_;
  return status;
}

absl::Status Checker::CheckInside(const Json& schema, const std::string& path) {
  if (!schema.is_object()) {
    return absl::OkStatus();  // True, false, or for the compiler to refuse.
  }
  if (schema.contains("$ref")) {
    return CheckReference(schema, path);
  }
  for (const char* keyword : {"const", "enum"}) {
    if (schema.contains(keyword)) {
      return CheckValues(schema, path, keyword);
    }
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (schema.contains(keyword)) {
      return CheckAlternatives(schema, path, keyword);
    }
  }
  return CheckTypes(schema, path);
}

absl::Status Checker::CheckReference(const Json& schema, const std::string& path) {
  LAMINA_RETURN_IF_ERROR(Only(schema, path, {"$ref"}, " together with $ref"));
  const Json& target = schema["$ref"];
  if (!target.is_string()) {
    return absl::OkStatus();  // For the compiler to refuse.
  }
  const auto reference = target.get<std::string>();
  if (reference != "#" && !absl::StartsWith(reference, "#/")) {
    return Refuse(path, "$ref", absl::StrCat(": ", reference, " is no place in this schema"));
  }
  if (reference == "#") {
    return absl::OkStatus();
  }
  const auto [known, is_new] = heights_.emplace(reference, 0);
  if (!is_new) {
    return Reach(depth_ + known->second, path);
  }
  const Json* place = &root_;
  for (size_t begin = 2; begin <= reference.size();) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    const std::string name = reference.substr(begin, end - begin);
    // The compiler passes over empty names, so that it would come to another place.
    if (name.empty() || !place->is_object() || !place->contains(name)) {
      return Refuse(path, "$ref", absl::StrCat(": ", reference, " is no place in this schema"));
    }
    place = &(*place)[name];
    begin = end + 1;
  }
  const size_t deepest = std::exchange(deepest_, depth_);
  LAMINA_RETURN_IF_ERROR(Check(*place, reference));
  known->second = deepest_ - depth_;
  deepest_ = std::max(deepest, deepest_);
  return absl::OkStatus();
}

// A type together with values says nothing new when all of them have it.
absl::Status Checker::CheckValues(const Json& schema, const std::string& path,
                                  const char* keyword) const {
  LAMINA_RETURN_IF_ERROR(Only(schema, path, {keyword, "type"}, absl::StrCat(" and ", keyword)));
  const Words types = TypesOf(schema);
  const bool one = std::string(keyword) == "const" || !schema[keyword].is_array();
  for (const Json& value : one ? Json::array({schema[keyword]}) : schema[keyword]) {
    if (schema.contains("type") && !Takes(types, TypeOf(value))) {
      return Refuse(path, "type", absl::StrCat(": ", keyword, " has ", value.dump()));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckAlternatives(const Json& schema, const std::string& path,
                                        const char* keyword) {
  LAMINA_RETURN_IF_ERROR(Only(schema, path, {keyword, "type"}, absl::StrCat(" and ", keyword)));
  const Json& list = schema[keyword];
  if (std::string(keyword) == "allOf" && list.size() > 1) {
    return Refuse(path, keyword, ": it has several schemas; write them as one");
  }
  const Words types = TypesOf(schema);
  for (const Json& alternative : list) {
    const Words own = alternative.is_object() ? TypesOf(alternative) : Words();
    const bool within = !own.empty() && std::all_of(own.begin(), own.end(), [&](const auto& type) {
      return Takes(types, type);
    });
    if (schema.contains("type") && !within) {
      return Refuse(path, "type", absl::StrCat(" and ", keyword));
    }
  }
  return CheckEach(schema, path, keyword);
}

absl::Status Checker::CheckTypes(const Json& schema, const std::string& path) {
  Words types = TypesOf(schema);
  const auto any = [&schema](const Words& words) {
    return std::any_of(words.begin(), words.end(),
                       [&schema](const std::string& word) { return schema.contains(word); });
  };
  if (!schema.contains("type")) {
    if (any({"properties", "additionalProperties", "unevaluatedProperties"})) {
      types = {"object"};
    } else if (any({"items", "prefixItems", "unevaluatedItems"})) {
      types = {"array"};
    }
  }
  Words obeyed = {"type"};
  if (!types.empty()) {
    // What belongs to other types than these demands nothing.
    for (const Words* words : {&OfObjects(), &OfArrays(), &OfNumbers(), &OfTexts()}) {
      obeyed.insert(words->begin(), words->end());
    }
  }
  LAMINA_RETURN_IF_ERROR(
      Only(schema, path, obeyed, types.empty() && !any({"not", "if"}) ? " without a type" : ""));
  if (types.contains("object")) {
    LAMINA_RETURN_IF_ERROR(CheckObject(schema, path));
  }
  if (types.contains("array")) {
    LAMINA_RETURN_IF_ERROR(CheckArray(schema, path));
  }
  if (types.contains("number") || types.contains("integer")) {
    LAMINA_RETURN_IF_ERROR(CheckNumber(schema, path, !types.contains("number")));
  }
  return types.contains("string") ? CheckText(schema, path) : absl::OkStatus();
}

absl::Status Checker::CheckEach(const Json& schema, const std::string& path, const char* keyword) {
  const auto found = schema.find(keyword);
  if (found == schema.end() || !found->is_structured()) {
    return absl::OkStatus();
  }
  const std::string below = absl::StrCat(path, path.empty() ? "" : ".", keyword);
  size_t index = 0;
  for (const auto& [name, value] : found->items()) {
    LAMINA_RETURN_IF_ERROR(Check(value, found->is_array() ? absl::StrCat(below, "[", index++, "]")
                                                          : absl::StrCat(below, ".", name)));
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckObject(const Json& schema, const std::string& path) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    if (schema.contains(keyword)) {
      return Refuse(path, keyword, "");
    }
  }
  if (schema.contains("patternProperties") && schema.contains("propertyNames")) {
    return Refuse(path, "propertyNames", " together with patternProperties");
  }
  LAMINA_RETURN_IF_ERROR(CheckEach(schema, path, "properties"));
  LAMINA_RETURN_IF_ERROR(CheckEach(schema, path, "patternProperties"));
  if (schema.contains("patternProperties") && schema["patternProperties"].is_object()) {
    for (const auto& [pattern, value] : schema["patternProperties"].items()) {
      LAMINA_RETURN_IF_ERROR(CheckPattern(pattern, path, "patternProperties"));
    }
  }
  for (const char* keyword : {"additionalProperties", "unevaluatedProperties"}) {
    if (schema.contains(keyword)) {
      LAMINA_RETURN_IF_ERROR(Check(schema[keyword], absl::StrCat(path, ".", keyword)));
    }
  }
  if (schema.contains("propertyNames") && schema["propertyNames"].is_object()) {
    Json names = schema["propertyNames"];
    if (!names.contains("type")) {
      names["type"] = "string";
    }
    LAMINA_RETURN_IF_ERROR(Check(names, absl::StrCat(path, ".propertyNames")));
    MoveLengths(names, schema["propertyNames"]);
  }
  return absl::OkStatus();
}

void Checker::MoveLengths(const Json& copy, const Json& original) {
  if (with_lengths_.erase(&copy) > 0) {
    with_lengths_.insert(&original);
  }
  if (original.is_object()) {
    for (const auto& [name, part] : original.items()) {
      MoveLengths(copy[name], part);
    }
  } else if (original.is_array()) {
    for (size_t i = 0; i < original.size(); ++i) {
      MoveLengths(copy[i], original[i]);
    }
  }
}

absl::Status Checker::CheckArray(const Json& schema, const std::string& path) {
  for (const char* keyword : {"contains", "minContains", "maxContains", "additionalItems"}) {
    if (schema.contains(keyword)) {
      return Refuse(path, keyword, "");
    }
  }
  if (schema.contains("uniqueItems") && schema["uniqueItems"] != false) {
    return Refuse(path, "uniqueItems", "");
  }
  if (schema.contains("items") && schema.contains("unevaluatedItems")) {
    return Refuse(path, "unevaluatedItems", " together with items");
  }
  LAMINA_RETURN_IF_ERROR(CheckEach(schema, path, "prefixItems"));
  for (const char* keyword : {"items", "unevaluatedItems"}) {
    if (schema.contains(keyword)) {
      LAMINA_RETURN_IF_ERROR(Check(schema[keyword], absl::StrCat(path, ".", keyword)));
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckNumber(const Json& schema, const std::string& path, bool whole) {
  if (schema.contains("divisibleBy")) {
    return Refuse(path, "divisibleBy", "");
  }
  if (schema.contains("multipleOf") && !whole) {
    return Refuse(path, "multipleOf", " of a number");
  }
  for (const char* keyword : {"exclusiveMinimum", "exclusiveMaximum"}) {
    if (schema.contains(keyword) && schema[keyword].is_boolean()) {
      return Refuse(path, keyword, ": write the bound itself, as newer drafts do");
    }
  }
  return absl::OkStatus();
}

absl::Status Checker::CheckText(const Json& schema, const std::string& path) {
  for (const char* keyword : {"contentEncoding", "contentMediaType", "contentSchema"}) {
    if (schema.contains(keyword)) {
      return Refuse(path, keyword, "");
    }
  }
  const bool has_format = schema.contains("format");
  if (has_format &&
      !(schema["format"].is_string() && Formats().contains(schema["format"].get<std::string>()))) {
    return Refuse(path, "format", absl::StrCat(": ", schema["format"].dump()));
  }
  if (has_format && schema.contains("pattern")) {
    return Refuse(path, "pattern", " together with format");
  }
  for (const char* keyword : {"minLength", "maxLength"}) {
    if (schema.contains(keyword) && (has_format || schema.contains("pattern"))) {
      return Refuse(path, keyword, has_format ? " together with format" : " together with pattern");
    }
  }
  if (PatternOfLengths(schema).has_value()) {
    with_lengths_.insert(&schema);
  }
  return schema.contains("pattern") && schema["pattern"].is_string()
             ? CheckPattern(schema["pattern"].get<std::string>(), path, "pattern")
             : absl::OkStatus();
}

absl::Status Checker::CheckPattern(const std::string& pattern, const std::string& path,
                                   absl::string_view keyword) {
  return !RepeatsARepetition(pattern)
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   absl::StrCat("a regular expression in '", keyword, "' of the JSON schema at ",
                                path.empty() ? "its root" : path,
                                ": Two consecutive repetition modifiers are not allowed."));
}

// The innermost first, so that no schema moves before it was looked for.
void WritePatterns(const std::set<const Json*>& with_lengths, Json& json) {
  if (json.is_structured()) {
    for (Json& part : json) {
      WritePatterns(with_lengths, part);
    }
  }
  if (with_lengths.contains(&json)) {
    const std::string pattern = *PatternOfLengths(json);
    json.erase("minLength");
    json.erase("maxLength");
    json["pattern"] = pattern;
  }
}

absl::StatusOr<bool> Prepare(Json& schema, bool has_patterns) {
  Checker checker(schema);
  LAMINA_RETURN_IF_ERROR(checker.Check(schema, ""));
  if (!has_patterns || checker.with_lengths().empty()) {
    return false;
  }
  WritePatterns(checker.with_lengths(), schema);
  return true;
}

// Whether the strings of a part with a schema are JSON, and no text is excluded from them.
bool HasPlainStrings(const Json& part) {
  const Json style = part.value("style", Json());
  return part.value("type", Json()) != Json("qwen_xml_parameter") &&
         (!style.is_string() || style == Json("json")) && part.value("excludes", Json()).empty();
}

}  // namespace

absl::StatusOr<bool> PrepareSchema(Json& schema) { return Prepare(schema, /*has_patterns=*/true); }

// A part with a schema needs no type, so every object may be one.
absl::StatusOr<bool> PrepareStructuralTag(Json& tag) {
  bool changed = false;
  if (!tag.is_structured()) {
    return changed;
  }
  const bool has_patterns = tag.is_object() && HasPlainStrings(tag);
  for (auto& [name, part] : tag.items()) {
    const bool is_schema =
        tag.is_object() && name == "json_schema" && (part.is_object() || part.is_boolean());
    LAMINA_ASSIGN_OR_RETURN(const bool is_new,
                            is_schema ? Prepare(part, has_patterns) : PrepareStructuralTag(part));
    changed = changed || is_new;
  }
  return changed;
}

}  // namespace lamina::model

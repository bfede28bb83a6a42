// SPDX-License-Identifier: Apache-2.0
#include "client/output_form_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lamina::client {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<OutputForm> JsonSchema(const Json& schema, absl::string_view name) {
  if (!schema.is_object() && !schema.is_boolean()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be a JSON schema, an object"));
  }
  return OutputForm{OutputForm::Kind::kJsonSchema, schema.dump()};
}

absl::StatusOr<OutputForm> Choice(const Json& value) {
  std::vector<std::string> alternatives;
  for (const Json& choice : value.is_array() ? value : Json::array()) {
    if (!choice.is_string() || choice.get<std::string>().empty()) {
      return absl::InvalidArgumentError("choice must be a list of texts, none of them empty");
    }
    alternatives.push_back(choice.dump());  // The grammar's strings are written as JSON's.
  }
  if (alternatives.empty()) {
    return absl::InvalidArgumentError("choice must be a list of at least one text");
  }
  return OutputForm{OutputForm::Kind::kGrammar,
                    absl::StrCat("root ::= ", absl::StrJoin(alternatives, " | "))};
}

}  // namespace

absl::StatusOr<OutputForm> ResponseFormat(const Json& value) {
  const Json type = value.is_object() ? value.value("type", Json()) : Json();
  if (type == "text") {
    return OutputForm{};
  }
  if (type == "json_object") {
    return OutputForm{OutputForm::Kind::kJsonSchema, R"({"type":"object"})"};
  }
  if (type == "json_schema") {
    const Json outer = value.value("json_schema", Json());
    if (!outer.is_object() || !outer.contains("schema")) {
      return absl::InvalidArgumentError("json_schema must be an object with a schema");
    }
    return JsonSchema(outer["schema"], "json_schema.schema");
  }
  if (type == "structural_tag") {
    if (!value.contains("format") || !value["format"].is_object()) {
      return absl::InvalidArgumentError(
          "a structural_tag must have a format, as XGrammar's structural tags have");
    }
    return OutputForm{OutputForm::Kind::kStructuralTag, value.dump()};
  }
  return absl::InvalidArgumentError(
      R"(type must be "text", "json_object", "json_schema" or "structural_tag"; for a regular expression use )"
      R"(structured_outputs: {"regex": ...})");
}

absl::StatusOr<OutputForm> StructuredOutputs(const Json& value) {
  const Json* found = nullptr;
  std::string name;
  const Json none = Json::object();
  for (const auto& [key, entry] : (value.is_object() ? value : none).items()) {
    const bool known = key == "json" || key == "regex" || key == "choice" || key == "grammar";
    if (entry.is_null()) {
      continue;
    }
    if (found != nullptr || !known) {
      return absl::InvalidArgumentError(
          absl::StrCat("one of json, regex, choice and grammar is served, and not '", key, "'",
                       found == nullptr ? "" : absl::StrCat(" together with '", name, "'")));
    }
    found = &entry;
    name = key;
  }
  if (found == nullptr) {
    return absl::InvalidArgumentError("it must be an object with json, regex, choice or grammar");
  }
  if (name == "choice") {
    return Choice(*found);
  }
  if (name == "json" && !found->is_string()) {
    return JsonSchema(*found, "json");
  }
  if (!found->is_string() || found->get<std::string>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be a text that is not empty"));
  }
  const OutputForm::Kind kind = name == "json"    ? OutputForm::Kind::kJsonSchema
                                : name == "regex" ? OutputForm::Kind::kRegex
                                                  : OutputForm::Kind::kGrammar;
  return OutputForm{kind, found->get<std::string>()};
}

}  // namespace lamina::client

// SPDX-License-Identifier: Apache-2.0
#include "gateway/tools/tool_request.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/output_form.h"
#include "common/status_macros.h"
#include "gateway/api_error.h"

namespace lamina::gateway {
namespace {

constexpr size_t kToolsMax = 128;
constexpr size_t kNameBytesMax = 64;

bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':';
         });
}

absl::StatusOr<ToolFunction> ReadFunction(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return WrongType(path, "an object", value);
  }
  JsonObject function(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> name, function.String("name"));
  if (!name.has_value()) {
    return Missing(function.PathOf("name"));
  }
  if (!IsName(*name)) {
    return BadField(function.PathOf("name"), "invalid_value",
                    absl::StrCat("'", function.PathOf("name"), "' must be 1 to ", kNameBytesMax,
                                 " letters, digits and any of _-.:"));
  }
  LAMINA_RETURN_IF_ERROR(function.String("description").status());
  LAMINA_RETURN_IF_ERROR(function.Bool("strict").status());
  ToolFunction out{.name = *name,
                   .parameters = {{"type", "object"}, {"properties", Json::object()}}};
  LAMINA_ASSIGN_OR_RETURN(const Json* parameters, function.Object("parameters"));
  if (parameters != nullptr && !parameters->empty()) {
    out.parameters = *parameters;
  }
  LAMINA_RETURN_IF_ERROR(function.RefuseUnknown());
  return out;
}

absl::StatusOr<ToolFunction> ReadTool(const Json& value, const std::string& path) {
  if (!value.is_object()) {
    return WrongType(path, "an object", value);
  }
  JsonObject tool(value, path + ".");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_type, tool.String("type"));
  const std::string type = given_type.value_or("");
  if (type != "function") {
    return BadField(tool.PathOf("type"), "unsupported_parameter",
                    absl::StrCat("'", tool.PathOf("type"), "' is '", type,
                                 "'; only tools of type 'function' are served"));
  }
  const Json* function = tool.Find("function");
  if (function == nullptr) {
    return Missing(tool.PathOf("function"));
  }
  return ReadFunction(*function, tool.PathOf("function"));
}

absl::Status ReadList(const Json& tools, ToolRequest& request) {
  if (!tools.is_array()) {
    return BadField("tools", "invalid_type",
                    absl::StrCat("'tools' must be an array, and is ", JsonTypeName(tools)));
  }
  if (tools.size() > kToolsMax) {
    return BadField(
        "tools", "array_above_max_length",
        absl::StrCat("'tools' has ", tools.size(), " tools; at most ", kToolsMax, " are allowed"));
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    LAMINA_ASSIGN_OR_RETURN(ToolFunction function, ReadTool(tools[i], path));
    if (request.Has(function.name)) {
      return BadField(path + ".function.name", "invalid_value",
                      absl::StrCat("two tools have the name '", function.name, "'"));
    }
    request.functions.push_back(std::move(function));
  }
  return absl::OkStatus();
}

absl::Status ReadChoice(const Json& value, ToolRequest& request) {
  if (value.is_string()) {
    const auto word = value.get<std::string>();
    if (word != "none" && word != "auto" && word != "required") {
      return BadField("tool_choice", "invalid_value",
                      absl::StrCat("'tool_choice' is '", word,
                                   "'; it must be none, auto, required or a function"));
    }
    request.choice = word == "none"   ? ToolChoice::kNone
                     : word == "auto" ? ToolChoice::kAuto
                                      : ToolChoice::kRequired;
    return absl::OkStatus();
  }
  if (!value.is_object()) {
    return WrongType("tool_choice", "an object", value);
  }
  JsonObject choice(value, "tool_choice.");
  LAMINA_ASSIGN_OR_RETURN(const std::optional<std::string> given_type, choice.String("type"));
  const std::string type = given_type.value_or("");
  const Json* function = choice.Find("function");
  if (type != "function" || function == nullptr || !function->is_object() ||
      !function->value("name", Json()).is_string()) {
    return BadField("tool_choice", "invalid_value",
                    "'tool_choice' must be a word or {\"type\": \"function\", \"function\": "
                    "{\"name\": ...}}");
  }
  request.choice = ToolChoice::kNamed;
  request.named = (*function)["name"].get<std::string>();
  if (!request.Has(request.named)) {
    return BadField(
        "tool_choice", "invalid_value",
        absl::StrCat("'tool_choice' names '", request.named, "', which is none of the tools"));
  }
  return choice.RefuseUnknown();
}

// Adds the schemas that say what a value of `schema`, a part of `root`, is, where these are others.
// False if it may be something that is no object.
bool AddAlternatives(const Json& schema, const Json& root, std::vector<const Json*>& left) {
  if (!schema.is_object()) {
    return false;
  }
  const auto is_object = [](const Json& value) { return value.is_object(); };
  if (const auto reference = schema.find("$ref"); reference != schema.end()) {
    if (reference->is_string()) {
      if (const Json* place = PlaceOf(reference->get<std::string>(), root); place != nullptr) {
        left.push_back(place);
      }
    }
    return true;  // The cluster refuses one that leads nowhere.
  }
  if (const auto value = schema.find("const"); value != schema.end()) {
    return value->is_object();
  }
  if (const auto values = schema.find("enum"); values != schema.end()) {
    return values->is_array() && std::all_of(values->begin(), values->end(), is_object);
  }
  for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
    if (const auto list = schema.find(keyword); list != schema.end()) {
      if (!list->is_array()) {
        return false;
      }
      for (const Json& part : *list) {
        left.push_back(&part);
      }
      return true;
    }
  }
  if (const auto type = schema.find("type"); type != schema.end()) {
    return *type == Json("object") || *type == Json::array({"object"});
  }
  return schema.contains("properties") || schema.contains("additionalProperties") ||
         schema.contains("unevaluatedProperties");
}

bool IsOfObjects(const Json& root) {
  std::vector<const Json*> left = {&root};
  std::set<const Json*> seen;
  while (!left.empty()) {
    const Json* const schema = left.back();
    left.pop_back();
    if (seen.insert(schema).second && !AddAlternatives(*schema, root, left)) {
      return false;
    }
  }
  return true;
}

// Whether a schema says what a value is.
bool SaysWhatItIs(const Json& schema) {
  constexpr const char* kWays[] = {"type",
                                   "$ref",
                                   "const",
                                   "enum",
                                   "anyOf",
                                   "oneOf",
                                   "allOf",
                                   "properties",
                                   "additionalProperties",
                                   "unevaluatedProperties"};
  return std::any_of(std::begin(kWays), std::end(kWays),
                     [&schema](const char* keyword) { return schema.contains(keyword); });
}

// What a demanded call needs: arguments that are an object, and schemas that fit into the form of
// the output. A schema that says nothing of them is of objects.
absl::Status FitEnforced(ToolRequest& request) {
  size_t bytes = 0;
  for (size_t i = 0; i < request.functions.size(); ++i) {
    ToolFunction& function = request.functions[i];
    if (request.choice == ToolChoice::kNamed && function.name != request.named) {
      continue;
    }
    const std::string path = absl::StrCat("tools[", i, "].function.parameters");
    const auto type = function.parameters.find("type");
    if (type != function.parameters.end() && *type != Json("object")) {
      return BadField(path + ".type", "invalid_value",
                      absl::StrCat("'", path,
                                   ".type' must be 'object' where 'tool_choice' demands a call: "
                                   "arguments are an object"));
    }
    if (!SaysWhatItIs(function.parameters)) {
      function.parameters["type"] = "object";
    }
    if (!IsOfObjects(function.parameters)) {
      return BadField(path, "invalid_value",
                      absl::StrCat("'", path,
                                   "' must be a schema of objects alone, in each of its "
                                   "alternatives, where 'tool_choice' demands a call: arguments "
                                   "are an object"));
    }
    bytes += function.parameters.dump().size();
    if (bytes > kOutputFormBytesMax) {
      return BadField(
          "tools", "invalid_value",
          absl::StrCat("the 'parameters' of the functions that 'tool_choice' demands "
                       "have more than ",
                       kOutputFormBytesMax, " bytes; offer fewer functions, or ask with 'auto'"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const Json* PlaceOf(const std::string& reference, const Json& root) {
  if (!absl::StartsWith(reference, "#")) {
    return nullptr;
  }
  const Json* place = &root;
  for (absl::string_view name : absl::StrSplit(reference.substr(1), '/', absl::SkipEmpty())) {
    const auto found = place->is_object() ? place->find(std::string(name)) : place->end();
    if (found == place->end()) {
      return nullptr;
    }
    place = &*found;
  }
  return place;
}

bool ToolRequest::Has(const std::string& name) const {
  return std::any_of(functions.begin(), functions.end(),
                     [&name](const ToolFunction& function) { return function.name == name; });
}

absl::StatusOr<ToolRequest> ReadTools(JsonObject& body) {
  ToolRequest request;
  const Json* tools = body.Find("tools");
  if (tools != nullptr) {
    LAMINA_RETURN_IF_ERROR(ReadList(*tools, request));
  }
  request.choice = request.functions.empty() ? ToolChoice::kNone : ToolChoice::kAuto;
  if (const Json* choice = body.Find("tool_choice"); choice != nullptr) {
    LAMINA_RETURN_IF_ERROR(ReadChoice(*choice, request));
  }
  if (request.functions.empty()) {
    if (request.enforced()) {
      return BadField("tool_choice", "invalid_value", "'tool_choice' asks for a call of no tools");
    }
    request.choice = ToolChoice::kNone;
  }
  if (request.enforced()) {
    LAMINA_RETURN_IF_ERROR(FitEnforced(request));
  }
  LAMINA_ASSIGN_OR_RETURN(const std::optional<bool> parallel, body.Bool("parallel_tool_calls"));
  request.parallel = parallel.value_or(true);
  if (request.choice != ToolChoice::kNone) {
    request.json = tools->dump();
  }
  return request;
}

}  // namespace lamina::gateway

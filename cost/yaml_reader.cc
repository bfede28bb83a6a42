// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/string_distance.h"
#include "cost/yaml_reader_internal.h"

namespace lamina::cost::internal {

absl::StatusOr<YAML::Node> YamlReader::Load(absl::string_view text) const {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(std::string(text));
    if (documents.size() > 1) {
      return Error(documents[1], "a second YAML document begins here; remove the --- before it");
    }
    return documents.empty() ? YAML::Node() : documents[0];
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin_, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
}

absl::Status YamlReader::Error(const YAML::Node& node, absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrCat(origin_, ":", node.Mark().line + 1, ": ", message));
}

absl::Status YamlReader::NotOneOf(const YAML::Node& node, const std::string& path,
                                  const std::vector<std::string>& words) const {
  return Error(node, absl::StrCat(path, ": '", node.IsScalar() ? node.Scalar() : "?",
                                  "' is not one of ", absl::StrJoin(words, ", ")));
}

absl::Status YamlReader::ReadKeys(const YAML::Node& node, const std::string& path,
                                  const std::vector<Key>& keys) const {
  if (!node.IsMap()) {
    return Error(node, absl::StrCat(path.empty() ? "the file" : path, ": wants keys and values"));
  }
  std::vector<std::string> names;
  for (const Key& key : keys) {
    names.push_back(key.name);
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    const std::string key_path = path.empty() ? name : absl::StrCat(path, ".", name);
    const auto known =
        std::find_if(keys.begin(), keys.end(), [&](const Key& key) { return key.name == name; });
    if (known == keys.end()) {
      const std::string nearest = NearestName(name, names);
      return Error(
          entry.first,
          absl::StrCat("unknown key '", key_path, "'",
                       nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                       " Known here: ", absl::StrJoin(names, ", ")));
    }
    if (!seen.insert(name).second) {
      return Error(entry.first, absl::StrCat("'", key_path, "' is given twice"));
    }
    LAMINA_RETURN_IF_ERROR(known->read(entry.second, key_path));
  }
  for (const Key& key : keys) {
    if (key.presence == Presence::kRequired && seen.count(key.name) == 0) {
      return Error(node, absl::StrCat(path.empty() ? "" : path + ".", key.name,
                                      ": missing; docs/formats/catalogue.md says what it is"));
    }
  }
  return absl::OkStatus();
}

absl::Status YamlReader::ReadList(const YAML::Node& node, const std::string& path,
                                  const ReadValue& read) const {
  if (!node.IsSequence()) {
    return Error(node, absl::StrCat(path, ": wants a list"));
  }
  for (size_t i = 0; i < node.size(); ++i) {
    LAMINA_RETURN_IF_ERROR(read(node[i], absl::StrCat(path, ".", i)));
  }
  return absl::OkStatus();
}

absl::Status YamlReader::ReadMap(
    const YAML::Node& node, const std::string& path,
    const std::function<absl::Status(const std::string&, const YAML::Node&)>& read) const {
  if (!node.IsMap()) {
    return Error(node, absl::StrCat(path, ": wants keys and values"));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    if (!seen.insert(name).second) {
      return Error(entry.first, absl::StrCat("'", path, ".", name, "' is given twice"));
    }
    LAMINA_RETURN_IF_ERROR(read(name, entry.second));
  }
  return absl::OkStatus();
}

ReadValue YamlReader::Text(std::string& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) {
    if (!node.IsScalar() || node.Scalar().empty()) {
      return Error(node, absl::StrCat(path, ": wants one value that is not empty"));
    }
    out = node.Scalar();
    return absl::OkStatus();
  };
}

ReadValue YamlReader::Whole(uint32_t& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) {
    if (!node.IsScalar() || !absl::SimpleAtoi(node.Scalar(), &out)) {
      return Error(node, absl::StrCat(path, ": '", node.IsScalar() ? node.Scalar() : "?",
                                      "' is not a whole number in [0, 4294967295]"));
    }
    return absl::OkStatus();
  };
}

ReadValue YamlReader::YesOrNo(bool& out) const {
  return Choice<bool>({{"yes", true}, {"no", false}}, out);
}

}  // namespace lamina::cost::internal

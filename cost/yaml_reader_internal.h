// SPDX-License-Identifier: Apache-2.0
//
// YamlReader: sections of a YAML text as tables of keys, so that unknown keys, keys given twice and
// bad values are told apart in one place, with line numbers.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "yaml-cpp/yaml.h"

namespace lamina::cost::internal {

using ReadValue = std::function<absl::Status(const YAML::Node& node, const std::string& path)>;

enum class Presence : uint8_t { kRequired, kOptional };

struct Key {
  std::string name;
  ReadValue read;
  Presence presence = Presence::kRequired;
};

class YamlReader {
 public:
  explicit YamlReader(absl::string_view origin) : origin_(origin) {}

  absl::StatusOr<YAML::Node> Load(absl::string_view text) const;
  absl::Status ReadKeys(const YAML::Node& node, const std::string& path,
                        const std::vector<Key>& keys) const;
  // Calls `read` for every element of a list, with a path like "devices.0".
  absl::Status ReadList(const YAML::Node& node, const std::string& path,
                        const ReadValue& read) const;
  // Calls `read` for every key and value of a map with free keys.
  absl::Status ReadMap(
      const YAML::Node& node, const std::string& path,
      const std::function<absl::Status(const std::string&, const YAML::Node&)>& read) const;

  ReadValue Text(std::string& out) const;
  ReadValue Whole(uint32_t& out) const;
  ReadValue YesOrNo(bool& out) const;

  template <typename Enum>
  ReadValue Choice(std::vector<std::pair<std::string, Enum>> names, Enum& out) const {
    return [this, names = std::move(names), &out](const YAML::Node& node,
                                                  const std::string& path) -> absl::Status {
      std::vector<std::string> words;
      for (const auto& [word, value] : names) {
        if (node.IsScalar() && word == node.Scalar()) {
          out = value;
          return absl::OkStatus();
        }
        words.push_back(word);
      }
      return NotOneOf(node, path, words);
    };
  }

  // "catalogue.yaml:12: <message>".
  absl::Status Error(const YAML::Node& node, absl::string_view message) const;

 private:
  absl::Status NotOneOf(const YAML::Node& node, const std::string& path,
                        const std::vector<std::string>& words) const;

  const std::string origin_;
};

}  // namespace lamina::cost::internal

// SPDX-License-Identifier: Apache-2.0
//
// ClusterFileValues: what reads the values of a cluster file, section by section. A section is a
// table of keys and of what reads their value, so that unknown keys, duplicates and bad values are
// told apart in one place, with where they come from: a line of the file, or an override.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/port_range.h"
#include "common/status_macros.h"
#include "config/cluster_config.h"
#include "config/enum_names_internal.h"
#include "yaml-cpp/yaml.h"

namespace lamina::internal {

using ReadValue = std::function<absl::Status(const YAML::Node& node, const std::string& path)>;
struct Key {
  std::string name;
  ReadValue read;
};

class ClusterFileValues {
 public:
  explicit ClusterFileValues(absl::string_view origin) : origin_(origin) {}

  absl::Status Override(const std::string& assignment, YAML::Node& root);
  // Where the key comes from with which `message` begins: "FILE" or "--set KEY=VALUE".
  std::string OriginOf(absl::string_view message) const;

  absl::Status ReadKeys(const YAML::Node& node, const std::string& path,
                        const std::vector<Key>& keys) const;
  ReadValue Section(std::vector<Key> keys) const;
  template <typename Node>
  ReadValue List(std::vector<Node>& out, std::function<std::vector<Key>(Node&)> keys) const;
  ReadValue Text(std::string& out) const;
  ReadValue Number(uint32_t& out) const;
  ReadValue NumberOrAuto(uint32_t& out, bool& automatic) const;
  ReadValue NumberOrAuto(std::optional<uint32_t>& out, bool& automatic) const;
  ReadValue Number(std::optional<uint32_t>& out) const;
  ReadValue Size(uint64_t& out) const;
  ReadValue Duration(Nanos& out) const;
  ReadValue Price(double& out) const;
  ReadValue Ratio(double& out) const;
  ReadValue Cores(std::vector<int>& out) const;
  ReadValue Ports(PortRange& out) const;
  ReadValue Words(std::vector<std::string>& out) const;
  ReadValue Layers(std::optional<LayerRange>& out) const;
  template <typename Enum, size_t N>
  ReadValue Choice(const EnumNames<Enum, N>& names, Enum& out) const;
  template <typename Names, typename Enum>
  ReadValue Choices(const Names& names, Enum& first, std::vector<Enum>& out) const;

 private:
  absl::Status Error(const YAML::Node& node, const std::string& path,
                     absl::string_view message) const;
  absl::Status RequireScalar(const YAML::Node& node, const std::string& path) const;

  const std::string origin_;
  std::vector<std::pair<std::string, std::string>> overridden_;  // Path, and what was typed.
};

template <typename Node>
ReadValue ClusterFileValues::List(std::vector<Node>& out,
                                  std::function<std::vector<Key>(Node&)> keys) const {
  return [this, &out, keys](const YAML::Node& node, const std::string& path) -> absl::Status {
    if (!node.IsSequence()) {
      return Error(node, path, absl::StrCat(path, ": wants a list of nodes, each - {name: ...}"));
    }
    for (size_t i = 0; i < node.size(); ++i) {
      Node element;
      LAMINA_RETURN_IF_ERROR(ReadKeys(node[i], absl::StrCat(path, ".", i), keys(element)));
      out.push_back(std::move(element));
    }
    return absl::OkStatus();
  };
}

template <typename Enum, size_t N>
ReadValue ClusterFileValues::Choice(const EnumNames<Enum, N>& names, Enum& out) const {
  return [this, &names, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    std::vector<std::string> words;
    for (const auto& [word, value] : names) {
      if (word == node.Scalar()) {
        out = value;
        return absl::OkStatus();
      }
      words.emplace_back(word);
    }
    return Error(
        node, path,
        absl::StrCat(path, ": '", node.Scalar(), "' is not one of ", absl::StrJoin(words, ", ")));
  };
}

// One word, and no list; or the first one of a list.
template <typename Names, typename Enum>
ReadValue ClusterFileValues::Choices(const Names& names, Enum& first,
                                     std::vector<Enum>& out) const {
  return [this, &names, &first, &out](const YAML::Node& node, const std::string& path) {
    const size_t listed = node.IsSequence() ? node.size() : 0;
    absl::Status read = Choice(names, first)(listed > 0 ? node[0] : node, path);
    for (size_t i = 0; i < listed && read.ok(); ++i) {
      read = Choice(names, out.emplace_back())(node[i], absl::StrCat(path, ".", i));
    }
    return read;
  };
}

}  // namespace lamina::internal

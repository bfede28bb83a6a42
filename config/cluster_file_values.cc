// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/string_distance.h"
#include "common/units.h"
#include "config/cluster_file_values_internal.h"
#include "config/override_internal.h"
#include "config/replicas.h"

namespace lamina::internal {
namespace {

constexpr double kPricePerHourMax = 1e6;

// What is wrong with what cannot be read as a uint32_t.
absl::string_view WhyNoNumber(absl::string_view text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  return digits ? "more than 4294967295, the most that any number may be" : "not a whole number";
}

}  // namespace

absl::Status ClusterFileValues::Override(const std::string& assignment, YAML::Node& root) {
  LAMINA_ASSIGN_OR_RETURN(const std::string path, ApplyOverride(assignment, root));
  overridden_.emplace_back(path, assignment);
  return absl::OkStatus();
}

// Says where the value came from: a line of the file, or an override.
absl::Status ClusterFileValues::Error(const YAML::Node& node, const std::string& path,
                                      absl::string_view message) const {
  std::string where = absl::StrCat(origin_, ":", node.Mark().line + 1);
  for (const auto& [overridden_path, assignment] : overridden_) {
    if (path == overridden_path || absl::StartsWith(path, overridden_path + ".") ||
        ((!node.IsScalar() || node.Mark().is_null()) &&
         absl::StartsWith(overridden_path, path + "."))) {
      where = absl::StrCat("--set ", assignment);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", message));
}

std::string ClusterFileValues::OriginOf(absl::string_view message) const {
  std::string origin = origin_;
  for (const auto& [path, assignment] : overridden_) {
    if (absl::StartsWith(message, path + ":") || absl::StartsWith(message, path + ".")) {
      origin = absl::StrCat("--set ", assignment);
    }
  }
  return origin;
}

absl::Status ClusterFileValues::RequireScalar(const YAML::Node& node,
                                              const std::string& path) const {
  if (node.IsScalar()) {
    return absl::OkStatus();
  }
  return Error(node, path,
               absl::StrCat(path, ": wants one value, and has ",
                            node.IsMap()        ? "a section"
                            : node.IsSequence() ? "a list"
                                                : "none"));
}

absl::Status ClusterFileValues::ReadKeys(const YAML::Node& node, const std::string& path,
                                         const std::vector<Key>& keys) const {
  if (!node.IsMap()) {
    return Error(node, path,
                 path.empty() ? std::string("it is no cluster file: that is keys and values in "
                                            "YAML, as in deploy/clusters/local.yaml")
                              : absl::StrCat(path, ": wants keys and values"));
  }
  std::set<std::string> seen;
  for (const auto& entry : node) {
    const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "?";
    const std::string key_path = path.empty() ? name : absl::StrCat(path, ".", name);
    const Key* known = nullptr;
    std::vector<std::string> names;
    for (const Key& key : keys) {
      names.push_back(key.name);
      known = key.name == name ? &key : known;
    }
    if (known == nullptr) {
      const std::string nearest = NearestName(name, names);
      return Error(
          entry.first, key_path,
          absl::StrCat("unknown key '", key_path, "'",
                       nearest.empty() ? "." : absl::StrCat("; did you mean '", nearest, "'?"),
                       " Known here: ", absl::StrJoin(names, ", ")));
    }
    if (!seen.insert(name).second) {
      return Error(entry.first, key_path, absl::StrCat("'", key_path, "' is given twice"));
    }
    LAMINA_RETURN_IF_ERROR(known->read(entry.second, key_path));
  }
  return absl::OkStatus();
}

ReadValue ClusterFileValues::Section(std::vector<Key> keys) const {
  return [this, keys = std::move(keys)](const YAML::Node& node, const std::string& path) {
    return ReadKeys(node, path, keys);
  };
}

ReadValue ClusterFileValues::Text(std::string& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    out = node.Scalar();
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::Ports(PortRange& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<PortRange> range = ParsePortRange(node.Scalar());
    if (!range.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", range.status().message()));
    }
    out = *range;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::Number(uint32_t& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    if (!absl::SimpleAtoi(node.Scalar(), &out)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is ", WhyNoNumber(node.Scalar())));
    }
    return absl::OkStatus();
  };
}

// `auto` leaves the number as it was.
ReadValue ClusterFileValues::NumberOrAuto(uint32_t& out, bool& automatic) const {
  return [this, &out, &automatic](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    automatic = node.Scalar() == "auto";
    if (!automatic && !absl::SimpleAtoi(node.Scalar(), &out)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is ", WhyNoNumber(node.Scalar()),
                                ", nor auto"));
    }
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::NumberOrAuto(std::optional<uint32_t>& out, bool& automatic) const {
  return [this, &out, &automatic](const YAML::Node& node, const std::string& path) -> absl::Status {
    uint32_t number = 0;
    LAMINA_RETURN_IF_ERROR(NumberOrAuto(number, automatic)(node, path));
    out = automatic ? std::nullopt : std::optional(number);
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::Number(std::optional<uint32_t>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    return Number(out.emplace())(node, path);
  };
}

ReadValue ClusterFileValues::Size(uint64_t& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<uint64_t> bytes = ParseBytes(node.Scalar());
    if (!bytes.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", bytes.status().message()));
    }
    out = *bytes;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::Duration(Nanos& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<Nanos> length = ParseDuration(node.Scalar());
    if (!length.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", length.status().message()));
    }
    out = *length;
    return absl::OkStatus();
  };
}

// "1.2/h".
ReadValue ClusterFileValues::Price(double& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    absl::string_view number = node.Scalar();
    double price = 0;
    if (!absl::ConsumeSuffix(&number, "/h") || !absl::SimpleAtod(number, &price) ||
        !(price >= 0 && price <= kPricePerHourMax)) {
      return Error(node, path,
                   absl::StrCat(path, ": '", node.Scalar(), "' is not a price in [0, ",
                                kPricePerHourMax, "] for an hour; write it like 1.2/h"));
    }
    out = price;
    return absl::OkStatus();
  };
}

ReadValue ClusterFileValues::Ratio(double& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    return absl::SimpleAtod(node.Scalar(), &out)
               ? absl::OkStatus()
               : Error(node, path,
                       absl::StrCat(path, ": '", node.Scalar(), "' is no number like 0.5"));
  };
}

// "0-3,8" or [0, 1, 2, 3, 8].
ReadValue ClusterFileValues::Cores(std::vector<int>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    std::vector<std::string> parts;
    if (node.IsSequence()) {
      LAMINA_RETURN_IF_ERROR(Words(parts)(node, path));
    } else {
      LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
      parts.push_back(node.Scalar());
    }
    absl::StatusOr<std::vector<int>> cores = ParseCores(absl::StrJoin(parts, ","));
    if (!cores.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", cores.status().message()));
    }
    out = *std::move(cores);
    return absl::OkStatus();
  };
}

// One word, or a list of them.
ReadValue ClusterFileValues::Words(std::vector<std::string>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    out.clear();
    if (!node.IsSequence()) {
      LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
      out.push_back(node.Scalar());
      return absl::OkStatus();
    }
    for (size_t i = 0; i < node.size(); ++i) {
      const YAML::Node element = node[i];
      LAMINA_RETURN_IF_ERROR(RequireScalar(element, absl::StrCat(path, ".", i)));
      out.push_back(element.Scalar());
    }
    return absl::OkStatus();
  };
}

// "0-14", or "3" for one.
ReadValue ClusterFileValues::Layers(std::optional<LayerRange>& out) const {
  return [this, &out](const YAML::Node& node, const std::string& path) -> absl::Status {
    LAMINA_RETURN_IF_ERROR(RequireScalar(node, path));
    const absl::StatusOr<LayerRange> range = ParseLayers(node.Scalar());
    if (!range.ok()) {
      return Error(node, path, absl::StrCat(path, ": ", range.status().message()));
    }
    out = *range;
    return absl::OkStatus();
  };
}

}  // namespace lamina::internal

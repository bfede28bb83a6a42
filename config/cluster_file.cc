// SPDX-License-Identifier: Apache-2.0
//
// Reading of a cluster file from where it lies.
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/units.h"
#include "config/cluster_config.h"

namespace lamina {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;

}  // namespace

absl::StatusOr<ClusterConfig> LoadClusterConfig(const std::string& path,
                                                const std::vector<std::string>& overrides) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax + 1, '\0');
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot open the cluster file '", path,
                                            "': ", std::strerror(errno),
                                            "; examples are in deploy/clusters/"));
  }
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    return absl::InvalidArgumentError(absl::StrCat("cannot read the cluster file '", path, "'"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kFileBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": larger than ", FormatBytes(kFileBytesMax), ", not a cluster file"));
  }
  return ParseClusterConfig(text, path, overrides);
}

}  // namespace lamina

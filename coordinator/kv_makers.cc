// SPDX-License-Identifier: Apache-2.0
#include "coordinator/kv_makers.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace lamina::coordinator {
namespace {

// FNV-1a.
uint64_t HashOf(absl::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

std::string PartOf(const plan::Stage& stage) {
  return absl::StrCat(" layers ", stage.first_layer, " ", stage.layers, " shard ",
                      stage.shard.index, " ", stage.shard.count);
}

}  // namespace

uint64_t KvMakersOf(const plan::EpochConfig& config,
                    absl::FunctionRef<std::string(const std::string& node)> kind_of) {
  std::vector<std::string> kinds;
  for (const std::string& node : config.compute_nodes) {
    kinds.push_back(kind_of(node));
  }
  const bool one_kind = std::set<std::string>(kinds.begin(), kinds.end()).size() <= 1;
  std::set<std::string> makers;
  for (size_t i = 0; i < kinds.size(); ++i) {
    const bool whole = one_kind || config.stages.empty();
    makers.insert(absl::StrCat(kinds[i], whole ? "" : PartOf(config.stages[i]), "\n"));
  }
  std::string name;
  for (const std::string& maker : makers) {
    absl::StrAppend(&name, maker);
  }
  return std::max<uint64_t>(1, HashOf(name));
}

}  // namespace lamina::coordinator
